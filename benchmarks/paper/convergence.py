"""Convergence of the search from two starts: annealing as circles, climbing as triangles, the best so far as a line.

Algorithms 1 and 2 as printed start once from uniform spacing and once from a random mask; the published code starts
from two random ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from common import Lab
from published import CONVERGENCE_SOURCE
from telling import Claim, Table

from budcache.events import Scored
from budcache.report import plots

NEAR = 0.05  # losses that differ by less count as "nearly identical"
COLOURS = ("#2f6fed", "#e0912f")


def main(argv: Sequence[str] | None = None) -> None:
    lab = Lab("convergence", __doc__ or "", argv, budgets=((9,), (3,)))
    budget = lab.budgets[0]
    histories = {
        "as printed": lab.annealed("anneal-r2-sa100", budget).history,
        "as published": lab.published(budget).history,
    }
    starts = {"as printed": ("uniform", "random"), "as published": ("random", "random again")}
    runs = {name: dict(zip(starts[name], trials(history), strict=False)) for name, history in histories.items()}
    rows, claims = [], list[Claim]()
    for name, found in runs.items():
        ends = {start: landmarks(run) for start, run in found.items()}
        rows += [[name, start, *values] for start, values in ends.items()]
        claims += about(name, ends)
    columns = ["search", "start", "new masks", "loss at the start", "best after annealing", "best in the end"]
    panels = [lambda axes, found=found, name=name: draw(axes, found, name) for name, found in runs.items()]
    figure = plots.save(lab.folder / "convergence.png", *panels)
    title = f"Two starts at {budget} calls; {CONVERGENCE_SOURCE} shows curves, not numbers"
    lab.report([Table(title, columns, rows)], claims, figures=[figure], learned=0, tuned=0)


def trials(history: Sequence[Scored]) -> list[list[Scored]]:
    """A history restart by restart: each begins to anneal again."""
    found: list[list[Scored]] = []
    for step in history:
        if not found or (step.phase == "anneal" and found[-1][-1].phase != "anneal"):
            found.append([])
        found[-1].append(step)
    return found


def landmarks(run: Sequence[Scored]) -> tuple[int, float, float, float]:
    """How many masks were scored; the loss of the first, and the lowest after annealing and in the end."""
    annealed = min(step.loss for step in run if step.phase == "anneal")
    return sum(step.new for step in run), run[0].loss, annealed, min(step.loss for step in run)


def about(name: str, ends: dict[str, tuple[int, float, float, float]]) -> list[Claim]:
    """What the paper says of the two curves."""
    _, first, annealed, last = zip(*ends.values(), strict=True)
    apart = [abs(values[0] - values[-1]) / min(values) for values in (first, annealed, last)]
    numbers = f"{apart[0]:.0%} apart at the start, {apart[1]:.0%} after annealing, {apart[2]:.1%} in the end"
    same = {"the ends": apart[2] <= NEAR}
    lower = {f"{start}: annealing": values[2] < values[1] for start, values in ends.items()}
    lower |= {f"{start}: climbing": values[3] < values[2] for start, values in ends.items()}
    return [
        Claim("Figure 5", f"From both starts the search {name} ends at nearly the same loss", same, numbers),
        Claim("Section 4.4", f"Annealing {name} lowers the loss from both starts, climbing lowers it further", lower),
    ]


def draw(axes: Any, runs: dict[str, list[Scored]], name: str) -> None:
    for colour, (start, run) in zip(COLOURS, runs.items(), strict=False):
        for phase, marker in (("anneal", "o"), ("climb", "^")):
            at = [i for i, step in enumerate(run) if step.phase == phase]
            axes.scatter(at, [run[i].loss for i in at], s=12, marker=marker, color=colour, alpha=0.35, linewidths=0)
        axes.plot(list(accumulate((step.loss for step in run), min)), color=colour, label=f"from {start}")
    axes.set(title=f"the search {name}", xlabel="masks asked for", ylabel="loss", yscale="log")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)


if __name__ == "__main__":
    main()
