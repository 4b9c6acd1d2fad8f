"""The live bar of a job, and what it says before the work begins."""

from __future__ import annotations

import json

from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn

from budcache.cli.common import err, say
from budcache.events import Event, Planned, WorkerTold
from budcache.events import Progress as Step
from budcache.jobs.watching import Crew, duration

__all__ = ["Bar", "tell_cost"]


class Bar:
    """Watches a job: says what it will cost, then shows how far the whole of it is and the time left.

    Args:
        quiet: say and show nothing, for output that machines read.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.quiet, self._timed = quiet, False
        self._crew = Crew()
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
        self._progress = Progress(
            *columns,
            TextColumn("{task.fields[note]}"),
            TextColumn("{task.fields[workers]}"),
            console=err,
            transient=True,
            disable=quiet or not err.is_terminal,
        )

    def __enter__(self) -> Bar:
        self._progress.start()
        self._task = self._progress.add_task("loading", total=None, note="", workers="")
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        if isinstance(event, Planned) and not self.quiet:
            say(str(event), err)
        if isinstance(event, Step):
            self._show(event)
        if isinstance(event, WorkerTold):
            self._listen(event)

    def _listen(self, told: WorkerTold) -> None:
        self._crew.hear(told)
        if self.quiet:
            return
        if told.state == "lost":
            say(f"worker {told.worker} on {told.node} was lost; another one does its samples again", err)
        elif told.state == "gone":
            say(f"there is no room for worker {told.worker}; the others take over", err)
        self._progress.update(self._task, workers=str(self._crew))

    def _show(self, step: Step) -> None:
        if step.seconds_left is not None and not self._timed and not self.quiet:
            self._timed = True
            say(f"that is about {duration(step.seconds_left)} here, by the first full run", err)
        parts = [step.note, "" if step.best is None else f"best loss {step.best:.3g}"]
        parts += [f"{step.sample_calls} sample-calls"]
        parts += ["" if step.seconds_left is None else f"{duration(step.seconds_left)} left"]
        self._progress.update(
            self._task,
            description=step.phase,
            total=step.total,
            completed=step.done,
            note=", ".join(filter(None, parts)),
        )


def tell_cost(planned: Planned, as_json: bool, **more: int) -> None:
    """What a job will cost, and nothing else; `more` are figures beside it, for programs."""
    phases = {phase.name: phase.sample_calls for phase in planned.phases}
    if as_json:
        print(json.dumps({"sample_calls": planned.sample_calls, "phases": phases, **more}))
    else:
        say(str(planned))
