"""The space of masks of K steps and budget B, and which of them are neighbours."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from random import Random

from budcache.errors import SearchError
from budcache.mask import Mask

__all__ = ["Space"]


@dataclass(frozen=True)
class Space:
    """All masks of `steps` steps that compute `budget` of them, step 0 always among them."""

    steps: int
    budget: int

    def __post_init__(self) -> None:
        if not 1 <= self.budget <= self.steps:
            raise SearchError(
                f"a budget of {self.budget} does not fit {self.steps} steps. Choose a budget from 1 to {self.steps}."
            )

    def __len__(self) -> int:
        return math.comb(self.steps - 1, self.budget - 1)

    def __contains__(self, mask: object) -> bool:
        return isinstance(mask, Mask) and len(mask) == self.steps and mask.budget == self.budget

    def __iter__(self) -> Iterator[Mask]:
        for rest in combinations(range(1, self.steps), self.budget - 1):
            yield Mask.of(self.steps, (0, *rest))

    def uniform(self) -> Mask:
        """The mask with evenly spaced computed steps: where Algorithm 1 starts."""
        return Mask.uniform(self.steps, self.budget)

    def random(self, rng: Random, fresh: int = 1) -> Mask:
        """A mask that computes the first `fresh` steps and draws the others."""
        drawn = rng.sample(range(fresh, self.steps), self.budget - fresh)
        return Mask.of(self.steps, (*range(fresh), *drawn))

    def shifts(self, mask: Mask) -> list[Mask]:
        """Shift: every mask in which one computed step has moved to an adjacent reused one."""
        return [
            self._moved(mask, k, j) for k in mask.computed[1:] for j in (k - 1, k + 1) if j < self.steps and not mask[j]
        ]

    def swaps(self, mask: Mask) -> list[Mask]:
        """Swap: every mask in which one computed and one reused step have changed places; shifts are among them."""
        reused = [k for k, bit in enumerate(mask) if not bit]
        return [self._moved(mask, k, j) for k in mask.computed[1:] for j in reused]

    def neighbours(self, mask: Mask, window: int | None = None) -> list[Mask]:
        """The paper's N(m), all masks one Swap or Shift away; with a `window`, only moves that far at most."""
        if window is None:
            return self.swaps(mask)
        reused = [k for k, bit in enumerate(mask) if not bit]
        return [self._moved(mask, k, j) for k in mask.computed[1:] for j in reused if abs(k - j) <= window]

    def neighbour(self, mask: Mask, rng: Random) -> Mask:
        """One neighbour by a random operator, Swap or Shift; a mask without neighbours is returned as it is."""
        moves = self.shifts(mask) if rng.random() < 0.5 else self.swaps(mask)
        moves = moves or self.swaps(mask)
        return rng.choice(moves) if moves else mask

    def _moved(self, mask: Mask, from_step: int, to_step: int) -> Mask:
        return Mask.of(self.steps, {*mask.computed, to_step} - {from_step})
