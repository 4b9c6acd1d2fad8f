"""What a long job tells whoever watches it: the same few events for search, fit, align and compare.

A watcher is any function of one event. The bar of the command line, the bar in Python, `logging` and everything else
that wants to know listen to these; nothing reads another part's sentences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from budcache.mask import Mask

if TYPE_CHECKING:
    from budcache.policy import Policy

__all__ = [
    "EntryDone",
    "Event",
    "JobName",
    "Phase",
    "Planned",
    "Progress",
    "RungDone",
    "RungFound",
    "Scored",
    "Updated",
    "Watch",
    "WorkerTold",
]

JobName: TypeAlias = Literal["search", "fit", "align", "compare"]


@dataclass(frozen=True)
class Phase:
    """A part of a job, and about how many sample-calls it takes."""

    name: str
    sample_calls: int


@dataclass(frozen=True)
class Planned:
    """Said once, before the work begins: what the job will cost, phase by phase."""

    job: JobName
    phases: tuple[Phase, ...]
    note: str = ""  # what else is worth knowing, as a clause

    @property
    def sample_calls(self) -> int:
        """The cost of the whole job: model calls times samples."""
        return sum(phase.sample_calls for phase in self.phases)

    def __str__(self) -> str:
        parts = ", ".join(f"{phase.name} {phase.sample_calls}" for phase in self.phases if phase.sample_calls)
        told = "; ".join(filter(None, (parts, self.note)))
        return f"{self.job}: about {self.sample_calls} sample-calls (model calls times samples): {told}"


@dataclass(frozen=True)
class Progress:
    """How far the whole job is.

    Attributes:
        phase: what is being done.
        done: sample-calls that are done, of `total`; the total is corrected as the job goes on.
        sample_calls: sample-calls really spent, those of earlier, interrupted runs included.
        seconds_left: from the seconds that a sample-call has taken so far; None until that is known.
        best: the smallest loss so far of the budget at work.
        note: what else a person may want to read.
    """

    job: JobName
    phase: str
    done: int
    total: int
    sample_calls: int
    seconds_left: float | None = None
    best: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Scored:
    """A mask was scored; together these are a search's history."""

    mask: Mask
    loss: float
    phase: str
    sample_calls: int  # spent when it had been scored
    new: bool  # False where the score was known already
    job: JobName = "search"


@dataclass(frozen=True)
class RungFound:
    """A search has a policy for one budget, with its quality as far as it is known; the search may better it still."""

    job: JobName
    policy: Policy


@dataclass(frozen=True)
class RungDone:
    """One budget of a ladder is finished: found, fitted or aligned."""

    job: JobName
    policy: Policy


@dataclass(frozen=True)
class Updated:
    """An alignment made one update of a policy's parameters."""

    budget: int
    number: int  # from 0
    loss: float  # of the sample that was learned from, before the update
    held_out: float | None  # on the samples put aside, after the update, where it was measured
    start: float | None  # on the samples put aside, before the first update; said with that one
    job: JobName = "align"


@dataclass(frozen=True)
class EntryDone:
    """A comparison has finished one method at one budget."""

    method: str
    title: str
    budget: int
    kept: bool  # it was finished by an earlier run
    job: JobName = "compare"


@dataclass(frozen=True)
class WorkerTold:
    """A worker has begun, has done some of its work, or was lost.

    Attributes:
        worker: its number, from 0; who takes the place of a lost one has the same.
        of: how many there are.
        state: "ready" once it has loaded the pipeline; "working"; "lost" when it died and is replaced; "gone" where
            there is no room for another one, and the others take over.
        runs: how many it holds open.
        sample_calls: that it has made.
        node: the machine that it is on.
    """

    job: JobName
    worker: int
    of: int
    state: Literal["ready", "working", "lost", "gone"]
    runs: int = 0
    sample_calls: int = 0
    node: str = ""


Event: TypeAlias = Planned | Progress | Scored | RungFound | RungDone | Updated | EntryDone | WorkerTold
Watch: TypeAlias = Callable[[Event], None]
