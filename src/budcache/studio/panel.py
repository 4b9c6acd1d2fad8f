"""A job as the page shows it: how far it is, what is left, masks as they come and the curve of held-out quality."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from budcache.errors import BudcacheError
from budcache.jobs.watching import duration
from budcache.report import svg
from budcache.report.chart import OURS, Chart, Line, Mark, Style
from budcache.report.strips import Strip, strip
from budcache.strategies import read_history
from budcache.studio.rendering import render
from budcache.wording import several

if TYPE_CHECKING:
    from budcache.policy import Policy
    from budcache.studio.job import Job, Told
    from budcache.studio.studio import Studio

__all__ = ["STATES", "panel", "standing", "state_of"]

STATES = {
    "waiting": "waiting",
    "running": "running",
    "paused": "paused",
    "stopping": "stopping",
    "stopped": "stopped",
    "interrupted": "interrupted",
    "failed": "failed",
    "done": "done",
}


class Row(NamedTuple):
    """One phase of a job: how much of it is done, from 0 to 1."""

    name: str
    calls: int
    part: float


def panel(studio: Studio, job: Job) -> str:
    """The live view of a job."""
    told = known(studio, job)
    progress = told.progress
    chart = curve(told.rungs.values())
    return render(
        "panel.html.jinja",
        job=job,
        state=STATES[job.state],
        standing=standing(studio, job),
        progress=progress,
        left="" if progress is None or progress.seconds_left is None else duration(progress.seconds_left),
        spent=duration(job.seconds),
        rows=phases(told),
        masks=[("ours", each) for each in masks(told)],
        chart=None if chart is None else svg.placed(chart),
        few=any(rung.quality is not None and rung.quality.used_to_fit for rung in list(told.rungs.values())),
        entries=list(told.entries.values()) if job.kind == "compare" else [],
        tried=sum(map(len, told.tried.values())),
    )


def known(studio: Studio, job: Job) -> Told:
    """What a job has told; of one that ran in an earlier process, what its files say."""
    told = job.told
    if told.count or job.kind != "search":
        return told
    ledger = studio.project.ledger(job.id)
    if ledger.exists():
        try:
            for scored in read_history(ledger):
                told(scored)
        except BudcacheError:
            pass  # it says so itself when it is resumed
    ladder = studio.project.ladder(job.id) if job.state == "done" else None
    for rung in ladder or ():
        told.rungs[rung.budget] = rung
    told.count += 1
    return told


def standing(studio: Studio, job: Job) -> str:
    """How a job stands, as a sentence."""
    if job.state == "waiting":
        before = studio.runner.current
        waits = f"for {before.id}" if before is not None and before is not job else "for its turn"
        return f"Waits {waits}: there is one model, and it does one thing at a time."
    if job.state == "stopping":
        return "Ends at the next call that finishes. What was found is kept."
    if job.state == "paused":
        return "Paused. It keeps the model; stop it to let others have it."
    if job.state == "stopped":
        return "Stopped. What was finished is kept; resume it to go on from there."
    if job.state == "interrupted":
        return "The studio ended while it ran. What was finished is kept; resume it to go on from there."
    if job.state == "failed":
        return job.error
    return " ".join(f"{note[:1].upper()}{note[1:].rstrip('.')}." for note in job.notes)


def state_of(studio: Studio) -> str:
    """What the model is doing, in one line."""
    runner = studio.runner
    if runner.refused:
        return runner.refused
    if not runner.is_loaded:
        return f"loading {studio.model}"
    job, rest = runner.current, len(runner.waiting)
    if job is None:
        return "drawing" if runner.drawing is not None else "idle"
    progress = job.told.progress
    share = f", {100 * progress.done // max(1, progress.total)} %" if progress is not None else ""
    waits = f"; {several(rest, 'job')} waiting" if rest else ""
    return f"{job.id} {STATES[job.state]}{share}{waits}"


def phases(told: Told) -> list[Row]:
    """The phases of a job, with what is done of each."""
    if told.planned is None or told.progress is None:
        return []
    names = [phase.name for phase in told.planned.phases]
    at = names.index(told.progress.phase) if told.progress.phase in names else len(names)
    finished = told.progress.done >= told.progress.total
    return [
        Row(phase.name, phase.sample_calls, 1.0 if place < at or finished else 0.5 if place == at else 0.0)
        for place, phase in enumerate(told.planned.phases)
        if phase.sample_calls
    ]


def masks(told: Told) -> list[Strip]:
    """For every budget the policy that was found, or the best mask so far."""
    found = []
    for budget in sorted({*told.best, *told.rungs}):
        rung, best = told.rungs.get(budget), told.best.get(budget)
        if rung is not None:
            quality = None if rung.quality is None else rung.quality.short
            found.append(strip([rung.mask], f"{budget} calls", f"{quality} dB" if quality else "chosen"))
        elif best is not None:
            found.append(strip([best.mask], f"{budget} calls", f"best of {len(told.tried[budget])}"))
    return found


def curve(rungs: Any) -> Chart | None:
    """Held-out quality over model calls, with its standard error, of the rungs that there are."""
    found: list[Policy] = sorted(rungs, key=lambda rung: rung.budget)
    marks = tuple(_mark(rung) for rung in found if rung.quality is not None and rung.quality.psnr is not None)
    if not marks:
        return None
    about = "; ".join(mark.note for mark in marks)
    line = Line("", Style(OURS, strong=True), marks)
    return Chart(x="model calls per sample", y="PSNR to the full run, dB", lines=(line,), dots={}, about=about)


def _mark(rung: Policy) -> Mark:
    quality = rung.quality
    assert quality is not None
    assert quality.psnr is not None
    error = None if quality.used_to_fit else quality.psnr_error
    return Mark(rung.budget, quality.psnr, error, f"{quality.psnr:.1f}", f"{rung.budget} calls: {quality.text}")
