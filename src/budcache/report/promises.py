"""What can be promised of each method beforehand, and what came of it: calls, time, and the quality of a ladder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from budcache.chosen import load
from budcache.comparison.entry import Entry, Measure
from budcache.comparison.result import Comparison
from budcache.comparison.verdict import Lead
from budcache.errors import BudcacheError
from budcache.metrics.base import Summary
from budcache.policy import Policy
from budcache.provenance import Quality
from budcache.report.gallery import ours_first
from budcache.report.text import cautions
from budcache.wording import listed, several

__all__ = ["Dots", "Kept", "Spread", "caution", "kept", "spreads", "timed"]


class Dots(NamedTuple):
    """One number per sample on a bar: where the dots lie in percent of it, and their range in words."""

    text: str
    path: str  # of an SVG 100 wide
    low: float
    high: float
    target: float | None


class Spread(NamedTuple):
    """A method at a budget: calls of every sample, time of every timed run, and how many times faster that is."""

    entry: Entry
    calls: Dots
    times: Dots | None  # of the timed runs, each in its pair; None where they tell no speed
    speed: str
    range: str


def spreads(comparison: Comparison, budget: int) -> list[Spread]:
    """Calls and times: what can be promised beforehand, and what cannot."""
    entries = ours_first(comparison, budget)
    times = {entry.method: _shares(entry) for entry in entries}
    calls = {entry.method: [n for each in entry.counting for n in each.calls] for entry in entries}
    # Bars end at the full run, so that what is saved is seen; further only where somebody needed more.
    most = max([*comparison.full.calls, *(number for made in calls.values() for number in made)])
    longest = max([100.0, *(share for shares in times.values() for share in shares)])
    return [
        Spread(
            entry,
            _dots(calls[entry.method], most, budget / most, "{:g}", ""),
            _dots(times[entry.method], longest, None, "{:.0f}", " %") if times[entry.method] else None,
            *speed(entry),
        )
        for entry in entries
    ]


def timed(comparison: Comparison) -> str:
    """Who was timed, in a sentence; empty where everybody was."""
    those = {entry.method for entry in comparison.entries if entry.speed.pairs}
    titles = [title for name, title in comparison.methods.items() if name in those]
    if len(titles) == len(comparison.methods):
        return ""
    those_timed = f"Only {listed(titles)}" if titles else "No method"
    return f"{those_timed} {'were' if len(titles) > 1 else 'was'} timed."


def _shares(entry: Entry) -> list[float]:
    """The time of every timed run in percent of the full run beside it, of two settings those of both."""
    if not entry.timed or not entry.speed.known:
        return []
    return [100 * own / full for e in entry.counting for own, full in zip(e.timed_seconds, e.full_seconds, strict=True)]


def speed(entry: Entry) -> tuple[str, str]:
    """How many times faster than the full run, and how sure that is."""
    found = entry.speed
    if not found.known:
        return found.text if found.pairs else "", ""  # who was timed is said once, below
    spread = f"{found.low:.1f} to {found.high:.1f}" if f"{found.low:.1f}" != f"{found.high:.1f}" else ""
    return f"{found.at_most}{found.median:.1f}×", spread


def _dots(values: Sequence[float], end: float, target: float | None, form: str, unit: str) -> Dots:
    low, high = form.format(min(values)), form.format(max(values))
    text = f"{low}{unit}" if low == high else f"{low} to {high}{unit}"
    places = sorted({round(100 * value / end, 1) for value in values})
    path = "".join(f"M{place} 5h0" for place in places)
    return Dots(text, path, places[0], places[-1], None if target is None else round(100 * target, 1))


class Kept(NamedTuple):
    """A rung's quality: as its file states it, as it was measured here, and how far these are apart."""

    budget: int
    promised: str
    on: str
    measured: str
    apart: str
    agrees: bool | None  # within two standard errors; None where that cannot be said
    worst: str
    moving: dict[str, str]  # what only videos have, as measured here
    quality: Quality


def kept(comparison: Comparison, file: str | None, folder: Path) -> list[Kept]:
    """What a ladder's file says of its quality, beside what came of it on prompts that it has never seen."""
    measure = next((one for one in comparison.measures if one.name == "psnr"), None)
    rungs = _rungs(folder / file) if file is not None else {}
    found = []
    for budget in comparison.budgets:
        entry, rung = comparison.entry(comparison.ours or "", budget), rungs.get(budget)
        summed = entry.summed(measure) if entry is not None and measure is not None else None
        if rung is None or rung.quality is None or rung.quality.psnr is None or measure is None or summed is None:
            continue
        promised = measure.spoken(rung.quality.psnr, rung.quality.psnr_error)
        if rung.quality.used_to_fit:  # how they scatter says nothing of others
            promised = f"less than {measure.spoken(rung.quality.psnr)}"
        measured = measure.spoken(summed.mean, summed.error)
        assert entry is not None
        moving = {one.title: _spoken(entry, one) for one in comparison.measures if one.moving}
        worst = measure.spoken(summed.worst)
        apart = _apart(measure, rung.quality, summed)
        found.append(Kept(budget, promised, _grounds(rung.quality), measured, *apart, worst, moving, rung.quality))
    return found


def _apart(measure: Measure, stated: Quality, summed: Summary) -> tuple[str, bool | None]:
    """What was measured minus what the file states, with the standard error of both together."""
    assert stated.psnr is not None
    apart, errors = summed.mean - stated.psnr, (stated.psnr_error, summed.error)
    error = None if stated.used_to_fit or None in errors else math.hypot(*(each or 0.0 for each in errors))
    sign = "+" if apart >= 0 else "−"
    agrees = None if error is None else Lead(apart, error).ahead is None
    return f"{sign}{measure.spoken(abs(apart), error)}", agrees


def caution(rows: Sequence[Kept]) -> str:
    """What to think of the file's numbers, in a sentence or two; empty where they were measured on others' prompts."""
    lines = cautions([row.quality for row in rows], "the samples of the file's estimate")
    return " ".join(f"{line[0].upper()}{line[1:]}." for line in lines)


def _spoken(entry: Entry, measure: Measure) -> str:
    found = entry.summed(measure)
    return "-" if found is None else measure.spoken(found.mean, found.error)


def _rungs(file: Path) -> dict[int, Policy]:
    try:
        found = load(file)
    except BudcacheError:
        return {}  # it was moved since; the page does without
    return {rung.budget: rung for rung in ((found,) if isinstance(found, Policy) else found.rungs)}


def _grounds(quality: Quality) -> str:
    """On what a promise rests."""
    how = "that it was fitted on" if quality.used_to_fit else "that chose it" if quality.used_to_choose else "held out"
    return f"{several(quality.samples, 'sample')} {how}"
