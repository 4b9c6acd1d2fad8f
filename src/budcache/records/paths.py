"""Masks as shortest paths: the sum of their stretches' errors, minimised for every budget at once (F10)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from budcache.mask import Mask
from budcache.provenance import Refined
from budcache.records import EVERY
from budcache.records.gram import Array, Grams
from budcache.records.stretches import NONE, Stretches

__all__ = ["ShortestPaths", "longest_stretch", "progress"]

KEPT = 4  # paths per pair of last computed steps
RUNS = 256  # that masks are found from: more take more time and say no more
NEVER_FREE = 0.02  # of an error right at the start, so that no stretch costs nothing

Path = tuple[float, tuple[int, ...]]  # cost, computed steps
Layer = dict[tuple[int, int], list[Path]]  # by the last two computed steps


def progress(levels: Array) -> Array:
    """How far a run is at each level, from 0 (noise) to 1 (data)."""
    share = levels / (1 + levels) if levels.max() > 1.5 else levels  # of variance-exploding models they go beyond 1
    return np.asarray((share[0] - share) / (share[0] - share[-1]))


def longest_stretch(steps: int, budgets: Sequence[int]) -> int:
    """Stretches of more steps cannot win: twice the mean length at the smallest budget, or two fifths of the run.

    On every model tried, the best masks stayed well within it; the table is a third smaller. Where all masks together
    are few there is no such bound: every one is weighed.
    """
    if sum(math.comb(steps - 1, budget - 1) for budget in budgets) <= EVERY:
        return steps
    return min(steps, max(math.ceil(0.4 * steps), math.ceil(2 * steps / min(budgets))))


@dataclass(frozen=True)
class ShortestPaths:
    """The masks of least cost. Each stretch costs its error times `progress ** power` at its end.

    The model mends a part of an early error by itself; how much of it is what the power stands for. 0 counts early
    errors fully.
    """

    stretches: Stretches

    @classmethod
    def through(
        cls, grams: Grams, budgets: Sequence[int], fitted: bool = True, switch: int | None = None, every: bool = False
    ) -> ShortestPaths:
        """The paths through full runs, for some budgets; with `every`, however long their stretches."""
        longest = grams.steps if every else longest_stretch(grams.steps, budgets)
        return cls(Stretches(grams.spread(RUNS), fitted, longest=longest, switch=switch))

    def __call__(self, budgets: Sequence[int], power: float, count: int = 1) -> dict[int, list[Mask]]:
        """The masks of each budget, best first, `count` of them if there are so many."""
        steps = self.stretches.grams.steps
        found: dict[int, list[Mask]] = {}
        weigh = self._weigh(power)
        layer: Layer = {(NONE, 0): [(0.0, (0,))]}
        for calls in range(1, max(budgets) + 1):
            costs = {path: cost + self._onwards(path, weigh) for paths in layer.values() for cost, path in paths}
            if calls in budgets:
                whole = sorted((float(cost[steps]), path) for path, cost in costs.items())
                found[calls] = [Mask.of(steps, path) for cost, path in whole if math.isfinite(cost)][:count]
            layer = self._longer(costs)
        return found

    @property
    def refined(self) -> Refined:
        """What a policy says whose weights are those of `stretches`."""
        return Refined(how="from full runs", prompts=self.stretches.grams.samples, calls=0)

    def cost(self, mask: Mask, power: float) -> float:
        """What a mask costs."""
        computed, weigh = mask.computed, self._weigh(power)
        return math.fsum(
            float(self._onwards(computed[: place + 1], weigh)[end]) for place, (_, end) in enumerate(mask.segments)
        )

    def _weigh(self, power: float) -> Array:
        """What an error counts on arriving at each step."""
        return np.asarray((NEVER_FREE + progress(self.stretches.grams.levels)) ** power)

    def _onwards(self, path: tuple[int, ...], weigh: Array) -> Array:
        """What it costs to go on from a path to every later step, and to the end."""
        step = path[-1]
        return np.asarray(self.stretches.errors(step)[1][self.stretches.row(step, path[:-1])] * weigh)

    def _longer(self, costs: dict[tuple[int, ...], Array]) -> Layer:
        """All paths with one computed step more, the best few for each pair of last steps."""
        by_last: dict[int, list[tuple[int, ...]]] = {}
        for path in costs:
            by_last.setdefault(path[-1], []).append(path)
        longer: Layer = {}
        for last, paths in by_last.items():
            table = np.stack([costs[path] for path in paths])
            order = np.argsort(table, axis=0, kind="stable")[:KEPT]
            for end in range(last + 1, table.shape[1] - 1):
                best = [(float(table[row, end]), (*paths[row], end)) for row in order[:, end]]
                if best := [path for path in best if math.isfinite(path[0])]:
                    longer[last, end] = best
        return longer
