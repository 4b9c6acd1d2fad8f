"""Every prompt by every method, those that ours is worst at first."""

from __future__ import annotations

from typing import NamedTuple

from budcache.comparison.entry import Measure
from budcache.comparison.result import Comparison
from budcache.report.gallery import compared, ours_first, ranked

__all__ = ["PerPrompt", "per_prompt"]

MOST_ROWS = 100  # the exports have all of them


class PromptRow(NamedTuple):
    """A prompt: each method's value, whether it is the best one, and how far ours is ahead of the best other."""

    number: int
    prompt: str
    cells: list[tuple[str, bool]]
    lead: float | None
    written: str
    moving: list[str]  # of the first method: what only videos have


class PerPrompt(NamedTuple):
    """The table of a budget."""

    measure: Measure
    titles: list[str]
    rows: list[PromptRow]
    left: int  # rows that are left out
    lost: int | None  # prompts at which another one is better than ours, if ours is there
    moving: list[str]  # heads of what only videos have


def per_prompt(comparison: Comparison, budget: int) -> PerPrompt | None:
    """All prompts at a budget; None if nothing there was compared with the full run."""
    entries = ours_first(comparison, budget)
    measure = compared(comparison, entries[0]) if entries else None
    if measure is None:
        return None
    entries = [entry for entry in entries if entry.quality(measure.name)]
    columns = [entry.quality(measure.name) or () for entry in entries]
    ours = entries[0].method == comparison.ours and len(entries) > 1
    best = max if measure.higher else min
    digits = 1 if measure.unit == "dB" else None  # a column for each method has to fit
    moving = [(one, found) for one in comparison.measures if one.moving and (found := entries[0].quality(one.name))]
    rows = []
    for number in ranked(comparison, budget):
        values = [column[number] for column in columns]
        texts = [measure.written(value, digits) for value in values]
        top = measure.written(best(values), digits)
        ahead = (values[0] - best(values[1:])) * (1 if measure.higher else -1) if ours else None
        written = "" if ahead is None else f"{ahead:+.{measure.digits}f}".replace("-", "−")
        prompt = comparison.prompts[number]
        more = [one.written(found[number]) for one, found in moving]
        rows.append(PromptRow(number, prompt, [(text, text == top) for text in texts], ahead, written, more))
    lost = sum(row.lead is not None and row.lead < 0 for row in rows) if ours else None
    titles, heads = [entry.title for entry in entries], [f"{one.title}, {entries[0].title}" for one, _ in moving]
    return PerPrompt(measure, titles, rows[:MOST_ROWS], max(0, len(rows) - MOST_ROWS), lost, heads)
