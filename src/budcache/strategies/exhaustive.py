"""Every mask there is, where there are few enough."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from budcache.errors import SearchError
from budcache.strategies.space import Space
from budcache.strategies.strategy import Ask, Proposals

__all__ = ["Exhaustive"]

TOGETHER = 256  # masks asked for at once


@dataclass(frozen=True)
class Exhaustive:
    """Every mask there is; refuses where that is too many.

    Args:
        limit: how many masks are not too many.
        forced: steps that every mask has to compute, beside the first.
    """

    limit: int = 20_000
    forced: tuple[int, ...] = ()

    def propose(self, steps: int, budgets: tuple[int, ...], rng: Random) -> Proposals:
        """See `Strategy`."""
        total = self.expected(steps, budgets)
        if total > self.limit:
            raise SearchError(
                f"there are {total} masks of these budgets, more than the {self.limit} that an exhaustive search takes "
                "on. Use fewer steps, fewer budgets or paths."
            )
        every = [mask for budget in budgets for mask in Space(steps, budget) if all(mask[k] for k in self.forced)]
        # Those that begin alike come one after the other, whatever their budget: few states have to be remembered.
        every.sort(key=lambda mask: mask.computed)
        for begin in range(0, len(every), TOGETHER):
            yield Ask(tuple(every[begin : begin + TOGETHER]), "exhaustive")

    def expected(self, steps: int, budgets: tuple[int, ...]) -> int:
        """All of them."""
        return sum(len(Space(steps, budget)) for budget in budgets)

    def calls(self, steps: int, budgets: tuple[int, ...]) -> int:
        """Model calls per sample, where the states of masks that agree so far are shared (F4).

        One for every way to begin: j computed steps behind the first, which some budget completes.
        """
        total = 0
        for j in range(1, max(budgets)):
            missing = min(budget - 1 for budget in budgets if budget > j) - j
            total += math.comb(steps - 1 - missing, j)
        return total
