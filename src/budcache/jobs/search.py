"""`budcache.search`: the policies of one or several budgets, from one search on a pipeline."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import wraps
from random import Random
from typing import TYPE_CHECKING, Any, Literal

from budcache.calibration.score import Score
from budcache.errors import SearchError
from budcache.jobs.fit import gain
from budcache.jobs.job import Job, Judge, digest, memory_said, settings_of, split, take_samples
from budcache.jobs.select import SETTINGS, Candidate, best, fits
from budcache.mask import MAX_STEPS, Mask
from budcache.policy import Ladder, Origin, Policy, Quality, Refined, Reuse
from budcache.strategies import (
    STRATEGIES,
    Ask,
    Evaluated,
    Found,
    LadderSearch,
    Ledger,
    Limits,
    Polished,
    Strategy,
    drive,
)
from budcache.strategies import strategy as by_name

if TYPE_CHECKING:
    from budcache.calibration.calibration import Calibration, Objective
    from budcache.refine import Fitted

__all__ = ["CHOOSING", "POLISH", "ROUNDS", "TEACHING", "Searched", "check_budgets", "search", "search_in_full"]

TEACHING = "full runs"  # what `watch` is told after each full run, before the search
CHOOSING = "choosing"  # what `watch` is told before the finalists of a budget are judged
FINALISTS = 3  # per budget and kind of reuse, judged on the selection samples
POLISH, ROUNDS = 0, 3  # of the climb with fitted reuse; more prompts are a better use of the calls (docs/search.md)
STATE_MEMORY = 2_000_000_000  # bytes for remembered states


@dataclass(frozen=True)
class Searched:
    """A search's ladder, and how it came about."""

    ladder: Ladder
    found: Found  # with plain reuse
    fitted: Found | None  # with fitted reuse
    calls: int  # sample-calls: model calls times samples; teachers, selection and measuring included
    earlier: int = 0  # those of them that runs before this one had spent, by the ledger


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
    fit: bool | None = None,
    polish: int = POLISH,
    rounds: int | None = ROUNDS,
    teacher_steps: int | None = None,
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
        fit: whether reuse is fitted in closed form, too; None does so where it can be, with output reuse. The ladder
            is then climbed a second time, with fitted stretches, and the finalists of both are fitted.
        polish: how far a computed step may move in the climb that follows, with fitted reuse if there is a fit; 0
            leaves it out.
        rounds: moves of that climb at most; None alternates moves and fits until nothing improves, within limits.
        teacher_steps: of a teacher that is finer than the full run; None is the full run itself.
        seed: of the search; sample i starts from noise of seed + i, unless it brings a generator or latents.
        selection: how many of the samples, the last ones, to keep out of the search and to judge its finalists by;
            None is a quarter of them.
        batch: how many samples to run at once.
        objective: what to keep small: "latent", the mean squared error of final latents; "pixel", that of decoded
            pictures, for one call more per mask and sample; or any function of student, teacher and run.
        limits: where to stop even if the strategy would go on.
        ledger: a file in which every score is kept, so that a killed search can go on.
        state_memory: bytes for remembered states; fewer cost more calls but give the same losses.
        watch: called with every evaluation, and with one that is none after each full run ("full runs") and before the
            finalists of a budget are judged ("choosing").
        **call: keyword arguments of the pipeline that all samples share: sizes, guidance.
    """
    from budcache.pipeline import describe
    from budcache.refine import Fitted

    wanted = sorted({*budgets, *([] if budget is None else [budget])})
    plan = by_name(strategy) if isinstance(strategy, str) else strategy
    given = take_samples(prompts, samples, call)
    check_budgets(wanted, steps)
    searched_on = split(given, selection)
    if not callable(objective) and objective not in ("latent", "pixel"):
        raise SearchError(f"there is no objective {objective!r}. Use 'latent', 'pixel' or a function.")
    if fit and reuse != "output":
        raise SearchError('only reuse="output" can be fitted. Leave fit out, or use output reuse.')
    fit = reuse == "output" if fit is None else fit
    if polish and not fit:
        plan = Polished(plan, (), polish, rounds)
    next(plan.propose(steps, tuple(wanted), Random(seed)), None)  # what refuses these numbers does so before any run
    job = Job(pipe, steps, reuse, batch, objective, state_memory, teacher_steps)
    origin = describe(
        pipe,
        prompts=len(given),
        prompts_hash=digest(given),
        seed=seed,
        strategy=_strategy_name(plan),
        teacher_steps=teacher_steps,
        **settings_of(given[0]),
    )
    with ExitStack() as stack:
        keep = None
        if ledger is not None:
            keep = Ledger(ledger, _identity(origin, job, plan, searched_on))
            stack.callback(keep.close)

        def taught(calls: int) -> None:
            if watch is not None:
                watch(Evaluated(Mask.full(steps), 0.0, TEACHING, calls, False))

        calibration = stack.enter_context(job.calibration(given[:searched_on], seed, taught))
        hunt = _Hunt(calibration, keep, steps, wanted, seed, limits or Limits(), watch)
        found = hunt(plan, calibration.score, "plain")
        field = {b: found.best(b, FINALISTS) for b in wanted if found.best(b)}
        if not field:
            raise SearchError(
                f"the search stopped at its {found.stopped} before any budget was reached. Allow it more; with a "
                "ledger it goes on from there."
            )
        fitted, fitters = None, list[Fitted]()
        if fit:
            memory = [state_memory] + [0] * len(SETTINGS)
            fitters = [
                Fitted(calibration, outputs=q, ridge=ridge, state_memory=bound)
                for (q, ridge), bound in zip(SETTINGS, memory, strict=False)
            ]
            starts = tuple(masks[0] for masks in field.values())
            again = Polished(plan if isinstance(plan, LadderSearch) else None, starts, polish, rounds)
            calibration.forget()  # its states have done their work
            fitted = hunt(again, fitters[0].score, "fitted")
            field = {b: [*fitted.best(b, FINALISTS), *masks[:1]] for b, masks in field.items()}
        if searched_on < len(given):
            judge = stack.enter_context(job.judge(given[searched_on:], seed + searched_on))
            rungs = {}
            for b, masks in field.items():
                if watch is not None:
                    spent = calibration.calls + judge.calls + (keep.spent if keep else 0)
                    # A limit may have ended the fitted climb before it came to this one.
                    known = fitted.scores if fitted and masks[0] in fitted.scores else found.scores
                    watch(Evaluated(masks[0], known[masks[0]].loss, CHOOSING, spent, False))
                rungs[b] = _choose([*masks, Mask.uniform(steps, b)], fitters, judge)
            calls = calibration.calls + judge.calls
        else:
            rungs = {b: _untested(masks, found, fitters[:1]) for b, masks in field.items()}
            calls = calibration.calls
        calls += keep.spent if keep else 0
    origin = origin.model_copy(update={"calls": calls})
    policies = []
    for rung in rungs.values():
        quality = rung.quality or Quality()
        if rung.weights is None and rung.mask in found.scores:
            quality = quality.model_copy(update={"calibration_loss": found.scores[rung.mask].loss})
        update = {"reuse": reuse, "origin": origin, "quality": quality}
        policies.append(rung.model_copy(update=update))
    return Searched(Ladder.of(policies), found, fitted, calls, keep.spent if keep else 0)


@wraps(search_in_full, assigned=("__doc__",))
def search(pipe: Any, **options: Any) -> Ladder:
    """`search_in_full`'s ladder, with the same options."""
    return search_in_full(pipe, **options).ladder


