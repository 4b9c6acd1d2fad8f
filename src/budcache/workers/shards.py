"""A calibration whose runs are with workers: asked there, and answered in the order of the runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, TypeVar

from budcache.calibration.asking import Asked, Facts, Question, Scope
from budcache.jobs.setup import Taught
from budcache.workers.fleet import Fleet, Lost, Member
from budcache.workers.worker import Opening, Report

__all__ = ["Shards"]

T = TypeVar("T")
MOST = 32  # masks side by side: a message takes about as long as that many questions to a tiny model
_keys = count()


class Shards(Asked):
    """Runs that workers hold open, each a share of them. A run whose worker died is opened again, by another one.

    Args:
        fleet: the workers.
        opening: all runs.
        switch: see `Asked`.
        first: the place of the worker who gets the first run; the next ones go round.
    """

    def __init__(self, fleet: Fleet, opening: Opening, switch: int | None, first: int = 0) -> None:
        self.fleet, self.switch, self._opening, self._key = fleet, switch, opening, next(_keys)
        self._calls = 0 if opening.teaching.finer is None else 1  # to open the pipeline for its levels
        self._open: dict[int, tuple[int, int]] = {}  # with which worker of which generation a run is
        members = fleet.members
        self._homes = {number: members[(first + number) % len(members)] for number in opening.calls}

    def teach(self, taught: Taught | None = None) -> None:
        """Let workers open the runs, and make the full ones.

        Args:
            taught: called after each full run with the sample-calls that these have taken so far.
        """
        found: dict[int, Facts] = {}
        for _, _, report in self._gathered(([number] for number in self._opening.calls), ()):
            found |= report.facts
            if taught is not None:
                taught(self._calls)
        self.facts = [found[number] for number in sorted(found)]

    @property
    def calls(self) -> int:
        """See `Asked`; what had to be done again counts again."""
        return self._calls

    def ask(self, questions: Sequence[Question[T]]) -> Iterator[list[T]]:
        """See `Asked`. All questions go to every worker in one message."""
        if not questions:
            return
        found: dict[int, list[T]] = {}
        for numbers, _, report in self._gathered(self._shares(range(len(self.facts))), questions):
            for place, number in enumerate(numbers):
                found[number] = [answers[place] for answers in report.answers]
        for place in range(len(questions)):
            yield [found[number][place] for number in range(len(self.facts))]

    def each(self, question: Question[T], numbers: Sequence[int]) -> Iterator[tuple[int, T, int]]:
        """See `Asked`."""
        for (number,), calls, report in self._gathered(([number] for number in numbers), [question]):
            yield number, report.answers[0][0], calls

    def forget(self, scope: Scope) -> None:
        """See `Asked`."""
        self.fleet.post("forget", self._key, scope)

    def forget_finals(self, owner: int, but: frozenset[Any] = frozenset()) -> None:
        """See `Asked`."""
        self.fleet.post("forget_finals", self._key, owner, but)

    def room(self, scope: Scope, budget: int) -> int:
        """As many masks as workers can remember the states of: all outputs of a mask's steps, on all their runs."""
        largest = max(fact.size for fact in self.facts)
        held = max(map(len, self._shares(range(len(self.facts)))))
        state = held * largest * (2 + min(scope.outputs, budget) * (1 + scope.branch))
        return max(1, min(MOST, scope.memory // (2 * state)))

    def close(self) -> None:
        """Let the workers close the runs."""
        for member in self.fleet.members:
            member.runs -= sum(self._is_open(number, member) for number in self._open)
        self.fleet.post("close", self._key)

    def _gathered(
        self, shares: Iterable[Sequence[int]], questions: Sequence[Question[Any]]
    ) -> Iterator[tuple[Sequence[int], int, Report]]:
        """What comes back of messages to the workers, as it comes: the runs, the sample-calls, and the report.

        What was sent to a worker that dies is sent again, to the one that takes its place or to others. What was worked
        on at too many deaths is given up: with it every worker would die, however much it does in between.
        """
        pending: dict[Any, tuple[Member, int, Sequence[int]]] = {}
        deaths = Counter[int]()  # by the first of the runs that were being worked on
        self._rehome()

        def send(numbers: Sequence[int]) -> None:
            member = self._homes[numbers[0]]
            pending[self._sent(member, numbers, questions)] = member, member.generation, numbers

        for numbers in shares:
            send(numbers)
        while pending:
            done = self.fleet.first(pending)
            member, generation, numbers = pending[done]
            # Messages are worked on in the order in which they were sent.
            at = next(sent for who, which, sent in pending.values() if (who, which) == (member, generation))[0]
            del pending[done]
            try:
                report: Report = self.fleet.get(done)
            except Lost as loss:
                deaths[at] += member.generation == generation  # all that was sent to it tells of the same death
                self.fleet.replace(member, generation, loss, deaths[at])
                self._rehome()
                for share in self._shares(numbers):
                    send(share)
                continue
            self._calls += report.sample_calls
            self.fleet.heard(member, report.sample_calls)
            yield numbers, report.sample_calls, report

    def _sent(self, member: Member, numbers: Sequence[int], questions: Sequence[Question[Any]]) -> Any:
        missing = [number for number in numbers if not self._is_open(number, member)]
        opening = replace(self._opening, calls={number: self._opening.calls[number] for number in missing})
        for number in missing:
            self._open[number] = member.number, member.generation
        member.runs += len(missing)
        given = opening if missing else None
        return self.fleet.send(member, "work", self._key, given, list(numbers), list(questions))

    def _is_open(self, number: int, member: Member) -> bool:
        return self._open.get(number) == (member.number, member.generation)

    def _shares(self, numbers: Iterable[int]) -> list[list[int]]:
        """Runs by the worker that has them."""
        found: dict[int, list[int]] = {}
        for number in numbers:
            found.setdefault(self._homes[number].number, []).append(number)
        return list(found.values())

    def _rehome(self) -> None:
        """Give the runs of workers that are gone to those who have fewest."""
        members = self.fleet.members
        there = {member.number: 0 for member in members}
        for home in self._homes.values():
            if home.number in there:
                there[home.number] += 1
        for number, home in self._homes.items():
            if home not in members:
                least = min(members, key=lambda member: there[member.number])
                self._homes[number] = least
                there[least.number] += 1
