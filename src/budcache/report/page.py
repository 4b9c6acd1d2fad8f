"""A comparison as one HTML file: opens from disk, loads nothing, reads well on a phone and in the dark."""

from __future__ import annotations

import os
from html import escape
from pathlib import Path

from budcache.comparison.result import Comparison, Entry, Measure
from budcache.report.page_charts import convergence, curve, key, styles
from budcache.report.page_parts import AMPLIFIED, choices, gallery, spreads, strips, table, tabs
from budcache.storage.files import write_text

__all__ = ["headline", "page", "write"]


def write(
    comparison: Comparison, folder: str | os.PathLike[str], path: str | os.PathLike[str], ladder: str | None = None
) -> Path:
    """Write the page; the file is replaced whole or not at all."""
    return write_text(path, page(comparison, folder, ladder))


def page(comparison: Comparison, folder: str | os.PathLike[str], ladder: str | None = None) -> str:
    """The whole page as text; pictures are taken from the comparison's folder.

    Args:
        ladder: the name of our ladder's file, where it is not the one that a comparison leaves in its folder.
    """
    shown, looks = _shown(comparison), styles(comparison)
    at = comparison.budgets.index(shown)
    pictures = gallery(comparison, Path(folder))
    model = comparison.origin.model or comparison.origin.pipeline or "a pipeline"

    def per_budget(name: str, panels: dict[int, str]) -> str:
        return tabs(name, [(f"{budget} calls", body) for budget, body in panels.items()], at)

    curves = [(measure.title, drawn) for measure in comparison.measures if (drawn := curve(comparison, measure))]
    charted = tabs("metric", curves) + key(comparison.methods, looks) if curves else ""
    every = comparison.budgets
    parts = [
        _section(
            "Quality over model calls",
            "Each point is a method brought to a budget, placed where it really ended up. Rest on one to read it.",
            charted,
        ),
        _section(
            "Side by side",
            f"The same prompts from the same noise. Below each picture: what differs from the full run, {AMPLIFIED} "
            "times amplified, so an empty field is a perfect copy.",
            per_budget("picture", pictures),
        ),
        _section(
            "Which steps are computed",
            "From noise on the left to the picture on the right: a filled box calls the model, an empty one reuses. "
            "Where a method decides anew for every sample, a box is as dark as the share of samples that computed it.",
            per_budget("mask", {budget: strips(comparison, budget, looks) for budget in every}),
        ),
        _section(
            "What can be promised",
            "A dot for each sample. A policy makes the same calls for every input, a threshold finds out as it runs. "
            "The line marks the budget.",
            per_budget("spread", {budget: spreads(comparison, budget, looks) for budget in every}),
        ),
        _section(
            "How the search went",
            "One search serves all budgets: dots are the masks that it scored, lines the best so far with that many "
            "calls.",
            convergence(comparison.history, comparison.budgets),
        ),
        _section(
            "All numbers",
            "Best of each budget in bold, second best underlined, among those that kept to it. Small, the bad tail: "
            "the 5th percentile of samples from the bad side, then the worst; for latency the fastest and the slowest.",
            table(comparison) + _left_out(comparison),
        ),
        _section("How it was measured", "", _facts(comparison)),
        _section("Use it", "", _code(comparison, shown, ladder or _ladder(comparison, Path(folder)))),
    ]
    style = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")
    style += choices(max(len(curves), len(every)))
    title = f"{len(comparison.methods)} ways to fewer model calls, on {model}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body>"
        f"<header><p>{escape(title)}</p><h1>{escape(headline(comparison))}</h1>{_tiles(comparison, shown)}</header>"
        f"<main>{''.join(parts)}</main>"
        f"<footer>Made with budcache {escape(comparison.origin.versions.get('budcache', ''))}. This file loads "
        "nothing: it can be kept, sent and opened without a network.</footer></body></html>\n"
    )


def headline(comparison: Comparison) -> str:
    """The outcome in one sentence, also where it is not in our favour."""
    budget, measure = _shown(comparison), _main(comparison)
    ours = comparison.entry(comparison.ours, budget) if comparison.ours is not None else None
    found = ours.summed(measure) if ours is not None and measure is not None else None
    if ours is None or measure is None or found is None:
        budgets = ", ".join(map(str, comparison.budgets))
        return f"{len(comparison.methods)} methods at {budgets} of {comparison.steps} calls."
    said = f"{measure.title} {_with_unit(measure, found.mean)}"
    start = f"With {budget} instead of {comparison.steps} model calls {ours.title} reaches {said}"
    rival = _best(comparison, comparison.within(budget), measure)
    if rival is None:
        return f"{start}, {ours.speedup:.1f} times faster than the full run."
    best, name = rival
    gap = _with_unit(measure, abs(found.mean - best))
    ahead = (found.mean >= best) == measure.higher
    count = len(comparison.prompts)
    on = f"on {count} prompt{'s' if count > 1 else ''}"
    # Who is not there may well be better, and so may be who took more calls than agreed.
    kept = "" if rival == _best(comparison, comparison.at(budget), measure) else " that kept to the budget"
    than = f"{'better' if ahead else 'worse'} than the best of the others shown{kept}"
    return f"{start}, {gap} {than} ({name}), {on}."