@dataclass
class _Hunt:
    """One search after another on the same samples, under the same limits."""

    calibration: Calibration
    ledger: Ledger | None
    steps: int
    budgets: list[int]
    seed: int
    limits: Limits
    watch: Callable[[Evaluated], None] | None

    def __call__(self, plan: Strategy, score: Callable[[Mask], Score], reuse: str) -> Found:
        """Let a strategy search, with masks scored under plain or fitted reuse."""
        keep, begin = self.ledger, time.monotonic()

        def scored(ask: Ask) -> Score:
            with memory_said():
                return score(ask.mask)

        def calls() -> int:
            # What earlier runs of a killed search have spent counts, too.
            return self.calibration.calls if keep is None else keep.calls

        found = drive(
            plan,
            scored if keep is None else keep.remembering(scored, lambda: self.calibration.calls, reuse),
            steps=self.steps,
            budgets=self.budgets,
            seed=self.seed,
            limits=self.limits,
            calls=calls,
            watch=self.watch,
        )
        self.limits = self.limits.after(time.monotonic() - begin, len(found.scores))
        return found


def _choose(masks: Sequence[Mask], fitters: Sequence[Fitted], judge: Judge) -> Policy:
    """The best of one budget's finalists on samples that were not searched on, fitted if there are fitters.

    Uniform spacing is among them: it needs no search, so what a search finds has to be better than it.
    """
    if not fitters:
        found = best(judge.calibration, map(Candidate, masks))
        return Policy(mask=found.mask, quality=judge.quality(found))
    known = fitters[0].calibration
    spent = known.calls + judge.calls
    plain, found = fits(fitters, judge.calibration, masks)
    before, after = judge.quality(plain), judge.quality(found)
    line = Refined(
        how="fit" if found.weights else "fit, no gain",
        prompts=known.samples + judge.calibration.samples,
        calls=known.calls + judge.calls - spent,
        gain=gain(before, after),
    )
    after = after.model_copy(update={"calibration_loss": found.loss})
    return Policy(mask=found.mask, weights=found.weights, quality=after, refined=(line,))


