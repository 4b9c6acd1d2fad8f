"""Masks drawn at random: what a search finds that looks nowhere in particular."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from budcache.errors import SearchError
from budcache.strategies.space import Space
from budcache.strategies.strategy import Ask, Proposals

__all__ = ["RandomMasks"]


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
            yield Ask(tuple(space.random(rng) for _ in range(self.count)), "random")

    def expected(self, steps: int, budgets: tuple[int, ...]) -> int | None:
        """Draws may repeat, so this is what there is at most."""
        return sum(min(self.count, len(Space(steps, budget))) for budget in budgets)
