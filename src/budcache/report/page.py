"""A comparison as one HTML file: opens from disk, loads nothing, reads well on a phone, in the dark and on paper."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from budcache.comparison.result import Comparison
from budcache.comparison.table import notes
from budcache.comparison.verdict import headline, main_budget, why_this_budget
from budcache.report import promises, svg, view
from budcache.report.charts import Scoring, convergence, curve, strips, styles
from budcache.report.exports import packed, policy_file
from budcache.report.gallery import AMPLIFIED, gallery, ours_first
from budcache.report.per_prompt import per_prompt
from budcache.report.rendering import render, script
from budcache.storage.files import write_text

__all__ = ["page", "write"]

LIMIT = 2_900_000  # bytes; mail and chats take such a file
SCRIPTS = ("page.js", "charts.js", "pictures.js", "viewer.js")


def write(comparison: Comparison, folder: str | os.PathLike[str], path: str | os.PathLike[str]) -> Path:
    """Write the page; the file is replaced whole or not at all."""
    return write_text(path, page(comparison, folder))


def page(comparison: Comparison, folder: str | os.PathLike[str]) -> str:
    """The whole page as text; pictures are taken from the comparison's folder."""
    values = _values(comparison, Path(folder))
    bare = render("page.html.jinja", **values, gallery=None)
    if not comparison.methods:  # only the full run is drawn yet
        return bare
    pictures = gallery(comparison, Path(folder), LIMIT - len(bare.encode()))
    return render("page.html.jinja", **values, gallery=pictures)


def _values(comparison: Comparison, folder: Path) -> dict[str, Any]:
    """All that is on the page but the pictures."""
    budgets = [budget for budget in comparison.budgets if comparison.at(budget)]
    curves = [(measure, found) for measure in comparison.measures if (found := curve(comparison, measure))]
    history = [Scoring(step.budget, step.loss, step.calls, step.phase) for step in comparison.history]
    searched = convergence(history, comparison.budgets, "sample-calls")
    file = view.ladder_file(comparison, folder)
    kept = promises.kept(comparison, file, folder)

    policy = policy_file(folder, file)

    def panels(content: Callable[[int], Any]) -> list[tuple[str, Any]]:
        return [(f"{budget} calls", content(budget)) for budget in budgets]

    main = main_budget(comparison)
    model = comparison.origin.model or comparison.origin.pipeline or "a pipeline"
    count = len(comparison.methods)
    return {
        "model": model,
        "title": f"{count} way{'' if count == 1 else 's'} to fewer model calls, on {model}",
        "hero": view.hero(comparison),
        "headline": view.unbroken(headline(comparison)),
        "why": why_this_budget(comparison),
        "small_model": view.small_model(comparison),
        "budgets": budgets,
        "chosen": f"{main if main in budgets else min(budgets, default=main)} calls",
        "most_tabs": max(len(curves), len(budgets)),
        "looks": styles(comparison),
        "curves": [(each.title, (view.reading(comparison, each), svg.placed(found))) for each, found in curves],
        "between": any(len(entry.counting) > 1 for entry in comparison.entries),
        "amplified": AMPLIFIED,
        "ours": comparison.methods.get(comparison.ours or ""),
        "steps": comparison.steps,
        "per_prompt": [(title, found) for title, found in panels(lambda b: per_prompt(comparison, b)) if found],
        "strips": panels(lambda budget: _with_looks(comparison, budget)),
        "spreads": panels(lambda budget: promises.spreads(comparison, budget)),
        "timed": promises.timed(comparison),
        "kept": kept,
        "caution": promises.caution(kept),
        "convergence": svg.placed(searched) if searched else None,
        "columns": view.columns(comparison),
        "full": view.rows(comparison, [comparison.full]),
        "blocks": panels(lambda budget: view.rows(comparison, comparison.at(budget))),
        "notes": notes(comparison),
        "warnings": comparison.warnings,
        "settings": view.settings(comparison),
        "left_out": view.left_out(comparison),
        "facts": view.facts(comparison),
        "prompts": comparison.prompts,
        "code": view.code(comparison, file),
        "policy": policy is not None,
        "data": packed(comparison, policy),
        "script": script(*SCRIPTS),
        "version": comparison.origin.versions.get("budcache", ""),
    }


def _with_looks(comparison: Comparison, budget: int) -> list[Any]:
    entries, looks = ours_first(comparison, budget), styles(comparison)
    return [(looks[e.method].colour, strip) for e, strip in zip(entries, strips(comparison, entries), strict=True)]
