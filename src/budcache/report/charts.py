"""What the charts of a comparison show: points and labels, prepared once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate, pairwise
from typing import NamedTuple

from budcache.comparison.entry import CLOSE, Entry, Measure
from budcache.comparison.result import Comparison
from budcache.comparison.verdict import best_other, main_budget
from budcache.report.chart import OURS, Chart, Line, Mark, Style, ticks
from budcache.report.strips import Strip, strip
from budcache.wording import several

__all__ = [
    "Chart",
    "Line",
    "Mark",
    "Scoring",
    "Style",
    "convergence",
    "curve",
    "lines",
    "strips",
    "styles",
    "ticks",
]

# Six shapes and five dashes: thirty methods differ in one of them at least, whoever sees no colours.
SHAPES = ("circle", "square", "diamond", "triangle", "wedge", "cross")
DASHES = ("7 3", "2 3", "10 3 2 3", "5 5", "12 3")
COLOURS = 16  # as many as `colours.css` has
NEAR = "near"


# Quality over model calls


def styles(comparison: Comparison) -> dict[str, Style]:
    """Ours strong, our plain variant related to it and solid as well, every other dashed in a colour of its own."""
    found, number = dict[str, Style](), 0
    for name in comparison.methods:
        if name == comparison.ours:
            found[name] = Style(OURS, strong=True)
        elif name == "budcache-plain":
            found[name] = Style(NEAR)
        else:
            found[name] = _other(number)
            number += 1
    return found


def _other(number: int) -> Style:
    return Style(f"c{number % COLOURS}", SHAPES[number % len(SHAPES)], DASHES[number % len(DASHES)])


def curve(comparison: Comparison, measure: Measure) -> Chart | None:
    """A metric over the model calls that were really made, a line for each method; None if nothing was measured."""
    marks: dict[str, list[Mark]] = {}
    for entry in comparison.entries:
        found = entry.summed(measure)
        if found is not None and entry.method in comparison.methods:
            written = measure.written(found.mean)
            error = "" if found.error is None else f" ± {measure.written(found.error)}"
            note = f"{entry.title}: {written}{error} {measure.unit}".rstrip() + f" at {entry.mean_calls:.3g} calls, "
            note += f"{measure.tail_title} {measure.written(found.tail)}, worst {measure.written(found.worst)}"
            label = measure.spoken(found.mean).removesuffix(measure.unit).rstrip()
            marks.setdefault(entry.method, []).append(Mark(entry.mean_calls, found.mean, found.error, label, note))
    if not marks:
        return None
    looks, full, alone = styles(comparison), comparison.full.summed(measure), len(comparison.budgets) == 1
    rival = best_other(comparison, main_budget(comparison), measure)
    drawn = []
    for name, those in marks.items():
        method, calls = comparison.methods[name], those[0].x
        if alone and abs(calls - comparison.budgets[0]) > CLOSE:  # side by side, its place does not tell
            method += f", {calls:.3g} calls"
        drawn.append(Line(method, looks[name], tuple(sorted(those)), rival=rival is not None and name == rival.method))
    where = f"at {comparison.budgets[0]} model calls" if alone else "over model calls"
    return Chart(
        x=f"{comparison.budgets[0]} model calls per sample" if alone else "model calls per sample",
        y=f"{measure.title} {measure.unit}".strip(),
        lines=tuple(sorted(drawn, key=lambda line: line.style.strong)),
        dots={},
        level=None if full is None else full.mean,
        alone=alone,
        about=f"{measure.title} {where} of {several(len(marks), 'method')}; the table below has the numbers.",
        places=comparison.budgets,
    )


def lines(curves: Mapping[str, Mapping[int, float]], ours: str, y: str) -> Chart:
    """Named curves of a measure over model calls; ours stands out."""
    others = [name for name in curves if name != ours]
    drawn = [
        Line(
            name,
            Style(OURS, strong=True) if name == ours else _other(others.index(name)),
            tuple(Mark(calls, value) for calls, value in values.items()),
        )
        for name, values in curves.items()
    ]
    return Chart(x="model calls per sample", y=y, lines=tuple(drawn), dots={})


# Convergence of a search


class Scoring(NamedTuple):
    """A mask that was scored: its calls, its loss, where it stands in the search, and the phase."""

    budget: int
    loss: float
    at: int
    phase: str


def convergence(history: Iterable[Scoring], budgets: Iterable[int], unit: str) -> Chart | None:
    """All scored masks as points, and for each budget the best loss so far; None if nothing was scored.

    `unit` is what the search has spent, such as "sample-calls".
    """
    known = [step for step in history if step.loss > 0]  # a loss of 0 has no place on a logarithmic scale
    dots: dict[str, list[tuple[float, float]]] = {}
    for step in known:
        dots.setdefault(step.phase, []).append((step.at, step.loss))
    drawn = []
    for budget in budgets:
        mine = [step for step in known if step.budget == budget]
        lows = accumulate((step.loss for step in mine), min)
        best = [
            Mark(step.at, low, note=f"{budget} calls: best loss {low:.3g} after {step.at} {unit}")
            for step, low in zip(mine, lows, strict=True)
        ]
        if best:
            # Only where it falls, and on to the end: what was found stays found.
            falls = [best[0], *(new for old, new in pairwise(best) if new.y < old.y)]
            end = Mark(max(step.at for step in known), falls[-1].y, label=f"{budget} calls")
            drawn.append(Line(f"best of {budget} calls", Style(OURS), (*falls, end)))
    if not drawn:
        return None
    about = f"The best loss of {len(drawn)} budgets falls while masks are scored."
    return Chart(
        x=f"{unit} spent", y="loss", lines=tuple(drawn), dots=dots, logarithmic=True, falling=True, about=about
    )


# Masks


def strips(comparison: Comparison, entries: Iterable[Entry]) -> list[Strip]:
    """The masks of some entries, of two settings those of the nearer one, with how many there are."""
    found = []
    for entry in entries:
        shown = entry.counting[0]
        masks, longest = len(set(shown.branches or shown.masks)), max(map(len, shown.masks))
        one = "a mask for each guidance branch" if shown.branches else "one mask"
        one = one if longest >= len(comparison.full.usual_mask) else f"its own {longest} steps"
        found.append(strip(shown.made, entry.title, f"{masks} masks" if masks > 1 else one))
    return found
