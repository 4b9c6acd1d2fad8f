"""A job of the studio, a search or a comparison: what was asked for, how it stands, and what its events have told."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from budcache.errors import BudcacheError
from budcache.events import EntryDone, Event, Planned, Progress, RungDone, RungFound, Scored
from budcache.mask import Mask
from budcache.policy import Policy
from budcache.storage.files import read_json, write_json

__all__ = ["ENDED", "Job", "Kind", "State", "Told", "read_jobs"]

Kind: TypeAlias = Literal["search", "compare"]
State: TypeAlias = Literal["waiting", "running", "paused", "stopping", "stopped", "interrupted", "failed", "done"]
ENDED: tuple[State, ...] = ("stopped", "interrupted", "failed", "done")
STORED = ("id", "kind", "title", "options", "state", "made", "seconds", "sample_calls", "error")


@dataclass
class Told:
    """What a job's events have told so far: all that a page shows of it, however long it runs."""

    planned: Planned | None = None
    progress: Progress | None = None
    # By budget. Not just how many: a search that is resumed tells again what its ledger knows.
    tried: dict[int, set[Mask]] = field(default_factory=dict)
    best: dict[int, Scored] = field(default_factory=dict)  # the mask of least loss, by budget
    rungs: dict[int, Policy] = field(default_factory=dict)
    entries: dict[tuple[str, int], EntryDone] = field(default_factory=dict)
    count: int = 0  # of events: a page that has seen this many has seen all

    def __call__(self, event: Event) -> None:
        """Take one event in."""
        match event:
            case Planned():
                self.planned = event
            case Progress():
                self.progress = event
            case Scored():
                self._score(event)
            case RungFound() | RungDone():
                self.rungs[event.policy.budget] = event.policy
            case EntryDone():
                self.entries[event.method, event.budget] = event
        self.count += 1

    def _score(self, event: Scored) -> None:
        budget = event.mask.budget
        self.tried.setdefault(budget, set()).add(event.mask)
        if budget not in self.best or event.loss < self.best[budget].loss:
            self.best[budget] = event


@dataclass
class Job:
    """One job. It is a file in the project, written whenever it changes.

    Attributes:
        options: what `budcache.search` or `budcache.compare` is called with, as far as JSON holds it.
        made: when it was asked for, in seconds since 1970.
        seconds: that it has worked, in all its runs.
        sample_calls: that it had spent when it ended, likewise.
        error: why it failed, as a sentence.
        notes: what it warned of while it ran.
    """

    id: str
    kind: Kind
    title: str
    options: dict[str, Any]
    state: State = "waiting"
    made: float = field(default_factory=time.time)
    seconds: float = 0.0
    sample_calls: int = 0
    error: str = ""
    told: Told = field(default_factory=Told)
    notes: list[str] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Whether nothing of it runs or waits."""
        return self.state in ENDED

    @property
    def can_resume(self) -> bool:
        """Whether it could go on from what it has written down."""
        return self.is_over and self.state != "done"

    def save(self, folder: Path) -> None:
        """Write it down."""
        write_json(folder / f"{self.id}.json", {name: getattr(self, name) for name in STORED})


def read_jobs(folder: Path) -> list[Job]:
    """The jobs of a project, oldest first. What ran when the studio ended was interrupted; a damaged file is left."""
    found = []
    for path in sorted(folder.glob("[!.]*.json")):
        with suppress(BudcacheError, TypeError, ValueError):
            values = read_json(path)
            if isinstance(values, dict):
                found.append(_job({name: values[name] for name in STORED if name in values}))
    return sorted(found, key=lambda job: job.made)


def _job(values: dict[str, Any]) -> Job:
    job = Job(**values)
    if job.kind not in ("search", "compare") or not isinstance(job.options, dict):
        raise ValueError(f"no job: {job.kind!r}")
    if not job.is_over:
        job.state = "interrupted"
    return job


def new_id(kind: Kind, known: Iterable[str]) -> str:
    """The next free name: `search-3`."""
    taken, number = set(known), 1
    while f"{kind}-{number}" in taken:
        number += 1
    return f"{kind}-{number}"
