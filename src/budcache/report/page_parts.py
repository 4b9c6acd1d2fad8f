"""Parts of the page: tabs, pictures side by side, masks as strips, spreads as dots, the table."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from functools import partial
from html import escape
from pathlib import Path

from PIL import Image, ImageChops

from budcache.comparison.folder import picture
from budcache.comparison.result import FULL, Comparison, Entry
from budcache.comparison.table import cells
from budcache.report.page_charts import Style

__all__ = ["choices", "gallery", "spreads", "strips", "table", "tabs"]

AMPLIFIED = 5
# Prompts shown and pixels a side, best first; the first that keeps the file light is taken.
SHOWN = ((4, 256), (4, 160), (3, 128), (2, 96), (1, 64))
PICTURE_BYTES = 2_600_000  # of all pictures, before they are written as text


def tabs(name: str, panels: Sequence[tuple[str, str]], chosen: int = 0) -> str:
    """Panels of which one is seen; radio buttons and the style sheet do it, so no script is needed."""
    if len(panels) == 1:
        return panels[0][1]
    inputs = "".join(
        f'<input type="radio" name="{name}" id="{name}{i}"{" checked" if i == chosen else ""}>'
        f'<label for="{name}{i}">{escape(title)}</label>'
        for i, (title, _) in enumerate(panels)
    )
    bodies = "".join(f'<section aria-label="{escape(title)}">{body}</section>' for title, body in panels)
    return f'<div class="tabs">{inputs}{bodies}</div>'


def choices(count: int) -> str:
    """The style that shows the chosen one of up to so many panels."""
    pairs = (f".tabs > input:nth-of-type({n}):checked ~ section:nth-of-type({n})" for n in range(1, count + 1))
    return f"{','.join(pairs)} {{ display: block; }}"


def gallery(comparison: Comparison, folder: Path) -> dict[int, str]:
    """For each budget the same prompts by every method, with what is different from the full run below."""
    count, side = _affordable(comparison, folder)
    look = partial(_look, folder, side)
    full = [look(FULL, comparison.steps, number) for number in range(count)]
    encoded = {
        (entry.method, entry.budget, number): _pair(look(entry.method, entry.budget, number), full[number])
        for entry in comparison.entries
        for number in range(count)
        if entry.method != FULL
    }
    shown: dict[int, str] = {}
    originals = [_encode(picture) for picture in full]
    for budget in comparison.budgets:
        rows = []
        for number, original in enumerate(originals):
            prompt = comparison.prompts[number]
            cards = [_card("full run", f"{comparison.steps} calls", f"{prompt}, full run", original, None, "")]
            for entry in _ours_first(comparison, budget):
                kind = "ours" if entry.method == comparison.ours else ""
                picture, difference = encoded[entry.method, budget, number]
                alt = f"{prompt}, {entry.title} with {entry.calls[number]} calls"
                cards.append(_card(entry.title, _value(comparison, entry, number), alt, picture, difference, kind))
            rows.append(f'<h3>{escape(prompt)}</h3><div class="cards" tabindex="0">{"".join(cards)}</div>')
        shown[budget] = "".join(rows)
    return shown


def _affordable(comparison: Comparison, folder: Path) -> tuple[int, int]:
    """How many prompts to show, and how large, so that the file stays light; judged by a few of the pictures."""
    others = [entry for entry in comparison.entries if entry.method != FULL]
    judged = others[:: max(1, len(others) // 4)]
    for most, side in SHOWN:
        count = min(most, len(comparison.prompts))
        look = partial(_look, folder, side)
        sizes = [
            len(part)
            for number, entry in enumerate(judged)
            for part in _pair(
                look(entry.method, entry.budget, number % count), look(FULL, comparison.steps, number % count)
            )
        ]
        if sum(sizes) / max(1, len(judged)) * len(others) * count <= PICTURE_BYTES:
            break
    return count, side


def _value(comparison: Comparison, entry: Entry, number: int) -> str:
    for measure in comparison.measures:
        if measure.reference and measure.name in entry.values:
            return f"{entry.values[measure.name][number]:.{min(measure.digits, 3)}f} {measure.unit}".rstrip()
    return f"{entry.calls[number]} calls"


def _card(title: str, note: str, alt: str, picture: bytes, difference: bytes | None, kind: str) -> str:
    below = '<span class="blank">what the others are compared with</span>'
    if difference is not None:
        said = f"difference of {escape(alt)} from the full run"
        below = f'<img class="diff" src="{_uri(difference)}" alt="{said}" loading="lazy">'
    return (
        f'<figure class="{kind}"><img src="{_uri(picture)}" alt="{escape(alt)}" loading="lazy">{below}'
        f"<figcaption>{escape(title)}<small>{escape(note)}</small></figcaption></figure>"
    )


def _ours_first(comparison: Comparison, budget: int) -> list[Entry]:
    return sorted(comparison.at(budget), key=lambda entry: entry.method != comparison.ours)


def _look(folder: Path, side: int, method: str, budget: int, number: int) -> Image.Image:
    """A kept picture, made no larger than it will be seen; a grey field where it was removed."""
    try:
        found = Image.open(picture(folder, method, budget, number)).convert("RGB")
    except OSError:
        return Image.new("RGB", (64, 64), "#888888")
    found.thumbnail((side, side), Image.Resampling.LANCZOS)
    return found


def _difference(picture: Image.Image, reference: Image.Image) -> Image.Image:
    if picture.size != reference.size:
        picture = picture.resize(reference.size)
    red, green, blue = ImageChops.difference(picture, reference).split()
    return ImageChops.lighter(ImageChops.lighter(red, green), blue).point([min(255, AMPLIFIED * v) for v in range(256)])


def _pair(picture: Image.Image, reference: Image.Image) -> tuple[bytes, bytes]:
    return _encode(picture), _encode(_difference(picture, reference))


def _encode(picture: Image.Image) -> bytes:
    memory = io.BytesIO()
    picture.save(memory, "WEBP", quality=84, method=4)
    return memory.getvalue()


def _uri(data: bytes) -> str:
    return f"data:image/webp;base64,{base64.b64encode(data).decode()}"


def strips(comparison: Comparison, budget: int, looks: dict[str, Style]) -> str:
    """Masks one above the other; where samples differ, a step is as dark as the share that computed it."""
    rows = [_strip(comparison, entry, looks[entry.method].colour) for entry in _ours_first(comparison, budget)]
    return f'<div class="strips">{"".join(rows)}</div>'


def _strip(comparison: Comparison, entry: Entry, colour: str) -> str:
    steps = len(entry.usual_mask)
    shares = [sum(mask.bits[k] for mask in entry.masks) / len(entry.masks) for k in range(steps)]
    boxes = "".join(
        f'<rect x="{k + 0.06:.2f}" width="0.88" height="1" opacity="{share:.2f}"><title>step {k}: computed in '
        f"{share:.0%} of the samples</title></rect>"
        for k, share in enumerate(shares)
        if share
    )
    several = len(set(entry.masks))
    note = f"{several} masks" if several > 1 else "one mask" if steps == comparison.steps else f"its own {steps} steps"
    computed = ", ".join(str(k) for k, share in enumerate(shares) if share >= 0.5)
    return (
        f'<div class="{colour}"><span>{escape(entry.title)}</span>'
        f'<svg viewBox="0 0 {steps} 1" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(entry.title)} computes steps {computed}">'
        f'<rect class="ground" width="{steps}" height="1"/>{boxes}</svg><small>{note}</small></div>'
    )


def spreads(comparison: Comparison, budget: int, looks: dict[str, Style]) -> str:
    """Calls and time of every sample as a dot: what can be promised beforehand, and what cannot."""
    entries = _ours_first(comparison, budget)
    most = max(max(entry.calls) for entry in entries) * 1.08
    times = {entry.method: [100 * seconds / entry.full_latency for seconds in entry.seconds] for entry in entries}
    longest = max(max(shares) for shares in times.values()) * 1.08
    head = "<span></span><b>model calls</b><b>time, in % of a full run</b>"
    rows = ""
    for entry in entries:
        dots = _dots(entry.calls, most, budget / most, "{:g} calls") + _dots(
            times[entry.method], longest, None, "{:.0f} %"
        )
        rows += f'<div class="{looks[entry.method].colour}"><span>{escape(entry.title)}</span>{dots}</div>'
    return f'<div class="spreads"><div class="head">{head}</div>{rows}</div>'


def _dots(values: Sequence[float], end: float, target: float | None, form: str) -> str:
    low, high = min(values), max(values)
    text = form.format(low) if low == high else f"{form.format(low).split()[0]} to {form.format(high)}"
    line = f'<u style="left:{100 * target:.1f}%"></u>' if target is not None else ""
    bar = f'<s style="left:{100 * low / end:.1f}%;width:{100 * (high - low) / end:.1f}%"></s>'
    dots = "".join(f'<i style="left:{100 * value / end:.1f}%"></i>' for value in values[:200])
    return f'<span class="dots" title="{text}">{line}{bar}{dots}</span><em>{text}</em>'


def table(comparison: Comparison) -> str:
    """The paper's Table 1 of this comparison: best bold, second best underlined, tail and worst small below."""
    names = ["calls", "latency (s)", "speed-up"]
    names += [f"{m.title} {'↑' if m.higher else '↓'}" for m in comparison.measures]
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("method", *names))
    blocks = [f"<tbody>{_row(comparison, comparison.full)}</tbody>"]
    for budget in comparison.budgets:
        rows = "".join(_row(comparison, entry) for entry in comparison.at(budget))
        span = len(names) + 1
        blocks.append(
            f'<tbody><tr><th class="group" scope="rowgroup" colspan="{span}">{budget} calls</th></tr>{rows}</tbody>'
        )
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead>{"".join(blocks)}</table></div>'


def _row(comparison: Comparison, entry: Entry) -> str:
    tails: Iterable[str] = [
        f"<small>{measure.written(found.tail)} / {measure.written(found.worst)}</small>"
        if (found := entry.summed(measure)) is not None
        else ""
        for measure in comparison.measures
    ]
    wraps = {1: "<b>{}</b>", 2: "<u>{}</u>"}
    written = [wraps.get(cell.rank, "{}").format(escape(cell.text)) for cell in cells(comparison, entry)]
    below = ["", f"<small>{min(entry.seconds):.3g}-{max(entry.seconds):.3g}</small>", "", *tails]
    columns = "".join(f"<td>{value}{small}</td>" for value, small in zip(written, below, strict=True))
    kind = ' class="mine"' if entry.method == comparison.ours else ""
    knob = f"<small>{escape(entry.knob)}</small>" if entry.knob else ""
    return f'<tr{kind}><th scope="row">{escape(entry.title)}{knob}</th>{columns}</tr>'
