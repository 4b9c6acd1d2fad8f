"""`budcache.fit`: reuse fitted in closed form, on a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from budcache.errors import SearchError
from budcache.jobs.job import Job, split, take_samples
from budcache.jobs.select import Candidate, best, fits
from budcache.policy import Ladder, Policy, Quality, Refined
from budcache.wording import several

if TYPE_CHECKING:
    from budcache.refine import Target

__all__ = ["fit", "gain", "refined"]


def fit(
    pipe: Any,
    policies: Ladder | Policy,
    *,
    prompts: Sequence[str] = (),
    samples: Sequence[Mapping[str, Any]] = (),
    seed: int = 0,
    selection: int | None = None,
    batch: int = 1,
    outputs: Sequence[int] = (3, 2),
    ridges: Sequence[float] = (1e-3, 1e-4, 1e-2),
    target: Target = "next",
    teacher_steps: int | None = None,
    watch: Callable[[Policy], None] | None = None,
    **call: Any,
) -> Ladder:
    """Fit the reuse of given masks in closed form: each rung gets blend weights, where they help.

    Args:
        pipe: the pipeline that the policies are for.
        policies: masks to fit, with output reuse.
        prompts: what to fit on, as in `search`; or
        samples: keyword arguments of the pipeline's `__call__`.
        seed: sample i starts from noise of seed + i.
        selection: how many of the samples, the last ones, to keep out of the fit and to choose by; None is a quarter.
        batch: how many samples to run at once.
        outputs: how many outputs to blend; the number that does best on the selection samples is taken.
        ridges: how strongly to pull towards plain reuse; likewise.
        target: what each stretch is fitted to: the teacher's latent at the "next" computed step, or the "final" one.
        teacher_steps: of a teacher that is finer than the policies' steps.
        watch: called with each policy that has been fitted.
        **call: keyword arguments that all samples share.

    Returns:
        The ladder, with weights on the rungs that are better for them on the selection samples.
    """
    from budcache.refine import Fitted

    ladder = policies if isinstance(policies, Ladder) else Ladder.of([policies])
    check_fittable(ladder)
    if not outputs or not ridges:
        raise SearchError("there is nothing to choose from. Give at least one number of outputs and one ridge.")
    given = take_samples(prompts, samples, call)
    fitted_on = split(given, selection)
    if fitted_on == len(given):
        raise SearchError("fitting needs samples to choose by. Give more prompts, or a selection of at least 1.")
    job = Job(pipe, ladder.steps, "output", batch, "latent", 0, teacher_steps)
    rungs: list[Policy] = []
    with (
        job.calibration(given[:fitted_on], seed) as known,
        job.judge(given[fitted_on:], seed + fitted_on) as judge,
    ):
        fitters = [Fitted(known, outputs=q, ridge=ridge, target=target) for q in outputs for ridge in ridges]
        for rung in ladder:
            spent = known.calls + judge.calls if rungs else 0  # the first pays for the teachers
            before = Candidate.of(rung)
            _, found = fits(fitters, judge.calibration, [rung.mask])
            found = best(judge.calibration, [before, found])  # never worse than it was, weights or not
            quality = judge.quality(before), judge.quality(found)
            how = "fit" if found != before else "fit, kept as it was"
            calls = known.calls + judge.calls - spent
            rungs.append(refined(pipe, rung, found, how, len(given), calls, quality, teacher_steps))
            if watch is not None:
                watch(rungs[-1])
    return Ladder.of(rungs)


def check_fittable(ladder: Ladder) -> None:
    """Refuse policies that cannot be fitted."""
    for rung in ladder:
        if rung.reuse != "output":
            raise SearchError(
                f"the policy of {several(rung.budget, 'call')} reuses residuals, and only outputs can be blended. "
                'Search with reuse="output".'
            )
        if rung.sigmas is not None:
            raise SearchError(
                f"the policy of {several(rung.budget, 'call')} has noise levels of its own, and fits are made on the "
                "pipeline's. Fit first, and align what was fitted."
            )


def refined(
    pipe: Any,
    rung: Policy,
    found: Candidate,
    how: str,
    prompts: int,
    calls: int,
    quality: tuple[Quality, Quality],
    teacher_steps: int | None,
) -> Policy:
    """A policy with what was found for it, and a line on how that came about; its quality before and after."""
    from budcache.pipeline import describe

    origin = rung.origin or describe(pipe)  # a policy written by hand says from now on what it is for
    if teacher_steps != origin.teacher_steps:  # what the quality refers to
        origin = origin.model_copy(update={"teacher_steps": teacher_steps})
    line = Refined(how=how, prompts=prompts, calls=calls, gain=gain(*quality))
    kept = rung.quality.calibration_loss if rung.quality and found == Candidate.of(rung) else found.loss
    return rung.model_copy(
        update={
            "weights": found.weights,
            "sigmas": found.sigmas,
            "origin": origin,
            "quality": quality[1].model_copy(update={"calibration_loss": kept}),
            "refined": (*rung.refined, line),
        }
    )


def gain(before: Quality, after: Quality) -> float | None:
    """Decibels gained."""
    return None if before.psnr is None or after.psnr is None else round(after.psnr - before.psnr, 2)
