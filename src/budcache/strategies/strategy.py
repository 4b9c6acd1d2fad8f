"""Strategies propose masks, the driver scores them."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Protocol

from budcache.calibration.score import Score
from budcache.errors import SearchError
from budcache.events import Scored
from budcache.mask import Mask

__all__ = ["Ask", "Found", "Limits", "Phase", "Proposals", "ScoreMany", "Strategy", "drive"]


@dataclass(frozen=True)
class Ask:
    """Masks to score, and the phase of the search that wants to know.

    Masks that do not depend on each other's scores are asked for together, so that they can be scored side by side.
    """

    masks: tuple[Mask, ...]
    phase: str

    @classmethod
    def one(cls, mask: Mask, phase: str) -> Ask:
        """A single mask."""
        return cls((mask,), phase)


Proposals = Generator[Ask, tuple[Score, ...], None]
Phase = Generator[Ask, tuple[Score, ...], Mask]  # a part of a search that ends with its best mask
ScoreMany = Callable[[Ask], Iterator[Score]]  # in the order of the masks, each when it is asked for


class Strategy(Protocol):
    """A way to search. It keeps no score of its own: the driver does, and cannot forget the best."""

    def propose(self, steps: int, budgets: tuple[int, ...], rng: Random) -> Proposals:
        """Yield masks to try, one or several, and be sent their scores. All chance comes from `rng`."""

    def expected(self, steps: int, budgets: tuple[int, ...]) -> int | None:
        """About how many masks will be scored, if that can be said beforehand; progress bars like to know."""


@dataclass(frozen=True)
class Limits:
    """Where a search stops even if its strategy would go on; None is no limit."""

    calls: int | None = None
    seconds: float | None = None
    evaluations: int | None = None
    spent: tuple[float, int] = (0.0, 0)  # seconds and evaluations of searches before this one

    def reached(self, calls: int, seconds: float, evaluations: int) -> str | None:
        """Which limit has been reached, for people to read."""
        for name, limit, now in (
            ("calls", self.calls, calls),
            ("seconds", self.seconds, seconds + self.spent[0]),
            ("evaluations", self.evaluations, evaluations + self.spent[1]),
        ):
            if limit is not None and now >= limit:
                return f"{name} limit of {limit:g}"
        return None

    def after(self, seconds: float, evaluations: int) -> Limits:
        """The same for a search that follows; calls are counted over both."""
        return replace(self, spent=(self.spent[0] + seconds, self.spent[1] + evaluations))


@dataclass
class Found:
    """What a search has found: every scored mask, and how it got there."""

    scores: dict[Mask, Score] = field(default_factory=dict)
    history: list[Scored] = field(default_factory=list)
    stopped: str | None = None  # by which limit

    def best(self, budget: int, count: int = 1) -> list[Mask]:
        """The masks of lowest loss with exactly this budget, best first; ties go to the one that came first."""
        fitting = [mask for mask in self.scores if mask.budget == budget]
        return sorted(fitting, key=lambda mask: self.scores[mask].loss)[:count]


def drive(
    strategy: Strategy,
    score_many: ScoreMany,
    *,
    steps: int,
    budgets: Iterable[int],
    seed: int = 0,
    limits: Limits | None = None,
    calls: Callable[[], int] = lambda: 0,
    watch: Callable[[Scored], None] | None = None,
) -> Found:
    """Let a strategy search: score what it proposes, each mask once, until it is done or a limit is reached."""
    wanted = tuple(sorted(set(budgets)))
    if not wanted:
        raise SearchError("there is no budget to search for. Give at least one.")
    for budget in wanted:
        if not 1 <= budget <= steps:
            raise SearchError(f"a budget of {budget} does not fit {steps} steps. Choose budgets from 1 to {steps}.")
    found, limits, begin = Found(), limits or Limits(), time.monotonic()

    def answered(ask: Ask) -> tuple[Score, ...] | None:
        """The scores of what was asked for; None if a limit was reached on the way."""
        unknown = tuple(mask for mask in dict.fromkeys(ask.masks) if mask not in found.scores)
        fresh = score_many(Ask(unknown, ask.phase))
        for mask in ask.masks:
            new = mask not in found.scores
            if new:
                found.stopped = limits.reached(calls(), time.monotonic() - begin, len(found.scores))
                if found.stopped is not None:
                    return None
                found.scores[mask] = next(fresh)
            found.history.append(Scored(mask, found.scores[mask].loss, ask.phase, calls(), new))
            if watch is not None:
                watch(found.history[-1])
        return tuple(found.scores[mask] for mask in ask.masks)

    proposals = strategy.propose(steps, wanted, Random(seed))
    try:
        ask = next(proposals, None)
        while ask is not None and (answer := answered(ask)) is not None:
            ask = _next(proposals, answer)
    finally:
        proposals.close()
    return found


def _next(proposals: Proposals, answer: tuple[Score, ...]) -> Ask | None:
    """What a strategy asks next; None when it is done. Only its own end is one: not that of a scoring function."""
    try:
        return proposals.send(answer)
    except StopIteration:
        return None
