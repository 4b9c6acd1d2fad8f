"""A ladder as one SVG file: the masks as strips, and the quality over model calls with its standard error.

It stands alone, as a card shows it: no style sheet, no script, no font, and colours for light and dark pages.
"""

from __future__ import annotations

from collections.abc import Sequence

from budcache.policy import Ladder, Policy
from budcache.report.chart import OURS, Chart, Line, Mark, Style
from budcache.report.rendering import render
from budcache.report.strips import strip
from budcache.report.svg import placed

__all__ = ["draw"]

MOST = 24  # strips; a longer ladder is shown with some rungs left out


def draw(ladder: Ladder) -> str:
    """The picture, as the text of an SVG file."""
    shown = _shown(ladder.rungs)
    strips = [strip([rung.mask], str(rung.budget), _figure(rung)) for rung in shown]
    chart = _curve(ladder)
    about = f"Masks of {len(ladder)} budgets of {ladder.steps} steps" + ("" if chart is None else f". {chart.about}")
    drawn = None if chart is None else {"data": chart, "it": dict(placed(chart).sizes)["wide"]}
    return render("ladder.svg.jinja", about=about, strips=strips, steps=ladder.steps, chart=drawn)


def _shown(rungs: Sequence[Policy]) -> list[Policy]:
    """All rungs, or as many as fit, the first and the last among them."""
    if len(rungs) <= MOST:
        return list(rungs)
    return [rungs[round(place * (len(rungs) - 1) / (MOST - 1))] for place in range(MOST)]


def _figure(rung: Policy) -> str:
    return (rung.quality.short if rung.quality is not None else None) or "-"


def _curve(ladder: Ladder) -> Chart | None:
    """PSNR over calls; None where there is no line to draw. Figures of fitted samples have no standard error."""
    known = {rung.budget: rung.quality for rung in ladder if rung.quality is not None}
    fitted = any(quality.used_to_fit for quality in known.values())
    marks = tuple(
        Mark(calls, quality.psnr, None if fitted else quality.psnr_error, f"{quality.psnr:.1f}")
        for calls, quality in known.items()
        if quality.psnr is not None
    )
    if len(marks) < 2:
        return None
    how = "of the samples that it was fitted on: new ones do worse" if fitted else "with its standard error"
    return Chart(
        x="model calls per sample",
        y=f"PSNR to the full run in dB, {how}",
        lines=(Line("", Style(OURS, strong=True), marks),),
        dots={},
        about=f"The PSNR to the full run, {how}, rises from {marks[0].label} to {marks[-1].label} dB.",
    )
