"""Plots as PNG: charts as `charts.py` prepares them, and blend weights, noise levels and losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from budcache.events import Scored, Updated
from budcache.mask import Mask
from budcache.policy import Policy
from budcache.report.charts import Chart, Scoring, lines
from budcache.report.charts import convergence as prepared
from budcache.report.strips import strip
from budcache.storage.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes


__all__ = ["convergence", "draw", "losses", "masks", "quality", "save", "sigmas", "weights"]

OURS, OTHERS = "#2f6fed", ("#8a94a8", "#e0912f", "#0f9d76", "#b0508f", "#7a5fd0")
SHADES = ("#9aa3b2", "#c9b38c", "#8fb8ab", "#b79fc4")  # lines stand out, points stay behind
PHASES = {"anneal": "o", "climb": "^", "polish": "^", "ladder": "s"}
SHAPES = {"circle": "o", "square": "s", "diamond": "D", "triangle": "^", "wedge": "v", "cross": "P"}


def draw(axes: Axes, chart: Chart) -> None:
    """A chart as `charts.py` has prepared it."""
    for (phase, points), shade in zip(chart.dots.items(), cycle(SHADES), strict=False):
        marker = PHASES.get(phase.removesuffix(", fitted"), "o")
        xs, ys = zip(*points, strict=True)
        axes.scatter(xs, ys, s=14, marker=marker, color=shade, label=phase)
    others = cycle(OTHERS)
    for line in chart.lines:
        if chart.falling:
            look: dict[str, Any] = {"drawstyle": "steps-post", "linewidth": 1.5}
        else:
            look = {"color": OURS if line.style.strong else next(others), "markersize": 4}
            look |= {"marker": SHAPES[line.style.shape], "linewidth": 2.5 if line.style.strong else 1.5}
            if line.style.dash:
                look["dashes"] = [float(length) for length in line.style.dash.split()]
        xs, ys = zip(*((mark.x, mark.y) for mark in line.marks), strict=True)
        (drawn,) = axes.plot(xs, ys, label=line.title, **look)
        if any(mark.error for mark in line.marks):
            low, high = ([mark.y + sign * (mark.error or 0.0) for mark in line.marks] for sign in (-1, 1))
            axes.fill_between(xs, low, high, color=drawn.get_color(), alpha=0.15, linewidth=0)
    if chart.level is not None:
        axes.axhline(chart.level, color=OTHERS[0], linestyle=":")
    if chart.logarithmic:
        axes.set_yscale("log")
    axes.set_xlabel(chart.x)
    axes.set_ylabel(chart.y)
    axes.grid(alpha=0.25)


def quality(
    axes: Axes, curves: Mapping[str, Mapping[int, float]], ours: str, label: str = "PSNR to the full run (dB)"
) -> None:
    """A curve per method of a measure over model calls; ours stands out."""
    draw(axes, lines(curves, ours, label))
    axes.legend(frameon=False)


def convergence(axes: Axes, history: Sequence[Scored]) -> None:
    """The paper's convergence figure: annealing as circles, climbing as triangles, the best so far as a line."""
    masks: dict[int, set[Mask]] = {}
    for step in history:
        masks.setdefault(step.mask.budget, set()).add(step.mask)
    # A budget of a single mask was on the way to others, not searched for.
    budgets = sorted(budget for budget, those in masks.items() if len(those) > 1)
    steps = [Scoring(step.mask.budget, step.loss, at, step.phase) for at, step in enumerate(history)]
    found = prepared(steps, budgets, "masks scored")
    if found is not None:
        draw(axes, found)
        axes.legend(frameon=False, fontsize=8, ncols=2)


def masks(axes: Axes, rungs: Mapping[str, Mask]) -> None:
    """Masks as strips, one above the other: dark computes, light reuses."""
    found = [strip([mask], name) for name, mask in rungs.items()]
    axes.imshow([row.shares for row in found], cmap="Blues", vmin=-0.15, vmax=1.1, aspect="auto")
    axes.set_yticks(range(len(found)), labels=[row.title for row in found])
    axes.set_xlabel("step")
    axes.set_title("dark steps are computed, light ones reused", fontsize=9)
    axes.set_xticks([x - 0.5 for x in range(1, len(found[0].shares))], minor=True)
    axes.set_yticks([y - 0.5 for y in range(1, len(found))], minor=True)
    axes.grid(which="minor", color="white", linewidth=1)
    axes.tick_params(which="both", length=0)
    for side in axes.spines.values():
        side.set_visible(False)


