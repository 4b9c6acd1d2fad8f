"""Charts of the page, as SVG written by hand: nothing to load, and values to read where the pointer rests."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate, pairwise

from budcache.comparison.result import Comparison, Measure, Tried

__all__ = ["Style", "convergence", "curve", "key", "styles"]

# The same chart twice: text in an SVG shrinks with it, so a phone gets one that was drawn narrow.
SIZES = {"wide": (880, 400), "narrow": (350, 300)}
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 16, 40
SHAPES = ("circle", "square", "diamond", "triangle")
LETTER = 8.5  # pixels, a bold digit
MOST_DOTS = 1200  # of a long search; the lines lose nothing
COLOURS = 12  # that the style sheet has for others
Point = tuple[float, float]
CORNERS: dict[str, list[Point]] = {
    "square": [(-1, -1), (1, -1), (1, 1), (-1, 1)],
    "diamond": [(0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0)],
    "triangle": [(0, -1.3), (1.2, 0.9), (-1.2, 0.9)],
}


@dataclass(frozen=True)
class Style:
    """How a method looks in every chart: a class of the style sheet, and a shape for those who see no colours."""

    colour: str
    shape: str
    strong: bool = False


def styles(comparison: Comparison) -> dict[str, Style]:
    """Ours strong, our plain variant related to it, every other in a colour of its own."""
    found, number = dict[str, Style](), 0
    for name in comparison.methods:
        if name == comparison.ours:
            found[name] = Style("ours", "circle", strong=True)
        elif name == "budcache-plain":
            found[name] = Style("near", "circle")
        else:
            found[name] = Style(f"c{number % COLOURS}", SHAPES[(number + number // COLOURS) % len(SHAPES)])
            number += 1
    return found


def curve(comparison: Comparison, measure: Measure) -> str:
    """A metric over the model calls that were really made, a line a method."""
    looks = styles(comparison)
    lines: dict[str, list[tuple[float, float, str]]] = {}
    for entry in comparison.entries:
        found = entry.summed(measure)
        if found is None or entry.method not in looks:
            continue
        tail, note = measure.written(found.tail), measure.written(found.mean) + f" {measure.unit}".rstrip()
        note = f"{entry.title}: {note} at {entry.mean_calls:.3g} calls, bad tail {tail}, {entry.speedup:.2f}x faster"
        lines.setdefault(entry.method, []).append((entry.mean_calls, found.mean, note))
    if not lines:
        return ""
    full = comparison.full.summed(measure)
    every = [point for line in lines.values() for point in line]
    heights = [y for _, y, _ in every] + ([full.mean] if full else [])

    def draw(width: int, height: int) -> str:
        field = _Field(width, height, [x for x, _, _ in every], heights)
        parts = [field.grid("model calls per sample", f"{measure.title} {measure.unit}".strip())]
        if full is not None:
            y = field.y(full.mean)
            parts.append(f'<line class="full" x1="{LEFT}" x2="{width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        # Ours comes last, so that it lies above the others.
        for name in sorted(lines, key=lambda name: looks[name].strong):
            parts.append(_series(field, sorted(lines[name]), looks[name], measure))
        return "".join(parts)

    return _both(draw, f"{measure.title} over model calls of {len(lines)} methods; the table below has the numbers.")


def _series(field: _Field, points: Sequence[tuple[float, float, str]], look: Style, measure: Measure) -> str:
    at = [(field.x(x), field.y(y)) for x, y, _ in points]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in at)
    drawn, free = [f'<path class="line" d="{path}"/>'], math.inf
    for (x, y), (_, value, note) in reversed(list(zip(at, points, strict=True))):
        label, room = "", LETTER * len(measure.written(value)) / 2
        if look.strong and x + room < free:  # from the right, as long as labels do not touch
            label, free = f'<text x="{x:.1f}" y="{y - 11:.1f}">{measure.written(value)}</text>', x - room
        spot = f'<circle class="touch" cx="{x:.1f}" cy="{y:.1f}" r="13"/>'
        drawn.append(f"<g><title>{escape(note)}</title>{spot}{_mark(x, y, look)}{label}</g>")
    return f'<g class="series {look.colour}{" strong" if look.strong else ""}">{"".join(drawn)}</g>'


def key(titles: Mapping[str, str], looks: Mapping[str, Style]) -> str:
    """The legend, as text beside the chart: it wraps, and never lies over a line."""
    items = ""
    for name, title in titles.items():
        sign = f'<path class="line" d="M1 7H25"/>{_mark(13, 7, looks[name])}'
        kind = f"{looks[name].colour}{' strong' if looks[name].strong else ''}"
        items += f'<li class="{kind}"><svg width="26" height="14" aria-hidden="true">{sign}</svg>{escape(title)}</li>'
    return f'<ul class="key">{items}</ul>'


def convergence(history: Sequence[Tried], budgets: Sequence[int]) -> str:
    """The best loss so far of the compared budgets over the calls spent: how fast the search found them."""
    every = [(step.calls, math.log10(step.loss)) for step in history if step.loss > 0]
    lines: dict[int, list[Point]] = {}
    for budget in budgets:
        steps = [step for step in history if step.budget == budget and step.loss > 0]
        lowest = accumulate((step.loss for step in steps), min)
        line = [(step.calls, math.log10(loss)) for step, loss in zip(steps, lowest, strict=True)]
        if line:
            # Only where it falls, and on to the end: what was found stays found.
            falls = [line[0], *(new for old, new in pairwise(line) if new[1] < old[1])]
            lines[budget] = [*falls, (max(x for x, _ in every), falls[-1][1])]
    if not lines:
        return ""

    def draw(width: int, height: int) -> str:
        field = _Field(width, height, [x for x, _ in every], [y for _, y in every], powers=True)
        parts = [field.grid("sample-calls spent", "loss")]
        spaced = every[:: 1 + len(every) // MOST_DOTS]
        dots = "".join(f'<circle cx="{field.x(x):.1f}" cy="{field.y(y):.1f}" r="1.8"/>' for x, y in spaced)
        parts.append(f'<g class="dots">{dots}</g>')
        for number, (budget, line) in enumerate(lines.items()):
            (x, y), (end, last) = ((field.x(x), field.y(y)) for x, y in (line[-2], line[-1]))
            path = f"M{field.x(line[0][0]):.1f} {field.y(line[0][1]):.1f}"
            path += "".join(f"H{field.x(x):.1f}V{field.y(y):.1f}" for x, y in line)
            note = f"{budget} calls: best loss {10 ** line[-2][1]:.3g} after {line[-2][0]:.0f} sample-calls"
            share = (number + 1) / len(lines)
            parts.append(
                f'<g class="rung" style="opacity:{0.4 + 0.6 * share:.2f}"><title>{note}</title>'
                f'<path class="line" d="{path}"/><circle cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>'
                f'<text x="{end + 5:.1f}" y="{last + 4:.1f}">{budget}</text></g>'
            )
        return "".join(parts)

    return _both(draw, f"The best loss of {len(lines)} budgets falls while masks are scored.")


class _Field:
    """Where values lie in a chart of a given size."""

    def __init__(self, width: int, height: int, xs: Sequence[float], ys: Sequence[float], powers: bool = False) -> None:
        self.width, self.height, self.powers = width, height, powers
        slack_x, slack_y = ((max(v) - min(v)) * 0.05 or 1.0 for v in (xs, ys))
        self.low_x, self.high_x = min(xs) - slack_x, max(xs) + slack_x
        self.low_y, self.high_y = min(ys) - slack_y, max(ys) + 1.6 * slack_y

    def x(self, value: float) -> float:
        return LEFT + (value - self.low_x) / (self.high_x - self.low_x) * (self.width - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return self.height - BOTTOM - (value - self.low_y) / (self.high_y - self.low_y) * (self.height - TOP - BOTTOM)

    def grid(self, below: str, beside: str) -> str:
        """Lines, numbers and what they count."""
        base, parts = self.height - BOTTOM, list[str]()
        for value in ticks(self.low_y, self.high_y, self.height // 55):
            y = self.y(value)
            written = f"{10**value:.1g}" if self.powers else f"{value:.10g}"
            parts.append(f'<line x1="{LEFT}" x2="{self.width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text class="left" x="{LEFT - 7}" y="{y + 4:.1f}">{written}</text>')
        for value in ticks(self.low_x, self.high_x, self.width // 75):
            if value >= 0:
                parts.append(f'<text x="{self.x(value):.1f}" y="{base + 17}">{value:.10g}</text>')
        parts.append(
            f'<text class="name" x="{(LEFT + self.width - RIGHT) / 2:.0f}" y="{self.height - 5}">{below}</text>'
        )
        parts.append(f'<text class="name start" x="2" y="{TOP - 5}">{escape(beside)}</text>')
        return f'<g class="grid">{"".join(parts)}</g>'


def ticks(low: float, high: float, wanted: int) -> list[float]:
    """Round values between two ends, about as many as wanted."""
    rough = (high - low) / max(1, wanted)
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * part for part in (1, 2, 5, 10) if power * part >= rough * 0.999)
    return [round(step * n, 10) for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _mark(x: float, y: float, look: Style) -> str:
    size = 5.0 if look.strong else 3.8
    if look.shape == "circle":
        return f'<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="{size}"/>'
    points = " ".join(f"{x + size * dx:.1f},{y + size * dy:.1f}" for dx, dy in CORNERS[look.shape])
    return f'<polygon class="mark" points="{points}"/>'


def _both(draw: Callable[[int, int], str], label: str) -> str:
    return "".join(
        f'<svg class="chart {name}" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">'
        f"{draw(width, height)}</svg>"
        for name, (width, height) in SIZES.items()
    )
