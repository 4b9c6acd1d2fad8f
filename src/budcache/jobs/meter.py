"""The meter: what a job has done against what it will cost, told to whoever watches."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from budcache.events import Event, JobName, Phase, Planned, Progress, Watch

__all__ = ["Meter"]


class Meter:
    """Turns sample-calls into progress of the whole job, with an honest time left.

    Every phase weighs what it was planned to cost in sample-calls, so the bar moves evenly. The time left is what is
    still to be done times the seconds that a sample-call has really taken, in this process.

    Args:
        job: which job it is.
        watch: who is told; None tells nobody.
        earlier: sample-calls that interrupted runs of the same job have spent before.
        clock: seconds.
    """

    def __init__(
        self,
        job: JobName,
        watch: Watch | None = None,
        earlier: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.job, self.watch, self.earlier, self.clock = job, watch, earlier, clock
        self._behind = 0  # sample-calls planned for phases that are over
        self._phase = Phase("", 0)  # the one at work
        self._ahead: list[Phase] = []  # still to come
        self._spent = self._spent_before = 0  # sample-calls of this process; and when the phase at work began
        self._done = 0.0  # sample-calls' worth of the phase at work
        self._skipped = 0  # sample-calls of the phase at work that need not be made
        self._begin = clock()

    def plan(self, phases: Sequence[Phase], note: str = "") -> None:
        """Say what the job will cost; the phases come in this order."""
        self._ahead, self._begin = list(phases), self.clock()
        self.tell(Planned(self.job, tuple(phases), note))

    def phase(self, name: str) -> None:
        """A phase begins; those planned before it are over, whatever they took."""
        self._behind += max(self._phase.sample_calls, round(self._done))
        self._spent_before, self._done, self._skipped = self._spent, 0.0, 0
        names = [phase.name for phase in self._ahead]
        place = names.index(name) if name in names else -1
        self._behind += sum(phase.sample_calls for phase in self._ahead[: max(place, 0)])
        self._phase, self._ahead = (
            (self._ahead[place], self._ahead[place + 1 :]) if place >= 0 else (Phase(name, 0), self._ahead)
        )
        self._show()

    def spent(self, sample_calls: int, *, part: float | None = None, best: float | None = None, note: str = "") -> None:
        """The job has spent so many sample-calls in this process.

        Args:
            part: how much of the phase is done, from 0 to 1, where that is known better than by its sample-calls:
                what a ledger knew already costs none.
            best: the smallest loss so far of the budget at work.
            note: for people to read.
        """
        self._spent = max(self._spent, sample_calls)
        here = self._spent - self._spent_before + self._skipped if part is None else part * self._phase.sample_calls
        self._done = max(self._done, here)
        self._show(best, note)

    def add(self, sample_calls: int, note: str = "") -> None:
        """So many sample-calls more were spent."""
        self.spent(self._spent + sample_calls, note=note)

    def skipped(self, sample_calls: int, note: str = "") -> None:
        """So many sample-calls of the phase at work need not be made: an earlier run has made them."""
        self._skipped += sample_calls
        self.add(0, note)

    def finish(self, sample_calls: int) -> None:
        """The job is done and has spent so many sample-calls, whatever was planned for it."""
        self._spent = max(self._spent, sample_calls)
        self._behind += max(self._phase.sample_calls, round(self._done)) + sum(p.sample_calls for p in self._ahead)
        self._phase, self._ahead, self._done = Phase(self._phase.name, 0), [], 0.0
        self._show()

    def tell(self, event: Event) -> None:
        """Hand an event to whoever watches."""
        if self.watch is not None:
            self.watch(event)

    def _show(self, best: float | None = None, note: str = "") -> None:
        done = self._behind + round(self._done)
        left = max(0, self._phase.sample_calls - round(self._done)) + sum(p.sample_calls for p in self._ahead)
        seconds = (self.clock() - self._begin) / self._spent * left if self._spent else None
        spent = self.earlier + self._spent
        self.tell(Progress(self.job, self._phase.name, done, done + left, spent, seconds, best, note))
