"""The meter: what a job has done against what it will cost, told to whoever watches."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from budcache.events import Event, JobName, Phase, Planned, Progress, Watch

__all__ = ["Meter"]


class Meter:
    """Turns sample-calls into progress of the whole job, with an honest time left.

    Every phase weighs what it costs in sample-calls, so the bar moves evenly. The time left is what is still to be
    done times the seconds that a sample-call has really taken, in this process.

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
        self._ahead: list[Phase] = []  # phases that are still to come
        self._phase = Phase("", 0)  # the one at work
        self._before = 0  # sample-calls of this process when it began
        self._spent = 0  # sample-calls of this process
        self._known = 0  # sample-calls' worth of work that needed no call: answered from a ledger
        self._begin = clock()

    def plan(self, phases: Sequence[Phase]) -> None:
        """Say what the job will cost; the phases come in this order."""
        self._ahead, self._begin = list(phases), self.clock()
        self.tell(Planned(self.job, tuple(phases)))

    def phase(self, name: str) -> None:
        """A phase begins; those planned before it are over, whatever they took."""
        self._before = self._spent + self._known
        names = [phase.name for phase in self._ahead]
        if name in names:
            place = names.index(name)
            self._phase, self._ahead = self._ahead[place], self._ahead[place + 1 :]
        else:
            self._phase = Phase(name, 0)
        self.show()

    def spent(self, sample_calls: int, best: float | None = None, note: str = "") -> None:
        """The whole job has spent so many sample-calls in this process."""
        self._spent = max(self._spent, sample_calls)
        self.show(best, note)

    def add(self, sample_calls: int) -> None:
        """So many sample-calls more were spent."""
        self.spent(self._spent + sample_calls)

    def skipped(self, sample_calls: int) -> None:
        """So many sample-calls were not needed, because an earlier run had made them."""
        self._known += sample_calls

    def show(self, best: float | None = None, note: str = "") -> None:
        """Tell how far it is."""
        done = self._spent + self._known
        left = max(0, self._phase.sample_calls - (done - self._before)) + sum(p.sample_calls for p in self._ahead)
        seconds = (self.clock() - self._begin) / self._spent * left if self._spent else None
        self.tell(
            Progress(self.job, self._phase.name, done, done + left, self.earlier + self._spent, seconds, best, note)
        )

    def tell(self, event: Event) -> None:
        """Hand an event to whoever watches."""
        if self.watch is not None:
            self.watch(event)
