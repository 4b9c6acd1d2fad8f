"""One worker: a process that has loaded the pipeline, and holds some runs of a job open.

It runs the same classes on its runs that one process runs on all of them. Nothing heavy is imported before it is told
what to load.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from budcache.calibration.asking import Facts, Question, Scope
    from budcache.calibration.calibration import Calibration
    from budcache.jobs.setup import Setup, Teaching
    from budcache.numerics.shelf import Shelf
    from budcache.pipeline.about import About
    from budcache.workers.options import Source

__all__ = ["Opening", "Report", "Starved", "Worker"]


class Starved(Exception):
    """A worker has run out of memory: whatever it holds, another one is to take its place."""


@contextmanager
def starving() -> Iterator[None]:
    """Running out of memory within is told as such."""
    try:
        yield
    except Exception as error:
        from budcache.numerics.memory import is_out_of_memory

        if is_out_of_memory(error):
            raise Starved(" ".join(str(error).split())[:200] or type(error).__name__) from None
        raise


@dataclass(frozen=True)
class Opening:
    """Runs to open before there is anything to ask.

    Args:
        setup: how they are imitated; its pipeline is the worker's own.
        teaching: what of their full runs is kept.
        memory: bytes of main memory for states.
        calls: what to call the pipeline with, by the number of the run.
    """

    setup: Setup
    teaching: Teaching
    memory: float
    calls: Mapping[int, Mapping[str, Any]]


@dataclass(frozen=True)
class Report:
    """What a worker has to say.

    Args:
        facts: of the runs that it has opened.
        answers: for each question, the answers of the runs that were asked.
        sample_calls: that all this took.
    """

    facts: Mapping[int, Facts] = field(default_factory=dict)
    answers: Sequence[Sequence[Any]] = ()
    sample_calls: int = 0


class _Held:
    """The runs of one calibration that are here."""

    def __init__(self, pipe: Any, opening: Opening, shelf: Shelf) -> None:
        self.stack = ExitStack()
        self.setup = replace(opening.setup, pipe=pipe, shelf=shelf)
        self.calibration: Calibration | None = None
        self.places: dict[int, int] = {}  # where in the calibration a run is

    @property
    def calls(self) -> int:
        return 0 if self.calibration is None else self.calibration.calls

    def open(self, number: int, call: Mapping[str, Any], teaching: Teaching) -> Facts:
        run = self.stack.enter_context(self.setup.opened(call))
        if self.calibration is None:
            self.calibration = self.setup.taught([run], teaching)
        else:
            self.calibration.add(run)
        self.places[number] = len(self.places)
        return self.calibration.facts[-1]


class Worker:
    """The actor. Its methods are called one after the other."""

    def __init__(self) -> None:
        self._held: dict[int, _Held] = {}
        self._stack = ExitStack()
        self._shelf: Shelf | None = None  # one for all calibrations that are open, as in one process
        self._pipe: Any = None

    def where(self) -> tuple[str, int]:
        """The machine and the process."""
        import socket

        return socket.gethostname(), os.getpid()

    def load(self, source: Source, threads: int, gpus: float | None) -> None:
        """Load the pipeline."""
        from budcache.workers.loading import loaded

        with starving():
            self._pipe = loaded(source, threads, gpus)

    def about(self) -> About:
        """What there is to know of the pipeline."""
        from budcache.pipeline.about import About

        return About.of(self._pipe)

    def switch(self, steps: int) -> int | None:
        """See `Setup`."""
        from budcache.pipeline.experts import switch_of

        return switch_of(self._pipe, steps)

    def guided(self, sample: Mapping[str, Any]) -> bool:
        """See `Setup`."""
        from budcache.pipeline.origin import expects_two

        return expects_two(self._pipe, sample)

    def finer_sigmas(self, setup: Setup, sample: Mapping[str, Any]) -> Tensor | None:
        """See `Setup`."""
        with starving():
            return replace(setup, pipe=self._pipe).finer_sigmas(sample)

    def work(
        self, key: int, opening: Opening | None, numbers: Sequence[int], questions: Sequence[Question[Any]]
    ) -> Report:
        """Open runs that are not open yet, then ask.

        Args:
            key: of the calibration that the runs are of.
            opening: the runs to open, if there are some.
            numbers: the runs to ask.
            questions: what to ask them.
        """
        with starving():
            if opening is not None and key not in self._held:
                self._held[key] = _Held(self._pipe, opening, self._shelved(opening.memory))
            held = self._held[key]
            before = held.calls
            facts: dict[int, Facts] = {}
            if opening is not None:
                new = {number: call for number, call in opening.calls.items() if number not in held.places}
                facts = {number: held.open(number, call, opening.teaching) for number, call in new.items()}
            assert held.calibration is not None
            answers = [
                [question.answer(held.calibration, held.places[number]) for number in numbers] for question in questions
            ]
            return Report(facts, answers, held.calls - before)

    def forget(self, key: int, scope: Scope) -> None:
        """See `Asked`."""
        if key in self._held and (known := self._held[key].calibration) is not None:
            known.forget(scope)

    def forget_finals(self, key: int, owner: int, but: frozenset[Any]) -> None:
        """See `Asked`."""
        if key in self._held and (known := self._held[key].calibration) is not None:
            known.forget_finals(owner, but)

    def close(self, key: int) -> None:
        """Let go of the runs of a calibration."""
        if key in self._held:
            self._held.pop(key).stack.close()
        if not self._held:
            self._stack.close()
            self._shelf = None

    def _shelved(self, memory: float) -> Shelf:
        from budcache.numerics.shelf import Shelf

        if self._shelf is None:
            self._shelf = self._stack.enter_context(Shelf(memory))
        return self._shelf
