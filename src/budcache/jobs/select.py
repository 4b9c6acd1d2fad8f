"""Choosing on samples that nothing was searched or fitted on (F8)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from budcache.mask import Mask
from budcache.policy import Policy

if TYPE_CHECKING:
    from torch import Tensor

    from budcache.calibration.calibration import Calibration
    from budcache.refine import Fitted, Rows

__all__ = ["SETTINGS", "Candidate", "best", "fits"]

# What a fit may be: how many outputs to blend, and the ridge. The first is what a fitted search scores with.
SETTINGS = ((3, 1e-3), (3, 1e-4), (3, 1e-2), (2, 1e-3))


@dataclass(frozen=True)
class Candidate:
    """A policy's moving parts."""

    mask: Mask
    weights: Rows | None = None
    sigmas: tuple[float, ...] | None = None
    loss: float | None = field(default=None, compare=False)  # on the samples that it was fitted on

    @classmethod
    def of(cls, policy: Policy) -> Candidate:
        """Those of a policy."""
        return cls(policy.mask, policy.weights, policy.sigmas)

    @classmethod
    def fitted(cls, fitter: Fitted, mask: Mask) -> Candidate:
        """A mask with the weights that a fitter finds for it."""
        weights, loss = fitter.fit(mask)
        return cls(mask, weights, loss=loss)

    def finals(self, calibration: Calibration) -> list[Tensor]:
        """The final latents of every run."""
        return calibration.finals(self.mask, self.weights, self.sigmas)


def best(judge: Calibration, candidates: Iterable[Candidate]) -> Candidate:
    """The candidate of least loss; of equals the first.

    Of the samples' losses it is the geometric mean that counts. Those to choose by are few, and in their arithmetic
    mean one that turns into another picture under any candidate outweighs all that differ.
    """

    def loss(candidate: Candidate) -> float:
        found = judge.typical_loss(candidate.finals(judge))
        return found if math.isfinite(found) else math.inf

    return min(dict.fromkeys(candidates), key=loss)


def fits(fitters: Sequence[Fitted], judge: Calibration, masks: Iterable[Mask]) -> tuple[Candidate, Candidate]:
    """The best of some masks with plain reuse, and with fitted reuse or plain, whichever is better.

    First the mask is chosen, with the first of the fitters; then for this mask the fitter. To try all of them on all
    masks would cost several times as many calls.
    """
    masks = list(dict.fromkeys(masks))
    plain = best(judge, map(Candidate, masks))
    first = best(judge, [plain, *(Candidate.fitted(fitters[0], mask) for mask in masks)])
    return plain, best(judge, [first, *(Candidate.fitted(fitter, first.mask) for fitter in fitters[1:])])
