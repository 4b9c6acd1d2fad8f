"""The door: what users call on a pipeline to find policies."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from budcache.errors import SearchError
from budcache.job import Job, digest, settings_of, split, take_samples
from budcache.mask import MAX_STEPS, Mask
from budcache.policy import Ladder, Origin, Policy, Quality, Reuse
from budcache.search import STRATEGIES, Evaluated, Found, Ledger, Limits, Strategy, drive
from budcache.search import strategy as by_name

if TYPE_CHECKING:
    from budcache.calibration import Objective

__all__ = ["Searched", "check_budgets", "fit", "search", "search_in_full"]

FINALISTS = 3  # per budget, judged on the selection samples
STATE_MEMORY = 2_000_000_000  # bytes for remembered states


@dataclass(frozen=True)
class Searched:
    """A search's ladder, and how it came about."""

    ladder: Ladder
    found: Found
    calls: int  # sample-calls: model calls times samples; teachers, selection and measuring included


def search(pipe: Any, **options: Any) -> Ladder:
    """Find the policies of one or several budgets for a pipeline: `search_in_full`'s ladder, with the same options."""
    return search_in_full(pipe, **options).ladder


def search_in_full(
    pipe: Any,
    *,
    steps: int,
    budget: int | None = None,
    budgets: Iterable[int] = (),
    prompts: Sequence[str] = (),
    samples: Sequence[Mapping[str, Any]] = (),
    strategy: str | Strategy = "ladder",
    reuse: Reuse = "output",
    seed: int = 0,
    selection: int | None = None,
    batch: int = 1,
    objective: Literal["latent", "pixel"] | Objective = "latent",
    limits: Limits | None = None,
    ledger: str | os.PathLike[str] | None = None,
    state_memory: int = STATE_MEMORY,
    watch: Callable[[Evaluated], None] | None = None,
    **call: Any,
) -> Searched:
    """Find the policies of one or several budgets for a pipeline.

    Args:
        pipe: any diffusers pipeline; it is left exactly as it is.
        steps: K of the full run that is to be imitated.
        budget: model calls per sample to search for; or
        budgets: several of them, from one search.
        prompts: what to calibrate on; or
        samples: keyword arguments of the pipeline's `__call__`, one set per sample.
        strategy: how to search: a name from `search.STRATEGIES`, or a strategy.
        reuse: "output" or "residual".
        seed: of the search; sample i starts from noise of seed + i, unless it brings a generator or latents.
        selection: how many of the samples, the last ones, to keep out of the search and to judge its finalists by;
            None is a quarter of them.
        batch: how many samples to run at once.
        objective: what to keep small: "latent", the mean squared error of final latents; "pixel", that of decoded
            pictures, for one call more per mask and sample; or any function of student, teacher and run.
        limits: where to stop even if the strategy would go on.
        ledger: a file in which every score is kept, so that a killed search can go on.
        state_memory: bytes for remembered states; fewer cost more calls but give the same losses.
        watch: called with every evaluation.
        **call: keyword arguments of the pipeline that all samples share: sizes, guidance.
    """
    from budcache.pipeline import describe

    wanted = sorted({*budgets, *([] if budget is None else [budget])})
    plan = by_name(strategy) if isinstance(strategy, str) else strategy
    given = take_samples(prompts, samples, call)
    check_budgets(wanted, steps)
    if batch < 1:
        raise SearchError(f"batch must be at least 1, got {batch}.")
    searched_on = split(given, selection)
    if not callable(objective) and objective not in ("latent", "pixel"):
        raise SearchError(f"there is no objective {objective!r}. Use 'latent', 'pixel' or a function.")
    job = Job(pipe, steps, reuse, batch, objective, state_memory)
    origin = describe(
        pipe,
        prompts=len(given),
        prompts_hash=digest(given),
        seed=seed,
        strategy=next((name for name, known in STRATEGIES.items() if known == plan), repr(plan)),
        **settings_of(given[0]),
    )
    with ExitStack() as stack:
        keep = None
        if ledger is not None:
            keep = Ledger(ledger, _identity(origin, job, plan, searched_on))
            stack.callback(keep.close)
        calibration = stack.enter_context(job.calibration(given[:searched_on], seed))
        scoring = job.told(calibration)
        found = drive(
            plan,
            scoring if keep is None else keep.remembering(scoring, lambda: calibration.calls),
            steps=steps,
            budgets=wanted,
            seed=seed,
            limits=limits,
            # What earlier runs of a killed search have spent counts, too.
            calls=lambda: calibration.calls if keep is None else keep.calls,
            watch=watch,
        )
        calls = calibration.calls + (0 if keep is None else keep.spent)
    finalists = {b: found.best(b, FINALISTS) for b in wanted if found.best(b)}
    if not finalists:
        raise SearchError(f"the search stopped at its {found.stopped} before any budget was reached. Allow it more.")
    if searched_on < len(given):
        with job.calibration(given[searched_on:], seed + searched_on) as judge:
            # Uniform spacing needs no search, so what a search finds has to be better than it.
            field = {b: [*masks, Mask.uniform(steps, b)] for b, masks in finalists.items()}
            chosen = {b: min(masks, key=lambda mask: judge.score(mask).loss) for b, masks in field.items()}
            quality = job.measure(judge, given[searched_on:], {b: judge.students(mask) for b, mask in chosen.items()})
            calls += judge.calls + judge.samples * (1 + len(chosen))  # measuring opens the pipeline for each picture
    else:
        chosen = {b: masks[0] for b, masks in finalists.items()}
        quality = {b: Quality() for b in chosen}
    for b, mask in chosen.items():
        if mask in found.scores:
            quality[b] = quality[b].model_copy(update={"calibration_loss": found.scores[mask].loss})
    origin = origin.model_copy(update={"calls": calls})
    rungs = [Policy(mask=mask, reuse=reuse, origin=origin, quality=quality[b]) for b, mask in chosen.items()]
    return Searched(Ladder.of(rungs), found, calls)


