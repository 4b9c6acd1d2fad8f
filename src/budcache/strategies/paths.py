"""Masks from the full runs alone: shortest paths over the errors of their stretches (F10).

The full runs know how well every stretch could do, so the best masks of every budget are found without a model call.
What is left to try on the model are a few candidates a budget, one or two for each idea of how much of an early error
it mends by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Protocol

from budcache.errors import SearchError
from budcache.mask import Mask
from budcache.records import LIKELIEST
from budcache.strategies.strategy import Ask, Proposals

__all__ = ["Paths"]

# Measured on tiny-flux and small random models: how many of the powers' masks are different.
AGREED, ROOM = 0.65, 60
FEW = 3  # powers, where there are few samples
WORST = (0.0, LIKELIEST, -0.25, -0.5, 0.25)  # powers for the worst samples: where a run goes astray, it does so early


class Find(Protocol):
    """The masks of least cost for each budget; see `records.paths.ShortestPaths`."""

    def __call__(self, budgets: Sequence[int], power: float, count: int = 1) -> dict[int, list[Mask]]: ...


@dataclass(frozen=True)
class Paths:
    """The shortest paths of every budget.

    Args:
        powers: how early errors are discounted, candidates for each, the likeliest first; 0 counts them fully, and
            below it they count more than others.
        count: paths tried per power and budget.
        find: finds paths through recorded full runs; a search puts it in.
    """

    powers: tuple[float, ...] = (LIKELIEST, 0.0, 0.25, 1.0, 0.75)
    count: int = 1
    find: Find | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.powers or not 1 <= self.count <= 4 or not all(map(math.isfinite, self.powers)):
            raise SearchError(
                f"paths of powers {self.powers} and count {self.count} give no candidates. "
                "Choose finite powers, and a count from 1 to 4."
            )

    def with_few(self) -> Paths:
        """The same where the samples that rows are fitted on also choose: three of the usual powers are as good there.

        On tiny-flux with four prompts (five sets of them, four budgets each) +0.05 dB for a quarter fewer calls.
        """
        return replace(self, powers=self.powers[:FEW]) if self.powers in (Paths.powers, WORST) else self

    def for_worst(self) -> Paths:
        """The same where the worst samples matter most, unless powers were chosen."""
        return replace(self, powers=WORST) if self.powers == Paths.powers else self

    def on(self, find: Find) -> Paths:
        """The same strategy, with full runs to look at."""
        return replace(self, find=find)

    def propose(self, steps: int, budgets: tuple[int, ...], rng: Random) -> Proposals:
        """All candidates at once, of every budget first the likeliest; see `Strategy`."""
        if self.find is None:
            raise SearchError("paths are found from full runs. Search on a pipeline, or give it a record.")
        found = [self.find(budgets, power, self.count) for power in self.powers]
        best_first = [
            masks[b][place] for place in range(self.count) for masks in found for b in budgets if place < len(masks[b])
        ]
        yield Ask(tuple(dict.fromkeys(best_first)), "paths")

    def expected(self, steps: int, budgets: tuple[int, ...]) -> int | None:
        """The candidates. On some of them two powers agree, and on more where there is little to choose from."""
        more = AGREED * (len(self.powers) * self.count - 1)
        room = [(budget - 1) * (steps - budget) for budget in budgets]
        return round(sum(1 + more * (1 - math.exp(-choices / ROOM)) for choices in room))
