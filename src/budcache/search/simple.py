"""Strategies to compare with: uniform spacing, random masks, and all there are."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from budcache.errors import SearchError
from budcache.search.space import Space
from budcache.search.strategy import Ask, Proposals

__all__ = ["Exhaustive", "RandomMasks", "Uniform"]


@dataclass(frozen=True)
class Uniform:
    """The one mask with evenly spaced computed steps: no search at all."""

    def propose(self, steps: int, budgets: tuple[int, ...], rng: Random) -> Proposals:
        """See `Strategy`."""
        for budget in budgets:
            yield Ask(Space(steps, budget).uniform(), "uniform")

    def expected(self, steps: int, budgets: tuple[int, ...]) -> int | None:
        """One a budget."""
        return len(budgets)


@dataclass(frozen=True)
class RandomMasks:
    """As many masks as allowed, drawn at random."""

    count: int = 100

    def __post_init__(self) -> None:
        if self.count < 1:
            raise SearchError(f"a random search needs at least 1 mask, got {self.count}.")

    def propose(self, steps: int, budgets: tuple[int, ...], rng: Random) -> Proposals:
        """See `Strategy`."""
        for budget in budgets:
            space = Space(steps, budget)
            for _ in range(self.count):
                yield Ask(space.random(rng), "random")

    def expected(self, steps: int, budgets: tuple[int, ...]) -> int | None:
        """Draws may repeat, so this is what there is at most."""
        return sum(min(self.count, len(Space(steps, budget))) for budget in budgets)


@dataclass(frozen=True)
class Exhaustive:
    """Every mask there is; refuses where that is too many."""

    limit: int = 20_000

    def propose(self, steps: int, budgets: tuple[int, ...], rng: Random) -> Proposals:
        """See `Strategy`."""
        total = self.expected(steps, budgets)
        if total > self.limit:
            raise SearchError(
                f"there are {total} masks of these budgets, more than the {self.limit} that an exhaustive search takes "
                "on. Use fewer steps or the ladder."
            )
        for budget in budgets:
            for mask in Space(steps, budget):
                yield Ask(mask, "exhaustive")

    def expected(self, steps: int, budgets: tuple[int, ...]) -> int:
        """All of them."""
        return sum(len(Space(steps, budget)) for budget in budgets)
