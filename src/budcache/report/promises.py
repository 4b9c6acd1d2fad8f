"""What can be promised of each method beforehand, and what came of it: calls, time, and the quality of a ladder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from budcache.chosen import load
from budcache.comparison.result import Comparison, Entry, Measure
from budcache.errors import BudcacheError
from budcache.policy import Policy
from budcache.provenance import Quality
from budcache.report.gallery import ours_first
from budcache.wording import several

__all__ = ["Dots", "Kept", "Spread", "kept", "spreads"]


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
    calls = {
        entry.method: [n for each in (entry, entry.second) if each is not None for n in each.calls] for entry in entries
    }
    most = max((max(made) for made in calls.values()), default=1) * 1.08
    longest = max((share for shares in times.values() for share in shares), default=1) * 1.08
    return [
        Spread(
            entry,
            _dots(calls[entry.method], most, budget / most, "{:g}", ""),
            _dots(times[entry.method], longest, None, "{:.0f}", "%") if times[entry.method] else None,
            *speed(entry),
        )
        for entry in entries
    ]


def _shares(entry: Entry) -> list[float]:
    """The time of every timed run in percent of the full run beside it, of two settings those of both."""
    if entry.latency is None:
        return []
    both = [each for each in (entry, entry.second) if each is not None]
    return [100 * own / full for e in both for own, full in zip(e.timed_seconds, e.full_seconds, strict=True)]


def speed(entry: Entry) -> tuple[str, str]:
    """How many times faster than the full run, and how sure that is."""
    found = entry.speed
    if not found.known:
        return found.text, ""
    spread = f"{found.low:.1f} to {found.high:.1f}" if f"{found.low:.1f}" != f"{found.high:.1f}" else ""
    return f"{found.median:.1f}×", spread


def _dots(values: Sequence[float], end: float, target: float | None, form: str, unit: str) -> Dots:
    low, high = form.format(min(values)), form.format(max(values))
    text = f"{low}{unit}" if low == high else f"{low} to {high}{unit}"
    places = sorted({round(100 * value / end, 1) for value in values})
    path = "".join(f"M{place} 5h0" for place in places)
    return Dots(text, path, places[0], places[-1], None if target is None else round(100 * target, 1))


class Kept(NamedTuple):
    """A rung's quality: as its file promises it, and as it was measured here."""

    budget: int
    promised: str
    on: str
    measured: str
    worst: str
    moving: dict[str, str]  # what only videos have, as measured here


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
        found.append(Kept(budget, promised, _grounds(rung.quality), measured, worst, moving))
    return found


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
