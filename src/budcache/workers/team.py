"""A team: workers that have loaded a pipeline, which jobs take in the place of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import budcache
from budcache.errors import PipelineError
from budcache.events import JobName, Watch
from budcache.jobs.setup import Elsewhere, Setup, Taught, Teaching, about_of
from budcache.workers.fleet import Fleet, Lost, Member
from budcache.workers.options import Source
from budcache.workers.shards import Shards
from budcache.workers.worker import Opening

if TYPE_CHECKING:
    from torch import Tensor

    from budcache.pipeline.about import About

__all__ = ["Team", "check_same"]


class Team(Elsewhere):
    """A pipeline that every worker of a fleet has loaded.

    Args:
        fleet: the workers.
        source: what each loads.
    """

    def __init__(self, fleet: Fleet, source: Source) -> None:
        self.fleet = fleet
        self._handed_out = 0  # runs so far, so that the next ones go to who has fewest
        fleet.load(source)
        fleet.check = self._check_newcomer

    @cached_property
    def about(self) -> About:
        """What there is to know of the pipeline; all workers must have the same one."""
        members = list(self.fleet.members)
        asked = [(member, self.fleet.send(member, "about")) for member in members]
        found: list[About] = [self._said(member, "about", said) for member, said in asked]
        for member, other in zip(members, found, strict=True):
            _require_same(f"worker {members[0].number} on {members[0].node}", found[0], member, other)
        if (theirs := found[0].origin.versions.get("budcache")) != budcache.__version__:
            raise PipelineError(
                f"the workers have budcache {theirs}, and here it is {budcache.__version__}. Install the same on all "
                "machines."
            )
        return found[0]

    def _check_newcomer(self, member: Member) -> None:
        """Whoever takes the place of a dead worker may be on another machine, with other versions or another model."""
        if "about" not in self.__dict__:  # nobody has asked yet, and who does will ask everybody
            return
        _require_same("the others", self.about, member, self.fleet.get(self.fleet.send(member, "about")))

    def switch(self, steps: int) -> int | None:
        """See `Elsewhere`."""
        found: int | None = self._first("switch", steps)
        return found

    def guided(self, sample: Mapping[str, Any]) -> bool:
        """See `Elsewhere`."""
        return bool(self._first("guided", sample))

    def finer_sigmas(self, setup: Setup, sample: Mapping[str, Any]) -> Tensor:
        """See `Elsewhere`."""
        found: Tensor = self._first("finer_sigmas", _sent(setup), sample)
        return found

    def _first(self, method: str, *arguments: Any) -> Any:
        member = self.fleet.members[0]
        return self._said(member, method, self.fleet.send(member, method, *arguments), *arguments)

    def _said(self, member: Member, method: str, message: Any, *arguments: Any) -> Any:
        """What a worker answers, or whoever takes its place."""
        try:
            return self.fleet.get(message)
        except Lost as loss:
            self.fleet.replace(member, member.generation, loss)
            return self._first(method, *arguments)

    @contextmanager
    def calibration(
        self, setup: Setup, calls: Sequence[Mapping[str, Any]], teaching: Teaching, taught: Taught | None
    ) -> Iterator[Shards]:
        """See `Elsewhere`."""
        memory = float("inf") if setup.shelf is None else setup.shelf.bound
        opening = Opening(_sent(setup), teaching, memory, dict(enumerate(calls)))
        switch = None if setup.across else setup.switch
        shards = Shards(self.fleet, opening, switch, self._handed_out)
        self._handed_out += len(calls)
        try:
            shards.teach(taught)
            yield shards
        finally:
            shards.close()

    @contextmanager
    def watched(self, watch: Watch, job: JobName) -> Iterator[None]:
        """See `Elsewhere`."""
        before = self.fleet.watch, self.fleet.job
        self.fleet.watch, self.fleet.job = watch, job
        try:
            yield
        finally:
            self.fleet.watch, self.fleet.job = before


def check_same(pipe: Any, team: Team) -> None:
    """Refuse workers that have loaded another pipeline than the one that is here."""
    here, there = about_of(pipe), team.about
    if here != there:
        raise PipelineError(
            f"the workers have loaded another pipeline than the one that was given: {_difference(here, there)}. Give "
            "Workers(load=...) what makes the same one."
        )


def _sent(setup: Setup) -> Setup:
    """A setup as it is sent to workers, who have the pipeline and a shelf themselves."""
    return replace(setup, pipe=None, shelf=None)


def _require_same(one: str, mine: About, member: Member, theirs: About) -> None:
    if mine != theirs:
        raise PipelineError(
            f"worker {member.number} on {member.node} has loaded another pipeline than {one}: "
            f"{_difference(mine, theirs)}. Give all machines the same model and versions."
        )


def _difference(one: About, other: About) -> str:
    """In what two pipelines differ, as a clause."""
    if one.number_format != other.number_format:
        return f"its numbers are {one.number_format} here and {other.number_format} there"
    mine, theirs = dict(one.origin), dict(other.origin)
    name = next((name for name in mine if mine[name] != theirs[name]), "arguments")
    return f"its {name} is {mine.get(name)!r} here and {theirs.get(name)!r} there"
