"""Asking runs: what a search, a fit or a judge wants to know of samples, wherever these are held open.

Whoever searches never touches a latent. It asks questions, which every run answers where it is: in this process
(`calibration.py`), or with a worker on another machine (`workers/`). Answers are numbers, few beside a latent, and they
come back run by run in a fixed order; all sums over samples are made by who asks. So what is found does not depend on
where the runs are.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from budcache.errors import SearchError
from budcache.mask import Mask
from budcache.records.gram import Array, Grams

if TYPE_CHECKING:
    from budcache.calibration.calibration import Calibration

__all__ = ["Asked", "Facts", "Question", "Scope", "Thought", "finite", "new_owner", "together"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Question(Protocol[T_co]):
    """What a run can be asked. Questions and answers are values that can be sent to another process."""

    def answer(self, known: Calibration, number: int) -> T_co:
        """What one of the runs that are here says."""


# A line of thought: asks one question after the other, is sent the answers of all runs, and ends with what it found.
Thought: TypeAlias = Generator[Question[Any], list[Any], T]


@dataclass(frozen=True)
class Scope:
    """Which states of the runs are remembered between somebody's questions; see `Prefixes`.

    Args:
        owner: whose they are; see `new_owner`.
        outputs: how many outputs to keep in a state.
        memory: bytes that may be spent, wherever runs are held; 0 remembers only where the last walk ended.
        branch: whether to keep the conditional branch's outputs, too.
        switch: a step behind which the outputs from before it are forgotten.
    """

    owner: int
    outputs: int = 1
    memory: int = 0
    branch: bool = False
    switch: int | None = None


_owners = count(1)


def new_owner() -> int:
    """A number for somebody who asks: what is kept where the runs are is told apart by it."""
    return next(_owners)


@dataclass(frozen=True)
class Facts:
    """What is known of a run since its full run was made.

    Attributes:
        samples: how many there are in its batch.
        sigmas: its K + 1 noise levels.
        guided: whether it tells the branches of its guidance apart (F12).
        coarse: whether its network computes in half precision.
        size: bytes of its latents.
        gram: its full run as inner products (F10), if it was recorded.
    """

    samples: int
    sigmas: Tensor
    guided: bool
    coarse: bool
    size: int
    gram: Array | None = None


class Asked(ABC):
    """Samples with their teachers, that can be asked.

    Attributes:
        facts: of every run, in their order.
        switch: the step at which another expert takes over, whose fits are not to look back before it.
    """

    facts: list[Facts]
    switch: int | None

    @property
    @abstractmethod
    def calls(self) -> int:
        """Sample-calls so far: model evaluations times samples, the teachers' included."""

    @abstractmethod
    def ask(self, questions: Sequence[Question[T]]) -> Iterator[list[T]]:
        """What all runs answer, question by question."""

    @abstractmethod
    def each(self, question: Question[T], numbers: Sequence[int]) -> Iterator[tuple[int, T, int]]:
        """What some of the runs answer, as it comes in: the run, its answer, and the sample-calls that it took."""

    @abstractmethod
    def forget(self, scope: Scope) -> None:
        """Let go of the states that are remembered."""

    @abstractmethod
    def forget_finals(self, owner: int, but: frozenset[Any] = frozenset()) -> None:
        """Let go of the final latents that are kept for somebody, but for some of them."""

    def room(self, scope: Scope, budget: int) -> int:
        """How many masks to work on side by side. Here, one: each is scored when it is asked for."""
        return 1

    @property
    def steps(self) -> int:
        """K."""
        return len(self.facts[0].sigmas) - 1

    @property
    def samples(self) -> int:
        """How many samples there are."""
        return sum(fact.samples for fact in self.facts)

    @property
    def is_guided(self) -> bool:
        """Whether every run tells the branches of its guidance apart (F12)."""
        return all(fact.guided for fact in self.facts)

    @property
    def levels(self) -> tuple[float, ...]:
        """The K + 1 noise levels that all runs have; none if they differ, as they do with the size of a picture."""
        first = self.facts[0].sigmas
        same = all(torch.equal(fact.sigmas, first) for fact in self.facts)
        # As short as they can be written: a float32 has nine digits, and a float of Python twice as many.
        return tuple(float(str(level)) for level in first.float().numpy()) if same else ()

    @property
    def grams(self) -> Grams:
        """The full runs as inner products, if they were recorded."""
        products = [fact.gram for fact in self.facts if fact.gram is not None]
        if len(products) < len(self.facts):
            raise SearchError("these full runs were not recorded.")
        return Grams(self.facts[0].sigmas.double().numpy(), np.concatenate(products))

    def check(self, mask: Mask) -> None:
        """Refuse a mask of another length."""
        if len(mask) != self.steps:
            raise SearchError(f"the mask has {len(mask)} steps, but the runs have {self.steps}.")


def together(asked: Asked, thoughts: Iterable[Thought[T]], room: int = 1) -> Iterator[T]:
    """Follow lines of thought to their ends, so many at a time; those ask their questions side by side.

    What they found comes in their order, each as soon as it and all before it are known.
    """
    ahead = iter(thoughts)
    while group := list(islice(ahead, room)):
        yield from _side_by_side(asked, group)


def _side_by_side(asked: Asked, thoughts: Sequence[Thought[T]]) -> Iterator[T]:
    found: dict[int, T] = {}
    told = 0
    asking: dict[int, Question[Any]] = {}
    answers: dict[Question[Any], list[Any]] = {}
    going = list(range(len(thoughts)))
    while going:
        for number in going:
            try:
                # A thought that has not asked yet begins.
                said = answers[asking.pop(number)] if number in asking else None
                asking[number] = thoughts[number].send(said)  # type: ignore[arg-type]
            except StopIteration as end:
                found[number] = end.value
        while told in found:  # before the next round: whoever writes it down does not lose it in that
            yield found.pop(told)
            told += 1
        going, questions = list(asking), list(dict.fromkeys(asking.values()))  # what several ask is asked once
        answers = dict(zip(questions, asked.ask(questions), strict=True))


def finite(mask: Mask, losses: Sequence[float]) -> tuple[float, ...]:
    """A mask's losses; they must be numbers."""
    for loss in losses:
        if not math.isfinite(loss):
            raise SearchError(
                f"the loss of mask {mask} is {loss}. Check that the model's output is finite in its number format "
                "(float16 overflows where bfloat16 does not)."
            )
    return tuple(losses)
