"""What search, fit and align share: the choice among fits, and a policy with what was found for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from budcache.policy import Origin, Policy, Quality, Refined

if TYPE_CHECKING:
    from budcache.calibration.judge import Judge
    from budcache.refine.fit import FittedScorer

__all__ = ["SETTINGS", "best_fit", "gain", "origin_after", "refined"]

# What a fit may be: how many outputs to blend, and the ridge. The first is what a fitted search scores with.
SETTINGS = ((3, 1e-3), (3, 1e-4), (3, 1e-2), (2, 1e-3))


def best_fit(fitters: Sequence[FittedScorer], judge: Judge, policies: Sequence[Policy]) -> tuple[Policy, Policy]:
    """The best of some masks with plain reuse, and with fitted reuse or plain, whichever is better.

    First the mask is chosen, with the first of the fitters; then for this mask the fitter. To try all of them on all
    masks would cost several times as many calls.
    """
    masks = list({policy.mask: policy for policy in policies}.values())
    plain = judge.best(masks)
    first = judge.best([plain, *(_fitted(fitters[0], policy) for policy in masks)])
    return plain, judge.best([first, *(_fitted(fitter, first) for fitter in fitters[1:])])


def _fitted(fitter: FittedScorer, policy: Policy) -> Policy:
    """A policy with the weights that a fitter finds for its mask."""
    from budcache.calibration.aggregate import mean

    rows, noise, losses = fitter.fit(policy.mask)
    update = {"weights": rows, "noise": noise, "quality": Quality(calibration_loss=mean(losses))}
    return policy.model_copy(update=update)


def refined(
    pipe: Any, before: Policy, after: Policy, line: Refined, quality: Quality, teacher_steps: int | None
) -> Policy:
    """A policy with what was found for it, and a line on how that came about."""
    loss = after.quality.calibration_loss if after.quality else None
    return before.model_copy(
        update={
            "weights": after.weights,
            "noise": after.noise,
            "sigmas": after.sigmas,
            "origin": origin_after(pipe, before, teacher_steps),
            "quality": quality.model_copy(update={"calibration_loss": loss}),
            "refined": (*before.refined, line),
        }
    )


def origin_after(pipe: Any, before: Policy, teacher_steps: int | None) -> Origin:
    """What a policy says of where it came from, once it is refined."""
    from budcache.pipeline import describe

    origin = before.origin or describe(pipe)  # a policy written by hand says from now on what it is for
    if teacher_steps == origin.teacher_steps:
        return origin
    return origin.model_copy(update={"teacher_steps": teacher_steps})  # what the quality refers to


def gain(before: Quality, after: Quality) -> float | None:
    """Decibels gained."""
    return None if before.psnr is None or after.psnr is None else round(after.psnr - before.psnr, 2)
