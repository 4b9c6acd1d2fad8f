"""`budcache.fit`: reuse fitted in closed form, on a pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from budcache.errors import SearchError
from budcache.events import RungDone, Watch
from budcache.jobs import estimate as phases
from budcache.jobs.config import OUTPUTS, RIDGES, STATE_MEMORY, FitConfig, known_options
from budcache.jobs.meter import Meter
from budcache.jobs.refining import best_form, gain, refined
from budcache.jobs.setup import Setup, check_call, placed, shelf_of
from budcache.jobs.watching import watching
from budcache.options import bytes_of
from budcache.policy import Ladder, Policy, Refined
from budcache.samples.samples import are_mixed, runs_of, split, take_samples

if TYPE_CHECKING:
    from budcache.calibration.asking import Asked
    from budcache.calibration.judge import Judge
    from budcache.refine.fit import Target
    from budcache.workers import Workers

__all__ = ["fit", "fitted_on"]


@known_options
def fit(
    pipe: Any,
    policies: Ladder | Policy,
    *,
    prompts: Sequence[str] = (),
    samples: Sequence[Mapping[str, Any]] = (),
    call: Mapping[str, Any] | None = None,
    seed: int = 0,
    selection: int | None = None,
    batch: int = 1,
    outputs: Sequence[int] = OUTPUTS,
    ridges: Sequence[float] = RIDGES,
    features: bool | None = None,
    target: Target = "next",
    teacher_steps: int | None = None,
    state_memory: int | str = STATE_MEMORY,
    across: bool = False,
    workers: Workers | None = None,
    progress: bool | None = None,
    watch: Watch | None = None,
) -> Ladder:
    """Fit the reuse of given masks in closed form: each rung gets blend weights, where they help.

    Args:
        pipe: the pipeline that the policies are for.
        policies: masks to fit, with output reuse.
        prompts: what to fit on, as in `search`; or
        samples: keyword arguments of the pipeline's `__call__`.
        call: keyword arguments of the pipeline that all samples share.
        seed: sample i starts from noise of seed + i.
        selection: how many of the samples, the last ones, to keep out of the fit and to choose by; None is a quarter.
        batch: how many samples to run at once.
        outputs: how many outputs to blend, with the noise in rows and without it by the solver; what does best on the
            selection samples is taken. 128 is all there are.
        ridges: how strongly to pull towards plain reuse; likewise.
        features: whether weights may look at the sample (F11); None where samples have several settings.
        target: what each stretch is fitted to: the teacher's latent at the "next" computed step, or the "final" one.
        teacher_steps: of a teacher that is finer than the policies' steps.
        state_memory: main memory for states, as in `search`.
        across: whether rows may look back on outputs of another expert, as in `search`.
        workers: who holds the runs, as in `search`.
        progress: whether to show a bar; None shows one in a terminal or a notebook.
        watch: called with every event (`budcache.events`).

    Returns:
        The ladder, with weights on the rungs that are better for them on the selection samples.
    """
    ladder = policies if isinstance(policies, Ladder) else Ladder.of([policies])
    config = FitConfig(ladder, tuple(outputs), tuple(ridges), target, teacher_steps, seed, selection, batch, features)
    given = take_samples(prompts, samples, call)
    fitted_on(given, selection)
    with (
        shelf_of(bytes_of(state_memory)) as shelf,
        watching(watch, progress) as everybody,
        placed(pipe, workers, everybody, "fit", runs_of(given, batch)) as where,
    ):
        check_call(where, given, "fit", {"num_inference_steps": None})
        setup = Setup(where, ladder.steps, batch=batch, teacher_steps=teacher_steps, shelf=shelf, across=across)
        return _fitted(setup, config, given, everybody)


def fitted_on(samples: Sequence[Any], selection: int | None) -> int:
    """How many of some samples a fit is made on; refused where none are left to choose by."""
    count = split(samples, selection)
    if count == len(samples):
        raise SearchError("fitting needs samples to choose by. Give more prompts, or a selection of at least 1.")
    return count


def _fitted(setup: Setup, config: FitConfig, samples: Sequence[Mapping[str, Any]], watch: Watch) -> Ladder:
    """The ladder, fitted rung by rung."""
    from budcache.calibration.judge import Judge

    learned_on, meter = fitted_on(samples, config.selection), Meter("fit", watch)
    meter.plan(phases.fit_phases(config, len(samples)))
    meter.phase(phases.FULL_RUNS)
    rungs: list[Policy] = []
    with (
        setup.calibration(samples[:learned_on], config.seed, meter.spent) as known,
        setup.calibration(samples[learned_on:], config.seed + learned_on, whole=False) as kept_out,
    ):
        judge, features = Judge(kept_out), are_mixed(samples) if config.features is None else config.features
        meter.phase(phases.FITTING)
        spent, prompts_hash = 0, setup.origin(samples).prompts_hash  # the first rung pays for the teachers
        for rung in config.ladder:
            judge.forget()
            after, line = _fit_one(rung, known, judge, config, features)
            quality = judge.quality(after, used_to_choose=True).model_copy(update=judge.left_of(after))
            if after.moving_parts == rung.moving_parts and _was_fitted_on(rung, prompts_hash):
                quality = quality.model_copy(update={"loss": None, "used_to_fit": True})
            calls, spent = known.calls + judge.calls - spent, known.calls + judge.calls
            line = line.model_copy(update={"prompts": len(samples), "calls": calls})
            rungs.append(
                refined(setup.about.origin, rung, after, line, quality, samples, config.teacher_steps, known.levels)
            )
            meter.tell(RungDone("fit", rungs[-1]))
            note = f"{rung.budget} calls: {line.gain or 0:+.1f} dB"
            meter.spent(spent, part=len(rungs) / len(config.ladder), note=note)
        meter.finish(known.calls + judge.calls)
    return Ladder.of(rungs)


def _was_fitted_on(rung: Policy, prompts_hash: str | None) -> bool:
    """Whether all of these prompts were fitted before: then those put aside now are not new to a rung that is kept."""
    if rung.quality is None or rung.origin is None:
        return False
    return bool(rung.quality.used_to_fit) and rung.origin.prompts_hash == prompts_hash


def _fit_one(rung: Policy, known: Asked, judge: Judge, config: FitConfig, features: bool) -> tuple[Policy, Refined]:
    """One rung with the best fit, never worse than it was on the samples put aside; and what that was worth."""
    plain = rung.model_copy(update={"weights": None, "rows": None, "guided": None, "quality": None})
    after = judge.best([rung, best_form(plain, known, judge, config, features)])
    kept = after.moving_parts == rung.moving_parts
    quality = judge.quality(rung, used_to_choose=True), judge.quality(after, used_to_choose=True)
    return after, Refined(how="fit, kept as it was" if kept else "fit", gain=gain(*quality))
