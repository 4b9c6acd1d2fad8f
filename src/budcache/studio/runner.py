"""The runner: one thread that has the model, and does one thing at a time with it.

What somebody looks at is drawn first, then jobs come in the order in which they were asked for, and when there is
nothing else to do, pictures are drawn ahead. Whoever waits is told for what.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from budcache.errors import BudcacheError, PipelineError
from budcache.events import Event, Watch
from budcache.studio.job import Job, Kind, new_id, read_jobs
from budcache.studio.saying import noted, sentence

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
        taken: names that no new job may have: what it finds has its name.

    Attributes:
        jobs: all jobs of the project, oldest first.
        refused: why the model could not be loaded, as a sentence.
        failed: why something could not be drawn, by what it was.
        count: of changes; a page that has seen this many has seen all.
    """

    def __init__(
        self,
        load: Callable[[], Any],
        bodies: Mapping[Kind, Body],
        draw: Callable[[Any, D], object],
        folder: Path,
        taken: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._load, self._bodies, self._draw, self._folder, self._taken = load, bodies, draw, folder, taken
        self.jobs: list[Job] = read_jobs(folder)
        self.refused, self.failed, self.count = "", dict[D, str](), 0
        self.is_loaded = False
        self._pipe: Any = None
        self._busy = self._lent = False  # with a drawing or a job; to somebody else
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
            files = (path.stem for path in self._folder.glob("*.json"))
            job = Job(new_id(kind, [*(job.id for job in self.jobs), *files, *self._taken()]), kind, title, options)
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

    @contextmanager
    def lent(self) -> Iterator[Any]:
        """The model, for something short. Pictures that are drawn are waited for; jobs are not, they can take hours."""
        with self._changed:
            while True:
                self._check_free()
                if not (self._busy or self._lent):
                    break
                self._changed.wait()
            self._lent = True
        try:
            yield self._pipe
        finally:
            with self._changed:
                self._lent = False
                self._told()

    def _check_free(self) -> None:
        job = self.current
        if self.refused:
            raise PipelineError(self.refused)
        if not self.is_loaded or self._closed:
            raise PipelineError("the model is not loaded yet. Try again in a moment.")
        if job is not None:
            raise PipelineError(f"{job.id} has the model. Wait until it ends, or stop it; then try again.")

    # The thread

    def _run(self) -> None:
        self._open()
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                while not self._closed and (self._lent or not self._next()):
                    self._changed.wait()
                if self._closed:
                    return
                task, self._busy = self._next(), True
            if isinstance(task, Job):
                self._work(self._pipe, task)
            else:
                self._draw_one(self._pipe, task)

    def _open(self) -> None:
        try:
            self._pipe = self._load()
        except Exception as error:
            self.refused = sentence(error)
            logger.info("the model cannot be loaded", exc_info=True)
        self.is_loaded = True
        self._told()

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
            with noted(job.notes):
                self._bodies[job.kind](pipe, job, watch, clock)
            state = "done"
        except Stopped:
            state = "interrupted" if self._closed else "stopped"
        except Exception as error:
            job.error, state = sentence(error, pipe), "failed"
            logger.info("%s failed", job.id, exc_info=True)
        job.seconds += time.monotonic() - begin - clock.paused
        if job.told.progress is not None:
            job.sample_calls = job.told.progress.sample_calls
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