def _untested(masks: Sequence[Mask], found: Found, fitters: Sequence[Fitted]) -> Policy:
    """The best of one budget's finalists where there are no samples to judge by: by the loss that it was found with."""
    plain = min((mask for mask in masks if mask in found.scores), key=lambda mask: found.scores[mask].loss)
    candidates = [Candidate(plain, loss=found.scores[plain].loss)]
    before = [fitter.calibration.calls for fitter in fitters]
    candidates += [Candidate.fitted(fitter, masks[0]) for fitter in fitters]
    calls = sum(fitter.calibration.calls for fitter in fitters) - sum(before)
    chosen = min(candidates, key=lambda candidate: candidate.loss or 0.0)
    how = "fit, not held out" if chosen.weights else "fit, no gain"
    lines = [Refined(how=how, prompts=fitter.calibration.samples, calls=calls) for fitter in fitters]
    quality = Quality(calibration_loss=chosen.loss)
    return Policy(mask=chosen.mask, weights=chosen.weights, quality=quality, refined=tuple(lines))


def check_budgets(budgets: Sequence[int], steps: int) -> None:
    """Refuse budgets that no mask of so many steps can have."""
    if not budgets:
        raise SearchError("there is no budget to search for. Give budget= or budgets=, in model calls per sample.")
    if not 1 <= steps <= MAX_STEPS:
        raise SearchError(f"a run of {steps} steps is not possible. Use 1 to {MAX_STEPS} steps.")
    for budget in budgets:
        if not 1 <= budget <= steps:
            raise SearchError(f"a budget of {budget} does not fit {steps} steps. Choose budgets from 1 to {steps}.")


def _strategy_name(plan: Strategy) -> str:
    """A strategy's name, or what it says of itself, or at least its class."""
    named = next((name for name, known in STRATEGIES.items() if known == plan), repr(plan))
    return type(plan).__name__ if named.startswith("<") else named


def _identity(origin: Origin, job: Job, plan: Strategy, searched_on: int) -> dict[str, Any]:
    """What the scores in a ledger depend on."""
    of_others = {"prompts", "strategy", "calls", "versions"}
    return origin.model_dump(mode="json", exclude=of_others) | {
        "number format": str(getattr(job.pipe, "dtype", None)).removeprefix("torch."),
        "steps": job.steps,
        "reuse": job.reuse,
        "batch": job.batch,
        "samples searched on": searched_on,
        "strategy": repr(plan),
        "objective": _name(job.objective),
    }


def _name(objective: Any) -> str:
    """An objective's name; functions of one name (all lambdas, for one) are told apart by their code."""
    code = getattr(objective, "__code__", None)
    if code is None:
        return str(objective)
    body = hashlib.sha256(code.co_code + repr((code.co_names, code.co_consts)).encode()).hexdigest()[:8]
    return f"{objective.__name__} {body}"
