"""L2P (Learnable Linear Predictor): at fixed intervals compute, in between blend past features by learned weights.

Its code is announced and not yet there, so this follows the paper (arXiv 2604.26365). What is forecast is what leaves
the trunk. Each skipped step has weights of its own, which make the mean squared error on full runs least, with the
features of the full run on both sides. The authors find them by gradient descent; here the same minimum is solved for.
Open, and left to `tune`: how many past features are blended, and how strongly weights are held back (descent that stops
early does that by itself).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from torch import Tensor

from budcache.baselines.base import Branch, Here, Knob, Native, StaticBranch
from budcache.baselines.taylorseer import FIRST, intervals
from budcache.errors import SearchError
from budcache.mask import Mask

if TYPE_CHECKING:
    from budcache.baselines.record import Record

__all__ = ["L2P", "learned"]

Table = tuple[tuple[float, ...], ...]

# The likeliest first: of each mask only the first few settings meet those of other masks.
HISTORIES = (3, 4, 2, 100)  # past features; the last is all of them
RIDGES = (1e-2, 1e-4, 0.1, 1e-6, 1.0, 1e-8)  # from free weights to half of the way back to repeating


@dataclass(frozen=True, kw_only=True)
class L2P(Native):
    """L2P; static.

    Args:
        products: for each guidance branch, `products[b][a][k]`, mean products of what left the trunk at steps a and k.
        interval: the knob; 1 computes every step.
        first: how many first steps are always computed.
        history: how many past features are blended.
        ridge: how strongly weights are pulled towards repeating the newest feature, as a share of its square.
    """

    name: ClassVar[str] = "l2p"
    candidates: ClassVar[int] = 40
    knob: ClassVar[Knob] = Knob("interval", most=1, fewest=1000, whole=True)
    static: ClassVar[bool] = True
    held_out: ClassVar[bool] = True  # on what they were learned on, the least held back weights are the best
    products: tuple[Table, ...]
    interval: int = 6
    first: int = 3
    history: int = 3
    ridge: float = 1e-4

    @classmethod
    def calibrated(cls, record: Record) -> L2P:
        """From the products of features in the full runs."""
        tables = [record.mean("left", number) for number in range(record.branches)]
        return cls(
            steps=record.steps, products=tuple(tuple(tuple(map(float, row)) for row in table) for table in tables)
        )

    def relearned(self, record: Record) -> L2P:
        """The same settings with weights learned on another record."""
        return replace(self, products=self.calibrated(record).products)

    def mask(self, steps: int | None = None) -> Mask:
        """As TaylorSeer's: the first steps, and from the last of them on every `interval`th."""
        if steps not in (None, self.steps):
            raise SearchError(f"L2P was calibrated on {self.steps} steps, not {steps}. Record {steps} steps.")
        return intervals(self.steps, self.first, self.interval)

    def variants(self) -> list[L2P]:
        """First steps as TaylorSeer's, and what the paper leaves open."""
        found = [
            replace(self, first=first, history=history, ridge=ridge)
            for first in FIRST
            for ridge in RIDGES
            for history in HISTORIES
        ]
        return list(dict.fromkeys([self, *found]))

    def pattern(self, steps: int) -> Hashable:
        """The mask and how weights are learned."""
        return self.mask(steps), self.history, self.ridge

    def branch(self, steps: int, number: int) -> Branch:
        """No features yet; a guidance branch that was not recorded is forecast like the first."""
        return _Branch(self, self.mask(steps), np.array(self.products[number if number < len(self.products) else 0]))


def learned(products: np.ndarray, past: list[int], step: int, ridge: float) -> list[float]:
    """The weights of past features, newest first, that are nearest to a step's feature in the mean square.

    Args:
        products: mean products of features, shape [K, K].
        past: the computed steps, newest first.
        step: the one that is skipped.
        ridge: see `L2P`.
    """
    repeat = np.zeros(len(past))
    repeat[0] = 1.0
    pull = ridge * products[past[0], past[0]]
    gram = products[np.ix_(past, past)] + pull * np.eye(len(past))
    return [float(weight) for weight in np.linalg.solve(gram, products[past, step] + pull * repeat)]


class _Branch(StaticBranch):
    def __init__(self, method: L2P, mask: Mask, products: np.ndarray) -> None:
        super().__init__(mask)
        self.method, self.products = method, products
        self.features: dict[int, Tensor] = {}  # by computed step, newest first

    def computed(self, here: Here, residual: Tensor) -> None:
        """Keep what left the trunk."""
        newest = {here.step: here.hidden + residual}
        self.features = dict(list((newest | self.features).items())[: self.method.history])

    def skipped(self, here: Here) -> Tensor:
        """The blend, less what enters the trunk and is added to it."""
        known = [k for k in self.features if np.isfinite(self.products[k, here.step])] or list(self.features)[:1]
        if not np.isfinite(self.products[np.ix_([*known, here.step], [*known, here.step])]).all():
            weights = [1.0]  # a step that was not recorded
        else:
            weights = learned(self.products, known, here.step, self.method.ridge)
        parts = (weight * self.features[k] for k, weight in zip(known, weights, strict=False))
        blend = next(parts)
        for part in parts:
            blend = blend + part
        return blend - here.hidden