def _best(comparison: Comparison, entries: list[Entry], measure: Measure) -> tuple[float, str] | None:
    """The best mean among other people's methods, and whose it is."""
    found = [
        (other.mean, entry.title)
        for entry in entries
        if entry.method != comparison.ours
        and not entry.method.startswith("budcache")
        and (other := entry.summed(measure)) is not None
    ]
    return (max if measure.higher else min)(found, default=None)


def _shown(comparison: Comparison) -> int:
    """The budget in the middle: neither the boldest nor the safest."""
    return comparison.budgets[len(comparison.budgets) // 2]


def _main(comparison: Comparison) -> Measure | None:
    return comparison.measures[0] if comparison.measures else None


def _with_unit(measure: Measure, value: float) -> str:
    return f"{value:.{min(measure.digits, 3) if measure.unit != 'dB' else 1}f} {measure.unit}".rstrip()


def _tiles(comparison: Comparison, budget: int) -> str:
    entry = comparison.entry(comparison.ours, budget) if comparison.ours is not None else None
    if entry is None:
        return ""
    calls = str(entry.calls[0]) if len(set(entry.calls)) == 1 else f"{min(entry.calls)}-{max(entry.calls)}"
    tiles = [
        (f"{comparison.steps} → {calls}", "model calls, for every sample"),
        (f"{entry.speedup:.1f}x", f"faster: {entry.latency:.2g} s instead of {entry.full_latency:.2g} s"),
    ]
    for measure in comparison.measures[:2]:
        found = entry.summed(measure)
        if found is not None:
            few = len(entry.calls) < 20  # of which 5 % would be less than one
            tail = (
                f"{measure.title}, mean of {len(entry.calls)} samples; the worst has {_with_unit(measure, found.worst)}"
                if few
                else f"{measure.title}; 95% of samples have {_with_unit(measure, found.tail)} or better"
            )
            tiles.append((_with_unit(measure, found.mean), tail))
    return "<ul>" + "".join(f"<li><b>{escape(big)}</b>{escape(small)}</li>" for big, small in tiles) + "</ul>"


def _section(title: str, lead: str, body: str) -> str:
    if not body:
        return ""
    return f"<article><h2>{escape(title)}</h2>{f'<p>{escape(lead)}</p>' if lead else ''}{body}</article>"


def _left_out(comparison: Comparison) -> str:
    if not comparison.left_out:
        return ""
    items = []
    for out in comparison.left_out:
        some = "" if out.budgets == comparison.budgets else f" at {', '.join(map(str, out.budgets))} calls"
        items.append(f"<li><b>{escape(out.title)}</b>{some}: {escape(out.reason)}</li>")
    return f'<h3>Left out</h3><ul class="out">{"".join(items)}</ul>'


def _facts(comparison: Comparison) -> str:
    origin = comparison.origin
    size = " x ".join(str(n) for n in (origin.width, origin.height, origin.frames) if n is not None)
    count, last = len(comparison.prompts), (comparison.seed or 0) + len(comparison.prompts) - 1
    facts = {
        "model": origin.model,
        "pipeline": " / ".join(filter(None, (origin.pipeline, origin.denoiser, origin.scheduler))),
        "full run": f"{comparison.steps} steps",
        "size": size,
        "guidance": origin.guidance,
        "measured on": f"{count} prompts, seeds {comparison.seed} to {last}, one sample at a time",
        "calibrated on": _learned_on(comparison),
        "latency": f"around the pipeline's call; full runs timed just before and after each method; "
        f"{comparison.device}, {comparison.threads} thread{'s' if comparison.threads != 1 else ''}, {comparison.dtype}",
        "made with": ", ".join(f"{name} {version}" for name, version in origin.versions.items()),
    }
    rows = "".join(f"<dt>{name}</dt><dd>{escape(str(value))}</dd>" for name, value in facts.items() if value)
    prompts = "".join(f"<li>{escape(prompt)}</li>" for prompt in comparison.prompts)
    return f"<dl>{rows}</dl><details><summary>The {count} prompts</summary><ol>{prompts}</ol></details>"


def _learned_on(comparison: Comparison) -> str:
    """How many prompts each was made on; what was only tuned is one group."""
    found: dict[str, int] = {}
    for entry in sorted(comparison.entries, key=lambda entry: entry.method != comparison.ours):
        if entry.learned_on is not None:
            found[entry.title if entry.knob is None else "the thresholds of others"] = entry.learned_on
    return "; ".join(f"{name}: {count} prompt{'s' if count > 1 else ''}" for name, count in found.items())


def _ladder(comparison: Comparison, folder: Path) -> str | None:
    """The file that has what is put forward: brought by the user, or left in the folder."""
    if comparison.ours is None:
        return None
    if comparison.ours in comparison.given:
        return comparison.ours.removeprefix("policy:")
    name = f"{comparison.ours}.ladder.json"
    return name if (folder / name).exists() else None


def _code(comparison: Comparison, budget: int, file: str | None) -> str:
    if file is None:
        return ""
    text = (
        f"import budcache\n\nwith budcache.applied(pipe, {file!r}, budget={budget}):\n"
        f"    image = pipe({comparison.prompts[0]!r}).images[0]  # {budget} model calls, whatever the prompt"
    )
    return f'<pre tabindex="0"><code>{escape(text)}</code></pre>'
