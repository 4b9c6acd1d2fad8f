"""The search of the authors' published code, where it differs from the paper; so that its settings can be repeated.

Differences from Algorithms 1 and 2: a prefix of computed steps is forced, the start is random, moves are windowed with
random jumps and double moves, climbing looks at a sample of neighbours with a cap on rounds and starts from the last
accepted mask instead of the best. The variant for Wan moves and climbs in yet another way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from budcache.errors import SearchError
from budcache.mask import Mask
from budcache.strategies.anneal import usual_climb
from budcache.strategies.space import Space
from budcache.strategies.strategy import Ask, Phase, Proposals

__all__ = ["PRESETS", "Authors"]

WINDOW = 3


@dataclass(frozen=True)
class Authors:
    """The published code's search, for FLUX and Z-Image or for Wan."""

    iterations: int = 200
    restarts: int = 1
    hot: float = 0.05
    cold: float = 1e-5
    rounds: int = 20  # of climbing, at most
    wan: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.cold < self.hot:
            raise SearchError(f"temperatures must fall from above to above zero, got {self.hot:g} to {self.cold:g}.")
        if self.iterations < 1 or self.restarts < 1 or self.rounds < 0:
            raise SearchError(
                f"{self.iterations} iterations, {self.restarts} restarts and {self.rounds} rounds are no search. "
                "Choose at least 1, 1 and 0."
            )

    def propose(self, steps: int, budgets: tuple[int, ...], rng: Random) -> Proposals:
        """Anneal and climb, one budget after the other; see `Strategy`."""
        for budget in budgets:
            space = Space(steps, budget)
            fresh = max(1, int(0.3 * budget) if self.wan else budget // 4)
            for _ in range(self.restarts):
                start = yield from self._anneal(space, fresh, rng)
                yield from (self._climb_wan if self.wan else self._climb)(space, fresh, start, rng)

    def expected(self, steps: int, budgets: tuple[int, ...]) -> int | None:
        """Annealing is known, climbing is not."""
        total = 0
        for budget in budgets:
            space = Space(steps, budget)
            climb = (
                20 * self.rounds if self.wan else min(usual_climb(space, WINDOW), self._a_round(space) * self.rounds)
            )
            total += min(len(space), self.restarts * (self.iterations + climb))
        return total

    def _a_round(self, space: Space) -> int:
        """About how many masks a round of climbing looks at: the window's free steps, and two jumps."""
        movable = space.budget - max(1, space.budget // 4)
        return movable * (2 * WINDOW * (space.steps - space.budget) // space.steps + 2)

    def _anneal(self, space: Space, fresh: int, rng: Random) -> Phase:
        mask = best = space.random(rng, fresh)
        energy = (yield Ask.one(mask, "anneal"))[0].loss
        lowest = math.inf  # the initial mask never counts as the best
        for i in range(self.iterations):
            temperature = self.hot * (self.cold / self.hot) ** (i / self.iterations)
            candidate = self._move(space, mask, fresh, rng)
            loss = (yield Ask.one(candidate, "anneal"))[0].loss
            if loss < energy or rng.random() < math.exp((energy - loss) / temperature):
                mask, energy = candidate, loss
                if energy < lowest:
                    best, lowest = mask, energy
        return best if self.wan else mask  # the code for FLUX climbs from where annealing ended

    def _move(self, space: Space, mask: Mask, fresh: int, rng: Random) -> Mask:
        movable = [k for k in mask.computed if k >= fresh]
        free = [k for k, bit in enumerate(mask) if not bit]
        if not movable or not free:
            return mask
        if not self.wan and rng.random() >= 0.9 and min(len(movable), len(free)) >= 2:
            # Two at once go anywhere; only single moves prefer steps near by.
            pairs = zip(rng.sample(movable, 2), rng.sample(free, 2), strict=True)
            for k, j in pairs:
                mask = _moved(space, mask, k, j)
            return mask
        k = rng.choice(movable)
        near = [j for j in free if abs(j - k) <= WINDOW]
        j = rng.choice(near if not self.wan and rng.random() < 0.7 and near else free)
        return _moved(space, mask, k, j)

    def _climb(self, space: Space, fresh: int, start: Mask, rng: Random) -> Phase:
        best, lowest = start, (yield Ask.one(start, "climb"))[0].loss
        for _ in range(self.rounds):
            here = best
            free = [k for k, bit in enumerate(here) if not bit]
            candidates: dict[Mask, None] = {}  # a set that keeps its order
            for k in (k for k in here.computed if k >= fresh):
                # A jump that lands on a computed step is lost, as in their code.
                jumps = [rng.randrange(fresh, space.steps) for _ in range(2)]
                for j in [*(j for j in free if abs(j - k) <= WINDOW), *(j for j in jumps if not here[j])]:
                    candidates[_moved(space, here, k, j)] = None
            for mask, score in zip(candidates, (yield Ask(tuple(candidates), "climb")), strict=True):
                if score.loss < lowest:
                    best, lowest = mask, score.loss
            if best == here:
                break
        return best

    def _climb_wan(self, space: Space, fresh: int, start: Mask, rng: Random) -> Phase:
        best, lowest = start, (yield Ask.one(start, "climb"))[0].loss
        for _ in range(self.rounds):  # never stops early
            here = best
            movable = [k for k in here.computed if k >= fresh]
            free = [k for k, bit in enumerate(here) if not bit]
            if not movable or not free:
                break
            pairs = [(k, j) for k in movable for j in free if abs(j - k) <= WINDOW]
            jumps = [(rng.choice(movable), rng.choice(free)) for _ in range(40)]
            pairs += [(k, j) for k, j in jumps if abs(k - j) > WINDOW]
            pairs = list(dict.fromkeys(pairs))  # each once; theirs is a set, whose order is nobody's
            around = tuple(_moved(space, here, k, j) for k, j in rng.sample(pairs, min(20, len(pairs))))
            for mask, score in zip(around, (yield Ask(around, "climb")), strict=True):
                if score.loss < lowest:
                    best, lowest = mask, score.loss
        return best


def _moved(space: Space, mask: Mask, from_step: int, to_step: int) -> Mask:
    return Mask.of(space.steps, {*mask.computed, to_step} - {from_step})


# The paper's table of searches prints R and SA but not the rounds of climbing. Its counts of masks (94 with R1 SA20 and
# 290 with R2 SA100, at 8 calls) leave room for two: a round looks at some 40. With two, tiny-flux takes 93 and 291.
PAPER_ROUNDS = 2

PRESETS = {
    "r1-sa20": Authors(iterations=20, restarts=1, rounds=PAPER_ROUNDS),
    "r2-sa100": Authors(iterations=100, restarts=2, rounds=PAPER_ROUNDS),
    "wan": Authors(iterations=200, hot=0.1, cold=1e-4, rounds=5, wan=True),
    "z-image": Authors(iterations=200, rounds=5),
    "z-image-turbo": Authors(iterations=2, rounds=1),
}
