"""The ladder: every budget from one climb.

From a computed step, reuse reaches every later step for free; only *computing* there costs a call. So the search goes
layer by layer in the number b of computed steps. From every kept path it rolls by reuse to every later step, scores the
arrival against the teacher's own latent there, keeps the best few arrivals per step, and computes each once. Every kept
path, rolled by reuse to the end, is a finished mask of b calls as well: the best of them is rung b.

Scored with plain reuse this is the ladder of masks; scored with `refine.Fitted`, the transitions are fitted stretches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from budcache.errors import SearchError
from budcache.mask import Mask
from budcache.strategies.strategy import Ask, Proposals

__all__ = ["LadderSearch"]


@dataclass(frozen=True)
class LadderSearch:
    """Climb from one computed step to the largest budget, collecting the smaller ones on the way.

    Args:
        beam: how many arrivals to keep per step and layer.
    """

    beam: int = 1

    def __post_init__(self) -> None:
        if self.beam < 1:
            raise SearchError(f"a ladder needs a beam of at least 1, got {self.beam}.")

    def propose(self, steps: int, budgets: tuple[int, ...], rng: Random) -> Proposals:
        """Layer by layer; see `Strategy`. Nothing is left to chance."""
        paths: list[tuple[int, ...]] = [(0,)]
        for _ in range(budgets[-1]):
            arrivals: dict[int, list[tuple[float, tuple[int, ...]]]] = {}
            scores = yield Ask(tuple(Mask.of(steps, path) for path in paths), "ladder")
            for path, score in zip(paths, scores, strict=True):
                for step in range(path[-1] + 1, steps):
                    arrivals.setdefault(step, []).append((score.arrival(step), (*path, step)))
            paths = [path for step in sorted(arrivals) for _, path in sorted(arrivals[step])[: self.beam]]

    def expected(self, steps: int, budgets: tuple[int, ...]) -> int | None:
        """Each layer scores, per step, as many paths as the beam keeps or as there are."""
        layers = range(2, budgets[-1] + 1)
        return 1 + sum(min(self.beam, math.comb(step - 1, b - 2)) for b in layers for step in range(1, steps))
