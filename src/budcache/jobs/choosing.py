"""The choice among one budget's finalists, on samples that nothing was searched or fitted on where there are some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from budcache.aggregate import Care, cared_for
from budcache.jobs.refining import best_fit, blended, gain
from budcache.mask import Mask
from budcache.policy import Policy, Quality, Refined, Reuse

if TYPE_CHECKING:
    from budcache.calibration.judge import Judge
    from budcache.calibration.score import Score
    from budcache.refine.fit import FittedScorer
    from budcache.strategies import Found

__all__ = ["Candidate", "best_candidate", "best_with_fit", "best_without_judge"]


@dataclass(frozen=True)
class Candidate:
    """A policy that was tried on the samples searched on; None where there were no calls left to try it."""

    policy: Policy
    score: Score | None


def best_candidate(
    candidates: Sequence[Candidate],
    judge: Judge | None,
    care: Care,
    by_pictures: bool,
    weigh: Callable[[Mask], float] | None = None,
) -> Policy:
    """The best of some candidates, with its quality on the samples put aside, if there are some.

    Candidates have equally many weights, so that the samples which they were fitted on count in the choice as well: to
    choose by the few that were put aside alone would be mostly chance. `weigh` is what else counts against a mask.
    """
    from budcache.calibration.judge import quality_of

    tried = {each.policy: (each.score, None if judge is None else judge.score(each.policy)) for each in candidates}

    def error(policy: Policy) -> float:
        scores = [score for score in tried[policy] if score is not None]
        found = [error for score in scores for error in (score.errors if by_pictures else score.losses)]
        return cared_for(found, care) * (1.0 if weigh is None else weigh(policy.mask))

    chosen = min(tried, key=error) if len(tried) > 1 else candidates[0].policy
    own, aside = tried[chosen]
    if aside is not None:
        quality = quality_of(aside)
    elif own is not None:
        quality = quality_of(own).model_copy(update={"loss": None, "used_to_fit": True})
    else:
        return chosen
    update = {"used_to_choose": True, "calibration_loss": own.loss if own else None}
    return chosen.model_copy(update={"quality": quality.model_copy(update=update)})


def best_with_fit(
    masks: Sequence[Mask], reuse: Reuse, fitters: Sequence[FittedScorer], judge: Judge, prompts: int
) -> Policy:
    """The best of some masks, fitted or plain, and what the fit was worth.

    Uniform spacing is among them: it needs no search, so what a search finds has to be better than it.
    """
    uniform = Mask.uniform(len(masks[0]), masks[0].budget)
    policies = [Policy(mask=mask, reuse=reuse) for mask in (*masks, uniform)]
    if not fitters:
        chosen = judge.best(policies)
        return chosen.model_copy(update={"quality": judge.quality(chosen, used_to_choose=True)})

    def calls() -> int:
        return fitters[0].calibration.calls + judge.calls

    before, (plain, chosen) = calls(), best_fit(fitters, judge, policies)
    quality = judge.quality(plain, used_to_choose=True), judge.quality(chosen, used_to_choose=True)
    line = Refined(
        how="fit" if chosen.is_blended else "fit, no gain", prompts=prompts, calls=calls() - before, gain=gain(*quality)
    )
    loss = chosen.quality.calibration_loss if chosen.quality else None
    after = quality[1].model_copy(update={"calibration_loss": loss, **judge.left_of(chosen)})
    return chosen.model_copy(update={"quality": after, "refined": (line,)})


def best_without_judge(masks: Sequence[Mask], found: Found, fitters: Sequence[FittedScorer]) -> Policy:
    """The best of some masks where there are no samples to judge by: by the loss that it was found with."""
    mask = min((mask for mask in masks if mask in found.scores), key=lambda mask: found.scores[mask].loss)
    candidates, lines = [(found.scores[mask].loss, Policy(mask=mask))], []
    for fitter in fitters:
        before = fitter.calibration.calls
        fit = fitter.fit(masks[0])
        candidates.append((fit.loss, blended(Policy(mask=masks[0]), fit)))
        lines.append((fitter.calibration.samples, fitter.calibration.calls - before))
    loss, chosen = min(candidates, key=lambda candidate: candidate[0])
    how = "fit, not held out" if chosen.is_blended else "fit, no gain"
    refined = tuple(Refined(how=how, prompts=samples, calls=calls) for samples, calls in lines)
    return chosen.model_copy(update={"quality": Quality(calibration_loss=loss), "refined": refined})
