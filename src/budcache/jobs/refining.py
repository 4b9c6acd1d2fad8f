"""What search, fit and align share: the choice among forms of fits, and a policy with what was found for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from budcache.aggregate import cared_for
from budcache.policy import Origin, Policy, Quality, Refined
from budcache.samples.samples import settings_of_all

if TYPE_CHECKING:
    from budcache.calibration.asking import Asked
    from budcache.calibration.judge import Judge
    from budcache.calibration.score import Score
    from budcache.jobs.config import FitConfig
    from budcache.refine.fit import FittedScorer, Form

__all__ = ["LOOSER", "SETTINGS", "best_fit", "best_form", "better_rows", "blended", "gain", "origin_after", "refined"]

# What the fits of a ladder may be: how many outputs to blend, and the ridge. The first is what it scores with.
SETTINGS = ((3, 1e-3), (3, 1e-4), (3, 1e-2), (2, 1e-3))
LOOSER = (0.1, 1.0)  # shares of the ridge that are tried for branches apart, which it hinders more; first the likelier
SETTINGS_OF_RUNS = ("guidance", "true_guidance", "height", "width", "frames")  # of an origin; by default the pipeline's
SLOPES = (1e-3, 1e-2)  # how strongly weights that look at the sample are pulled towards shared ones


def best_fit(fitters: Sequence[FittedScorer], judge: Judge, policies: Sequence[Policy]) -> tuple[Policy, Policy]:
    """The best of some masks with plain reuse, and with fitted reuse or plain, whichever is better.

    First the mask is chosen, with the first of the fitters; then for this mask the fitter. To try all of them on all
    masks would cost several times as many calls.
    """
    masks = list({policy.mask: policy for policy in policies}.values())
    plain = judge.best(masks)
    first = judge.best([plain, *(_fitted(fitters[0], policy) for policy in masks)])
    return plain, judge.best([first, *(_fitted(fitter, first) for fitter in fitters[1:])])


def best_form(policy: Policy, known: Asked, judge: Judge, config: FitConfig, features: bool) -> Policy:
    """A plain policy with the fit that is best on the samples put aside; plain if none is better than that.

    One thing is chosen after the other: how many outputs, and whether in rows or by the solver; the ridge; and what
    `better_rows` adds. To try everything with everything would cost several times as many calls.
    """
    from budcache.refine.fit import FittedScorer, Form

    def best(policy: Policy, forms: Iterable[Form]) -> tuple[Policy, Form | None]:
        fits = {
            blended(policy, FittedScorer(known, form, target=config.target).fit(policy.mask)): form for form in forms
        }
        chosen = judge.best([policy, *fits])
        return chosen, fits.get(chosen)

    first, others = config.ridges[0], config.ridges[1:]
    forms = [Form(outputs, noise, ridge=first) for outputs in config.outputs for noise in (True, False)]
    chosen, form = best(policy, forms)
    if form is None:
        return chosen
    chosen, other = best(chosen, [replace(form, ridge=ridge) for ridge in others])
    return better_rows(chosen, replace(other or form, noise=True), known, judge, features)


def better_rows(policy: Policy, form: Form, known: Asked, judge: Judge, features: bool) -> Policy:
    """A fitted policy with more kinds of rows, each taken only if it is better on the samples of the judge.

    First the branches of guidance apart, where they are known (F12), then weights that look at the sample, if wanted
    (F11); of these the ridge is chosen so, and whether to take them on all samples.
    """
    if known.is_guided and judge.calibration.is_guided:
        # The samples that rows are fitted on would always choose the looser ridge, so there it is not a choice.
        shares = LOOSER[:1] if judge.calibration is known else LOOSER
        forms = [replace(form, apart=True, ridge=share * form.ridge) for share in shares]
        policy = judge.best([policy, *(_apart(policy, each, known, judge) for each in forms)])
    if not features:
        return policy
    looking = [_looking(policy, replace(form, features=True, slopes=slopes), known, judge) for slopes in SLOPES]
    return _best_of_all([policy, judge.best(looking)], known, judge)


def _apart(policy: Policy, form: Form, known: Asked, judge: Judge) -> Policy:
    """A fitted policy with rows for the branches of guidance as well."""
    from budcache.calibration.pictures import Pictures
    from budcache.refine.fit import FittedScorer

    own = judge.calibration is known
    pictures = Pictures if own else None
    scorer = FittedScorer(known, form, pictures=pictures, arrivals=False)
    found = scorer.score(policy.mask)
    policy = policy.model_copy(update={"guided": found.rows, "quality": Quality(calibration_loss=found.loss)})
    if own:
        judge.know(policy, found)
    return policy


def _looking(policy: Policy, form: Form, known: Asked, judge: Judge) -> Policy:
    """A fitted policy whose weights look at the sample."""
    from budcache.refine.fit import FittedScorer

    found = FittedScorer(known, form).fit(policy.mask)
    update: dict[str, Any] = {"weights": None, "rows": found.rows}
    if policy.guided is not None:
        found = FittedScorer(known, replace(form, apart=True)).fit(policy.mask)
        update["guided"] = found.rows
    return policy.model_copy(update=update | {"quality": Quality(calibration_loss=found.loss)})


def _best_of_all(policies: Sequence[Policy], known: Asked, judge: Judge) -> Policy:
    """The best on all samples together: where settings are mixed, those put aside have one or two samples of each."""
    from budcache.calibration.judge import Judge

    own = judge if judge.calibration is known else Judge(known)

    def error(policy: Policy) -> float:
        aside = () if own is judge else judge.losses(policy)
        return cared_for((*own.losses(policy), *aside), judge.care)

    best = min(policies, key=error)
    if own is not judge:
        own.forget()
    return best


def _fitted(fitter: FittedScorer, policy: Policy) -> Policy:
    """A policy with the blends that a fitter finds for its mask."""
    return blended(policy, fitter.fit(policy.mask))


def blended(policy: Policy, score: Score) -> Policy:
    """A policy with the blends that were fitted for its mask."""
    update = {"weights": score.weights, "rows": score.rows, "guided": None}
    return policy.model_copy(update=update | {"quality": Quality(calibration_loss=score.loss)})


def refined(
    here: Origin,
    before: Policy,
    after: Policy,
    line: Refined,
    quality: Quality,
    samples: Sequence[Mapping[str, Any]],
    teacher_steps: int | None,
    levels: tuple[float, ...],
) -> Policy:
    """A policy with what was found for it, and a line on how that came about.

    `here` is what the pipeline says of itself; `levels` are of the runs.
    """
    loss = after.quality.calibration_loss if after.quality else None
    return before.model_copy(
        update={
            **{name: getattr(after, name) for name in ("weights", "rows", "guided", "sigmas")},
            "origin": origin_after(here, before, samples, teacher_steps).model_copy(update={"levels": levels}),
            "quality": quality.model_copy(update={"calibration_loss": loss}),
            "refined": (*before.refined, line),
        }
    )


def origin_after(
    now: Origin, before: Policy, samples: Sequence[Mapping[str, Any]], teacher_steps: int | None
) -> Origin:
    """What a policy says of where it came from, once it is refined: weights and quality are of these samples.

    `now` is what the pipeline says of itself.
    """
    origin = before.origin or now  # a policy written by hand says from now on what it is for
    found: dict[str, Any] = {name: getattr(now, name) for name in SETTINGS_OF_RUNS}
    found |= settings_of_all(samples)
    ranges = found.pop("ranges", {})
    # What is not on record stays so, or a policy written by hand would no longer go into its own ladder. Of true
    # guidance nothing on record means that it was off, if the origin came from a pipeline.
    known = {"true_guidance"} if origin.denoiser is not None else set()
    here = {
        name: value for name, value in found.items() if name in ranges or name in known or _is_on_record(origin, name)
    }
    ranges = {name: value for name, value in origin.ranges.items() if name not in here} | ranges
    if origin.denoiser is not None:  # its numbers are now those of this pipeline, whatever its mask was found on
        here |= {name: getattr(now, name) for name in ("denoiser", "weights", "adapters")}
    return origin.model_copy(update={**here, "ranges": ranges, "teacher_steps": teacher_steps})


def _is_on_record(origin: Origin, name: str) -> bool:
    return name in origin.ranges or getattr(origin, name) is not None


def gain(before: Quality, after: Quality) -> float | None:
    """Decibels gained."""
    return None if before.psnr is None or after.psnr is None else round(after.psnr - before.psnr, 2)
