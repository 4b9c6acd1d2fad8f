"""A comparison as one HTML file: opens from disk, loads nothing, reads well on a phone and in the dark."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from budcache.comparison.result import Comparison
from budcache.comparison.table import NOISY
from budcache.comparison.verdict import headline, main_budget
from budcache.report import svg, view
from budcache.report.charts import Scoring, convergence, curve, strips, styles
from budcache.report.gallery import AMPLIFIED, gallery, ours_first
from budcache.report.rendering import render
from budcache.storage.files import write_text

__all__ = ["page", "write"]


def write(comparison: Comparison, folder: str | os.PathLike[str], path: str | os.PathLike[str]) -> Path:
    """Write the page; the file is replaced whole or not at all."""
    return write_text(path, page(comparison, folder))


def page(comparison: Comparison, folder: str | os.PathLike[str]) -> str:
    """The whole page as text; pictures are taken from the comparison's folder."""
    budgets = [budget for budget in comparison.budgets if comparison.at(budget)]
    curves = [(measure.title, found) for measure in comparison.measures if (found := curve(comparison, measure))]
    history = [Scoring(step.budget, step.loss, step.calls, step.phase) for step in comparison.history]
    searched = convergence(history, comparison.budgets, "sample-calls spent")
    pictures = gallery(comparison, Path(folder))

    def panels(content: Callable[[int], Any]) -> list[tuple[str, Any]]:
        return [(f"{budget} calls", content(budget)) for budget in budgets]

    model = comparison.origin.model or comparison.origin.pipeline or "a pipeline"
    return render(
        "page.html.jinja",
        title=f"{len(comparison.methods)} ways to fewer model calls, on {model}",
        headline=headline(comparison),
        tiles=view.tiles(comparison),
        chosen=budgets.index(main_budget(comparison)) if main_budget(comparison) in budgets else 0,
        most_tabs=max(len(curves), len(budgets)),
        looks=styles(comparison),
        curves=[(title, svg.placed(found)) for title, found in curves],
        legend=svg.legend(_in_order(comparison, curves[0][1].lines)) if curves else [],
        amplified=AMPLIFIED,
        pictures=panels(pictures.__getitem__),
        strips=panels(lambda budget: _with_looks(comparison, budget)),
        spreads=panels(lambda budget: view.spreads(comparison, budget)),
        convergence=svg.placed(searched) if searched else None,
        columns=view.columns(comparison),
        full=view.rows(comparison, [comparison.full]),
        blocks=panels(lambda budget: view.rows(comparison, comparison.at(budget))),
        noisy=NOISY if any(entry.speed.noisy and entry.speed.pairs for entry in comparison.entries) else "",
        warnings=comparison.warnings,
        left_out=view.left_out(comparison),
        facts=view.facts(comparison),
        prompts=comparison.prompts,
        code=view.code(comparison, view.ladder_file(comparison, Path(folder))),
        version=comparison.origin.versions.get("budcache", ""),
    )


def _in_order(comparison: Comparison, lines: Any) -> list[Any]:
    """Lines in the order of the table; the chart has them in another, so that ours lies above."""
    titles = list(comparison.methods.values())
    return sorted(lines, key=lambda line: titles.index(line.title))


def _with_looks(comparison: Comparison, budget: int) -> list[Any]:
    entries, looks = ours_first(comparison, budget), styles(comparison)
    return [(looks[e.method].colour, strip) for e, strip in zip(entries, strips(comparison, entries), strict=True)]