def fit(
    pipe: Any,
    policies: Ladder | Policy,
    *,
    prompts: Sequence[str] = (),
    samples: Sequence[Mapping[str, Any]] = (),
    seed: int = 0,
    selection: int | None = None,
    batch: int = 1,
    outputs: Sequence[int] = (2, 3),
    ridges: Sequence[float] = (1e-4, 1e-3, 1e-2),
    watch: Callable[[int], None] | None = None,
    **call: Any,
) -> Ladder:
    """Fit the reuse of found masks in closed form: each rung gets blend weights, where they help.

    Args:
        pipe: the pipeline that the policies are for.
        policies: masks to fit, with output reuse.
        prompts: what to fit on, as in `search`; or
        samples: keyword arguments of the pipeline's `__call__`.
        seed: sample i starts from noise of seed + i.
        selection: how many of the samples, the last ones, to keep out of the fit and to choose by.
        batch: how many samples to run at once.
        outputs: how many outputs to blend; the number that does best on the selection samples is taken.
        ridges: how strongly to pull towards plain reuse; likewise.
        watch: called with each budget that has been fitted.
        **call: keyword arguments that all samples share.

    Returns:
        The ladder, with weights on the rungs that are better for them on the selection samples.
    """
    from budcache.refine import fit as closed_form
    from budcache.refine import fitted

    ladder = policies if isinstance(policies, Ladder) else Ladder.of([policies])
    if any(rung.reuse != "output" or rung.sigmas is not None for rung in ladder):
        raise SearchError('only masks with reuse="output" on the pipeline\'s own noise levels can be fitted.')
    given = take_samples(prompts, samples, call)
    fitted_on = split(given, selection)
    if fitted_on == len(given):
        raise SearchError("fitting needs samples to choose by. Give more prompts, or a selection of at least 1.")
    job = Job(pipe, ladder.steps, "output", batch, "latent", 0)
    with (
        job.calibration(given[:fitted_on], seed) as known,
        job.calibration(given[fitted_on:], seed + fitted_on) as judge,
    ):
        weights, finals = {}, {}
        for rung in ladder:
            candidates = [None, *(closed_form(known, rung.mask, outputs=q, ridge=r) for q in outputs for r in ridges)]
            ends = [fitted(judge, rung.mask, candidate) for candidate in candidates]
            best = min(range(len(ends)), key=lambda i: judge.loss(ends[i]))
            weights[rung.budget], finals[rung.budget] = candidates[best], ends[best]
            if watch is not None:
                watch(rung.budget)
        quality = job.measure(judge, given[fitted_on:], finals)
        calls = known.calls + judge.calls + judge.samples * (1 + len(ladder))
    return Ladder.of(
        [
            rung.model_copy(
                update={
                    "weights": weights[rung.budget],
                    "quality": quality[rung.budget],
                    "origin": (rung.origin or Origin()).model_copy(
                        update={"calls": ((rung.origin and rung.origin.calls) or 0) + calls}
                    ),
                }
            )
            for rung in ladder
        ]
    )


def check_budgets(budgets: Sequence[int], steps: int) -> None:
    """Refuse budgets that no mask of so many steps can have."""
    if not budgets:
        raise SearchError("there is no budget to search for. Give budget= or budgets=, in model calls per sample.")
    if not 1 <= steps <= MAX_STEPS:
        raise SearchError(f"a run of {steps} steps is not possible. Use 1 to {MAX_STEPS} steps.")
    for budget in budgets:
        if not 1 <= budget <= steps:
            raise SearchError(f"a budget of {budget} does not fit {steps} steps. Choose budgets from 1 to {steps}.")


def _identity(origin: Origin, job: Job, plan: Strategy, searched_on: int) -> dict[str, Any]:
    """What the scores in a ledger depend on."""
    of_others = {"prompts", "strategy", "teacher_steps", "calls", "versions"}
    return origin.model_dump(mode="json", exclude=of_others) | {
        "number format": str(getattr(job.pipe, "dtype", None)).removeprefix("torch."),
        "steps": job.steps,
        "reuse": job.reuse,
        "batch": job.batch,
        "samples searched on": searched_on,
        "strategy": repr(plan),
        "objective": getattr(job.objective, "__name__", str(job.objective)),
    }
