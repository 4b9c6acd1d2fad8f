"""Choosing on samples that nothing was searched or fitted on (F8)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from budcache.mask import Mask
from budcache.policy import Policy

if TYPE_CHECKING:
    from torch import Tensor

    from budcache.calibration import Calibration
    from budcache.refine import Rows

__all__ = ["OUTPUTS", "RIDGES", "Candidate", "best", "fits"]

# Tried in this order; the first of each is also what a fitted search scores with.
OUTPUTS = (3, 2)
RIDGES = (1e-3, 1e-4, 1e-2)


@dataclass(frozen=True)
class Candidate:
    """A policy's moving parts."""

    mask: Mask
    weights: Rows | None = None
    sigmas: tuple[float, ...] | None = None

    @classmethod
    def of(cls, policy: Policy) -> Candidate:
        """Those of a policy."""
        return cls(policy.mask, policy.weights, policy.sigmas)

    def finals(self, calibration: Calibration) -> list[Tensor]:
        """The final latents of every run."""
        return calibration.finals(self.mask, self.weights, self.sigmas)


def best(judge: Calibration, candidates: Iterable[Candidate]) -> Candidate:
    """The candidate of least loss; of equals the first."""
    return min(dict.fromkeys(candidates), key=lambda candidate: judge.loss(candidate.finals(judge)))


def fits(
    known: Calibration,
    judge: Calibration,
    masks: Iterable[Mask],
    outputs: Iterable[int] = OUTPUTS,
    ridges: Iterable[float] = RIDGES,
    **options: Any,
) -> tuple[Candidate, Candidate]:
    """The best of some masks with plain reuse, and with fitted reuse or plain, whichever is better.

    First the mask is chosen, with the first of the settings; then for this mask the settings. To try all settings on
    all masks would cost several times as many calls.
    """
    from budcache.refine import fit

    settings = [(q, ridge) for q in outputs for ridge in ridges]

    def fitted(mask: Mask, setting: tuple[int, float]) -> Candidate:
        return Candidate(mask, fit(known, mask, outputs=setting[0], ridge=setting[1], **options))

    masks = list(dict.fromkeys(masks))
    plain = best(judge, map(Candidate, masks))
    first = best(judge, [plain, *(fitted(mask, settings[0]) for mask in masks)])
    return plain, best(judge, [first, *(fitted(first.mask, setting) for setting in settings[1:])])