def weights(axes: Axes, rungs: Mapping[str, Policy]) -> None:
    """The blend of each reused stretch: a row per policy, and at each computed step its weights, newest first."""
    import numpy as np

    blends = [policy.weights or tuple(row.outputs for row in policy.rows or ()) for policy in rungs.values()]
    most = max((len(row) for rows in blends for row in rows), default=1)
    table = np.full((len(rungs) * (most + 1) - 1, len(next(iter(rungs.values())).mask)), np.nan)
    for place, (policy, own) in enumerate(zip(rungs.values(), blends, strict=True)):
        rows = own or ((1.0,),) * policy.budget
        for step, row in zip(policy.mask.computed, rows, strict=True):
            for age, weight in enumerate(row):
                table[place * (most + 1) + age, step] = weight
    reach = max(float(np.nanmax(np.abs(table))), 1.0)
    picture = axes.imshow(table, cmap="RdBu_r", vmin=-reach, vmax=reach, aspect="auto", interpolation="nearest")
    axes.set_yticks([place * (most + 1) + (most - 1) / 2 for place in range(len(rungs))], labels=list(rungs))
    axes.set_xlabel("step")
    axes.set_title("weights of the newest output and those before it", fontsize=9)
    axes.tick_params(length=0)
    axes.figure.colorbar(picture, ax=axes, fraction=0.04, pad=0.02)
    for side in axes.spines.values():
        side.set_visible(False)


def sigmas(axes: Axes, reference: Sequence[float] | None, schedules: Mapping[str, Sequence[float] | None]) -> None:
    """Aligned noise levels and the reference; against it, their differences, which are small.

    A policy without levels of its own has no line, but its colour, so that colours are those of `losses`.
    """
    coloured = list(zip((OURS, *OTHERS) * len(schedules), schedules.items(), strict=False))
    own = [(colour, name, levels) for colour, (name, levels) in coloured if levels is not None]
    if reference is not None and own and all(len(levels) == len(reference) for _, _, levels in own):
        for colour, name, levels in own:
            moved = [a - b for a, b in zip(levels, reference, strict=True)]
            axes.plot(moved, "o-", color=colour, markersize=3, label=name)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_ylabel("aligned sigma minus reference")
        twin = axes.twinx()
        twin.plot(reference, color=OTHERS[0], linestyle=":", label="reference")
        twin.set_ylabel("reference sigma (dotted)")
    else:
        if reference is not None:
            axes.plot(list(reference), ":", color="black", label="reference")
        for colour, name, levels in own:
            axes.plot(list(levels), "o-", color=colour, markersize=3, label=name)
        axes.set_ylabel("sigma")
    if not own:
        axes.set_title("no levels of its own: the reference was not beaten", fontsize=9)
    axes.set_xlabel("step")
    axes.grid(alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8)


def losses(axes: Axes, updates: Mapping[str, Sequence[Updated]]) -> None:
    """Losses of an alignment, update by update, and on held-out samples from the start on."""
    for colour, (name, steps) in zip((OURS, *OTHERS) * len(updates), updates.items(), strict=False):
        axes.plot([step.number + 1 for step in steps], [step.loss for step in steps], ".", color=colour, alpha=0.35)
        seen = [(step.number, step.start) for step in steps if step.start is not None]
        seen += [(step.number + 1, step.held_out) for step in steps if step.held_out is not None]
        axes.plot(*zip(*seen, strict=True), "o-", color=colour, markersize=4, label=f"{name}, held out")
    axes.set_yscale("log")
    axes.set_xlabel("update")
    axes.set_ylabel("loss")
    axes.grid(alpha=0.25)
    if updates:
        axes.legend(frameon=False, fontsize=8)


def save(path: Path, *panels: Any, size: tuple[float, float] = (6.4, 4.2)) -> Path:
    """Draw panels, each a function of its axes, beside each other into a PNG or SVG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(size[0] * len(panels), size[1]), layout="constrained", dpi=140)
    FigureCanvasAgg(figure)
    for place, panel in enumerate(panels, 1):
        panel(figure.add_subplot(1, len(panels), place))
    with replacing(path) as temporary:
        figure.savefig(temporary)
    return path
