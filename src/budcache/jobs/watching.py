"""Who listens by default: a bar in a terminal or notebook, and `logging.getLogger("budcache")`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from budcache.events import EntryDone, Event, Planned, Progress, RungDone, RungFound, Scored, Updated, Watch, WorkerTold
from budcache.wording import several

__all__ = ["Crew", "duration", "log", "watching"]

logger = logging.getLogger("budcache")
SHOWN = 8  # workers, one by one


@contextmanager
def watching(watch: Watch | None, progress: bool | None) -> Iterator[Watch]:
    """All who listen to a job, as one function.

    Args:
        watch: the caller's own.
        progress: whether to show a bar; None shows one in a terminal or a notebook.
    """
    bar = _Bar() if (_is_watched() if progress is None else progress) else None
    listeners: list[Watch] = [log, *([bar] if bar else []), *([watch] if watch else [])]

    def everybody(event: Event) -> None:
        for listener in listeners:
            listener(event)

    try:
        yield everybody
    finally:
        if bar is not None:
            bar.close()


def log(event: Event) -> None:
    """Events as lines of the logger "budcache": outcomes as info, every single score as debug."""
    match event:
        case Planned():
            phases = ", ".join(f"{phase.name} {phase.sample_calls}" for phase in event.phases)
            logger.info("%s will take about %d sample-calls: %s", event.job, event.sample_calls, phases)
        case RungDone():
            logger.info("%s: %s", event.job, event.policy)
        case EntryDone():
            logger.info("%s at %d calls: %s", event.title, event.budget, "kept" if event.kept else "done")
        case RungFound():
            logger.debug("%s, so far: %s", event.job, event.policy)
        case Scored():
            logger.debug("%s %s loss %.4g", event.phase, event.mask, event.loss)
        case Updated():
            logger.debug("%d calls, update %d: loss %.4g", event.budget, event.number, event.loss)
        case WorkerTold(state="working"):
            logger.debug("worker %d: %d sample-calls", event.worker, event.sample_calls)
        case WorkerTold():
            logger.info("worker %d of %d on %s is %s", event.worker, event.of, event.node, event.state)
        case Progress():
            logger.debug("%s: %s, %d of %d sample-calls", event.job, event.phase, event.done, event.total)


def duration(seconds: float) -> str:
    """Seconds as people say them: `8 s`, `3 min`, `1 h 20 min`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


class Crew:
    """The workers of a job, as a bar shows them: what every one has done, and of many how they compare."""

    def __init__(self) -> None:
        self._done: dict[int, int] = {}

    def hear(self, told: WorkerTold) -> None:
        """Take in what one of them said."""
        self._done[told.worker] = told.sample_calls
        if told.state == "gone":
            self._done.pop(told.worker)

    def __str__(self) -> str:
        done = [self._done[worker] for worker in sorted(self._done)]
        if not done:
            return ""
        each = "+".join(map(str, done)) if len(done) <= SHOWN else f"{min(done)} to {max(done)} each"
        return f"{several(len(done), 'worker')}: {each}"


def _is_watched() -> bool:
    """Whether somebody looks at the standard error: a terminal, or a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


class _Bar:
    """A tqdm bar of the whole job."""

    def __init__(self) -> None:
        self.bar: Any = None
        self._crew = Crew()

    def __call__(self, event: Event) -> None:
        if isinstance(event, WorkerTold):
            self._crew.hear(event)
        if not isinstance(event, Progress):
            return
        if self.bar is None:
            from tqdm.auto import tqdm

            self.bar = tqdm(total=event.total, unit="call", bar_format="{desc}: {percentage:3.0f}%|{bar}| {postfix}")
        self.bar.total, self.bar.n = event.total, event.done
        self.bar.set_description(f"{event.job}, {event.phase}", refresh=False)
        parts = [event.note, "" if event.best is None else f"best loss {event.best:.3g}"]
        parts.append("" if event.seconds_left is None else f"{duration(event.seconds_left)} left")
        parts.append(str(self._crew))
        self.bar.set_postfix_str(", ".join(filter(None, parts)), refresh=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
