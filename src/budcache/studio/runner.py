"""The runner: one thread that has the model, and does one thing at a time with it.

What somebody looks at is drawn first, then jobs come in the order in which they were asked for, and when there is
nothing else to do, pictures are drawn ahead. Whoever waits is told for what.
"""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from budcache.errors import BudcacheError, BudcacheWarning
from budcache.events import Event, Watch
from budcache.studio.job import Job, Kind, new_id, read_jobs

__all__ = ["Body", "Clock", "Runner", "Stopped"]

logger = logging.getLogger("budcache.studio")

D = TypeVar("D")
Body = Callable[[Any, Job, Watch, "Clock"], None]  # what a job does: pipeline, job, who watches, time


class Stopped(BaseException):
    """Somebody has stopped the job. No `Exception`, so that nothing on the way takes it for a failure."""


class Clock:
    """The seconds for which a job was paused, which do not count as time spent."""

    def __init__(self) -> None:
        self.paused = 0.0


class Runner(Generic[D]):
    """Has the model, and does what it is asked for.

    Args:
        load: loads the pipeline, in the runner's thread.
        bodies: what jobs of each kind do.
        draw: draws one thing and keeps it.
        folder: where jobs are written down; those that are there can be resumed.

    Attributes:
        jobs: all jobs of the project, oldest first.
        refused: why the model could not be loaded, as a sentence.
        failed: why something could not be drawn, by what it was.
        count: of changes; a page that has seen this many has seen all.
    """

    def __init__(
        self, load: Callable[[], Any], bodies: Mapping[Kind, Body], draw: Callable[[Any, D], object], folder: Path
    ) -> None:
        self._load, self._bodies, self._draw, self._folder = load, bodies, draw, folder
        self.jobs: list[Job] = read_jobs(folder)
        self.refused, self.failed, self.count = "", dict[D, str](), 0
        self.is_loaded = False
        self.drawing: D | None = None  # right now
        self._wanted: list[D] = []
        self._ahead: list[D] = []
        self._closed = False
        self._changed = threading.Condition(threading.RLock())
        self._thread = threading.Thread(target=self._run, name="budcache-studio", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def close(self, seconds: float = 30.0) -> None:
        """Stop what runs, and end; a job that ran can be resumed."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(seconds)

    # Jobs

    @property
    def current(self) -> Job | None:
        """The job that has the model."""
        return next((job for job in self.jobs if job.state in ("running", "paused", "stopping")), None)

    @property
    def waiting(self) -> list[Job]:
        """Jobs that wait for it."""
        return [job for job in self.jobs if job.state == "waiting"]

    def job(self, name: str | None) -> Job | None:
        """A job by its id."""
        return next((job for job in self.jobs if job.id == name), None)

    def submit(self, kind: Kind, title: str, options: dict[str, Any]) -> Job:
        """A new job, which begins when those before it have ended."""
        with self._changed:
            taken = [*(job.id for job in self.jobs), *(path.stem for path in self._folder.glob("*.json"))]
            job = Job(new_id(kind, taken), kind, title, options)
            self.jobs.append(job)
            self._set(job, "waiting")
            return job

    def resume(self, job: Job) -> None:
        """Let a job that has ended early go on from what it has written down; it waits for its turn."""
        with self._changed:
            if job.can_resume:
                job.error = ""
                job.notes.clear()
                self.jobs.remove(job)
                self.jobs.append(job)  # behind those that wait already
                self._set(job, "waiting")

    def pause(self, job: Job) -> None:
        """Let a running job wait where it is. It keeps the model, so others wait on."""
        self._move(job, "running", "paused")

    def go_on(self, job: Job) -> None:
        """Let a paused job go on."""
        self._move(job, "paused", "running")

    def stop(self, job: Job) -> None:
        """End a job; what it has written down stays. One that runs ends at its next event."""
        with self._changed:
            if job.state == "waiting":
                self._set(job, "stopped")
            elif job.state in ("running", "paused"):
                self._set(job, "stopping")

    def _move(self, job: Job, before: str, after: Any) -> None:
        with self._changed:
            if job.state == before:
                self._set(job, after)

    def _set(self, job: Job, state: Any) -> None:
        job.state = state
        try:
            job.save(self._folder)
        except BudcacheError as error:  # the model's thread must outlive a full disk
            job.notes.append(str(error))
        self._told()

    def _told(self) -> None:
        with self._changed:
            self.count += 1
            self._changed.notify_all()

    # Drawings

    def ask(self, wanted: Iterable[D], ahead: Iterable[D] = ()) -> None:
        """Draw these as soon as the model is free, before whatever else waits; and others when there is time.

        What was wanted before and is not drawn yet comes after it: somebody else may be looking at that.
        """
        with self._changed:
            first = list(dict.fromkeys(wanted))
            for drawing in first:
                self.failed.pop(drawing, None)
            self._wanted = [*first, *(each for each in self._wanted if each not in first)]
            self._ahead = [each for each in dict.fromkeys(ahead) if each not in self._wanted]
            self._told()

    def is_asked(self, drawing: D) -> bool:
        """Whether something is being drawn, or waits for it."""
        return drawing == self.drawing or drawing in self._wanted

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        with self._changed:
            return not (self.drawing or self._wanted or self._ahead or self.current or self.waiting)

    # The thread

    def _run(self) -> None:
        pipe = self._loaded()
        while True:
            with self._changed:
                while not self._closed and not self._next():
                    self._changed.wait()
                if self._closed:
                    return
                task = self._next()
            if isinstance(task, Job):
                self._work(pipe, task)
            else:
                self._draw_one(pipe, task)

    def _loaded(self) -> Any:
        pipe = None
        try:
            pipe = self._load()
        except Exception as error:
            self.refused = sentence(error)
            logger.info("the model cannot be loaded", exc_info=True)
        self.is_loaded = True
        self._told()
        return pipe

    def _next(self) -> Any:
        return next((each for group in (self._wanted, self.waiting, self._ahead) for each in group), None)

    def _draw_one(self, pipe: Any, drawing: D) -> None:
        with self._changed:
            self.drawing = drawing
            for queue in (self._wanted, self._ahead):
                if drawing in queue:
                    queue.remove(drawing)
            self._told()
        try:
            if self.refused:
                raise BudcacheError(self.refused)
            self._draw(pipe, drawing)
        except Exception as error:
            self.failed[drawing] = sentence(error, pipe)
            logger.info("a drawing failed", exc_info=True)
        finally:
            self.drawing = None
            self._told()

    def _work(self, pipe: Any, job: Job) -> None:
        begin, clock = time.monotonic(), Clock()
        self._set(job, "running")

        def watch(event: Event) -> None:
            job.told(event)
            self._wait_if_paused(job, clock)

        try:
            if self.refused:
                raise BudcacheError(self.refused)
            with _noted(job.notes):
                self._bodies[job.kind](pipe, job, watch, clock)
            state = "done"
        except Stopped:
            state = "interrupted" if self._closed else "stopped"
        except Exception as error:
            job.error, state = sentence(error, pipe), "failed"
            logger.info("%s failed", job.id, exc_info=True)
        job.seconds += time.monotonic() - begin - clock.paused
        self._set(job, state)

    def _wait_if_paused(self, job: Job, clock: Clock) -> None:
        with self._changed:
            self.count += 1
            begin = time.monotonic()
            while job.state == "paused" and not self._closed:
                self._changed.wait()
            clock.paused += time.monotonic() - begin
            if self._closed or job.state == "stopping":
                raise Stopped


@contextmanager
def _noted(notes: list[str]) -> Any:
    """What budcache warns of meanwhile, for people to read."""
    with warnings.catch_warnings():
        shown = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *more: Any, **others: Any) -> None:
            if issubclass(category, BudcacheWarning):
                notes.append(str(message))
            else:
                shown(message, category, *more, **others)

        warnings.showwarning = show
        yield


def sentence(error: BaseException, pipe: Any = None) -> str:
    """An error as one sentence: ours as it is, those of the model with its name."""
    if isinstance(error, BudcacheError):
        return str(error)
    lines = str(error).strip().splitlines()
    what = lines[0].rstrip(".") if lines else type(error).__name__
    return f"{'the model' if pipe is None else type(pipe).__name__} failed: {what}."
