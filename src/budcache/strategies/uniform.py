"""No search at all: uniform spacing, what every search has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from budcache.strategies.space import Space
from budcache.strategies.strategy import Ask, Proposals

__all__ = ["Uniform"]


@dataclass(frozen=True)
class Uniform:
    """The one mask with evenly spaced computed steps: no search at all."""

    def propose(self, steps: int, budgets: tuple[int, ...], rng: Random) -> Proposals:
        """See `Strategy`."""
        for budget in budgets:
            yield Ask.one(Space(steps, budget).uniform(), "uniform")

    def expected(self, steps: int, budgets: tuple[int, ...]) -> int | None:
        """One a budget."""
        return len(budgets)
