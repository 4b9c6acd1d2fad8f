"""Algorithms 1 and 2 of the paper, as printed: simulated annealing, then steepest hill climbing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from budcache.errors import SearchError
from budcache.mask import Mask
from budcache.strategies.space import Space
from budcache.strategies.strategy import Ask, Phase, Proposals

__all__ = ["PRESETS", "Anneal", "climb", "usual_climb"]


@dataclass(frozen=True)
class Anneal:
    """The paper's hybrid search, one budget after the other.

    Args:
        iterations: annealing steps per restart; with `gamma` None they set it, so that T falls from `hot` to `cold`.
        restarts: independent restarts R. The first starts from uniform spacing as printed, later ones at random.
        hot: T_0, in units of the loss.
        cold: T_min.
        gamma: the factor by which T falls each step; sets the number of iterations if given.
    """

    iterations: int = 100
    restarts: int = 1
    hot: float = 0.05
    cold: float = 1e-5
    gamma: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.cold < self.hot:
            raise SearchError(f"temperatures must fall from above to above zero, got {self.hot:g} to {self.cold:g}.")
        if self.gamma is not None and not 0 < self.gamma < 1:
            raise SearchError(f"gamma must lie between 0 and 1, got {self.gamma:g}.")
        if self.iterations < 1 or self.restarts < 1:
            raise SearchError(
                f"{self.iterations} iterations and {self.restarts} restarts are no search. Choose at least 1 of each."
            )

    def propose(self, steps: int, budgets: tuple[int, ...], rng: Random) -> Proposals:
        """Anneal, then climb from the best mask seen; see `Strategy`."""
        for budget in budgets:
            space = Space(steps, budget)
            for restart in range(self.restarts):
                start = space.uniform() if restart == 0 else space.random(rng)
                valley = yield from self._explore(space, start, rng)
                yield from climb(space, valley)

    def expected(self, steps: int, budgets: tuple[int, ...]) -> int | None:
        """Annealing is known, climbing is not."""
        spaces = [Space(steps, budget) for budget in budgets]
        return sum(min(len(space), self.restarts * (self.coolings + usual_climb(space))) for space in spaces)

    @property
    def coolings(self) -> int:
        """How often T falls until it is T_min."""
        return math.ceil(math.log(self.cold / self.hot) / math.log(self._gamma) - 1e-9)

    @property
    def _gamma(self) -> float:
        return self.gamma or (self.cold / self.hot) ** (1 / self.iterations)

    def _explore(self, space: Space, start: Mask, rng: Random) -> Phase:
        """Algorithm 1."""
        mask = best = start
        energy = lowest = (yield Ask.one(mask, "anneal"))[0].loss
        temperature = self.hot
        for _ in range(self.coolings):  # while T > T_min
            candidate = space.neighbour(mask, rng)
            loss = (yield Ask.one(candidate, "anneal"))[0].loss
            if loss < energy or rng.random() < math.exp((energy - loss) / temperature):
                mask, energy = candidate, loss
                if energy < lowest:
                    best, lowest = mask, energy
            temperature *= self._gamma
        return best


def climb(
    space: Space, start: Mask, window: int | None = None, rounds: int | None = None, phase: str = "climb"
) -> Phase:
    """Algorithm 2: move to the best neighbour until none is better.

    Args:
        space: the masks of one budget.
        start: where to begin.
        window: how far a computed step may move at once; None is anywhere, as printed.
        rounds: moves at most; None is until the top.
        phase: what the history calls it.
    """
    best, lowest = start, (yield Ask.one(start, phase))[0].loss
    while rounds is None or rounds > 0:
        here = best
        around = tuple(space.neighbours(here, window))
        for mask, score in zip(around, (yield Ask(around, phase)), strict=True):
            if score.loss < lowest:
                best, lowest = mask, score.loss
        if best == here:
            break
        rounds = None if rounds is None else rounds - 1
    return best


def usual_climb(space: Space, window: int | None = None) -> int:
    """About how many masks a climb scores: it ends when it ends, on tiny-flux after four or five rounds.

    A mask's neighbours are in part those of the mask before it, so these are as many as three rounds have.
    """
    return 3 * len(space.neighbours(space.uniform(), window))


PRESETS = {"r1-sa20": Anneal(iterations=20, restarts=1), "r2-sa100": Anneal(iterations=100, restarts=2)}
