"""`budcache.search`: the policies of one or several budgets, from one search on a pipeline."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from budcache.events import Watch
from budcache.jobs.config import (
    POLISH,
    ROUNDS,
    STATE_MEMORY,
    Refine,
    SearchConfig,
    known_options,
    taken_strategy,
)
from budcache.jobs.searching import Search
from budcache.jobs.setup import Setup, check_call, placed, shelf_of
from budcache.jobs.watching import watching
from budcache.options import bytes_of, one_or_several
from budcache.policy import Ladder, Reuse
from budcache.samples.samples import runs_of, take_samples
from budcache.strategies import Limits, Strategy, begun_with

if TYPE_CHECKING:
    from budcache.aggregate import Care
    from budcache.calibration.objectives import ObjectiveLike
    from budcache.records.record import Record
    from budcache.workers import Workers

__all__ = ["search"]


@known_options
def search(
    pipe: Any,
    *,
    steps: int,
    budgets: int | Iterable[int],
    prompts: Sequence[str] = (),
    samples: Sequence[Mapping[str, Any]] = (),
    call: Mapping[str, Any] | None = None,
    strategy: str | Strategy | None = None,
    reuse: Reuse = "output",
    refine: Refine | None = None,
    features: bool | None = None,
    polish: int = POLISH,
    rounds: int | None = ROUNDS,
    teacher_steps: int | None = None,
    seed: int = 0,
    selection: int | None = None,
    care: Care = "typical",
    batch: int = 1,
    objective: ObjectiveLike = "latent",
    limits: Limits | None = None,
    state_memory: int | str = STATE_MEMORY,
    across: bool = False,
    ledger: str | os.PathLike[str] | None = None,
    record: Record | str | os.PathLike[str] | None = None,
    workers: Workers | None = None,
    progress: bool | None = None,
    watch: Watch | None = None,
) -> Ladder:
    """Find the policies of one or several budgets for a pipeline.

    Args:
        pipe: any diffusers pipeline; it is left exactly as it is. With workers, what each of them is to load.
        steps: K of the full run that is to be imitated.
        budgets: model calls per sample to search for: one number, or several from one search.
        prompts: what to calibrate on; or
        samples: keyword arguments of the pipeline's `__call__`, one set per sample.
        call: keyword arguments of the pipeline that all samples share: sizes, guidance, a negative prompt.
        strategy: how to search: a name from `strategies.STRATEGIES`, or a strategy. None is "exhaustive" where there
            are at most 1,000 masks in all, and neither limits nor a record; else "paths", masks from the full runs
            alone, or "ladder" with residual reuse, for which there are no paths.
        reuse: "output" or "residual".
        refine: what to make of the masks: "none" repeats outputs as they are; "fit" blends them, fitted in closed form;
            "full" also aligns all weights together without gradients (F14), for several times the cost. None is "fit"
            with output reuse, else "none".
        features: whether weights may look at the sample (F11); None where samples have several settings.
        polish: how far a computed step may move in the climb that follows, with fitted reuse if there is a fit; 0
            leaves the climb out.
        rounds: moves of that climb at most; 0 makes none, None goes on until nothing improves, within the limits.
        teacher_steps: of a teacher that is finer than the full run; None is the full run itself.
        seed: of the search; sample i starts from noise of seed + i, unless it brings a generator or latents.
        selection: how many of the samples, the last ones, to keep out of the search and to judge its finalists by;
            None is a quarter of them. Paths and exhaustive searches of fewer than 8 samples use all for both, and their
            quality says so.
        care: what counts in the choice: "typical" errors (the geometric mean), or the "worst" ones. Paths
            then also try masks that compute more of the first steps; on tiny-flux that costs up to 1.3 dB of the mean
            and raises the 5th percentile by 3 to 6 dB at four of five budgets. `fit` and `align` afterwards know
            nothing of it.
        batch: how many samples to run at once.
        objective: what to keep small: "latent", the mean squared error of final latents; "pixel", that of decoded
            pictures; or any function of student, teacher and run.
        limits: where to stop even if the strategy would go on.
        state_memory: main memory for full runs and other states, in bytes or as "4GB"; what is beyond it waits on disk,
            among the temporary files. Also how much is remembered of masks that were tried: less costs more calls but
            gives the same losses.
        across: for pipelines with two experts, such as Wan 2.2: whether rows may look back on outputs of the other one.
            Otherwise the first step of each is computed, and nothing is reused across the switch.
        ledger: a file in which every score is kept, so that a killed search can go on.
        record: full runs that were recorded before (`budcache.recording`), or their file; paths are then found from
            these, too.
        workers: who holds the runs, if not this process: `Workers` on a Ray cluster. What is found is the same.
        progress: whether to show a bar; None shows one in a terminal or a notebook.
        watch: called with every event (`budcache.events`).

    Returns:
        The ladder. Its attribute `searched` tells how it came about: history, sample-calls, limits reached.
    """
    free = limits in (None, Limits()) and record is None  # with neither, every mask may be tried
    config = SearchConfig(
        steps,
        one_or_several(budgets),
        taken_strategy(strategy, reuse, steps, one_or_several(budgets) if free else (), begun_with(ledger)),
        reuse,
        refine,
        polish,
        rounds,
        teacher_steps,
        seed,
        selection,
        batch,
        objective,
        limits or Limits(),
        bytes_of(state_memory),
        care,
        features,
    )
    if isinstance(record, str | os.PathLike):
        from budcache.records.record import Record

        record = Record.load(record)
    given = take_samples(prompts, samples, call)
    with (
        shelf_of(config.state_memory) as shelf,
        watching(watch, progress) as everybody,
        placed(pipe, workers, everybody, "search", runs_of(given, batch)) as where,
    ):
        check_call(where, given, "search")
        setup = Setup(where, steps, reuse, batch, objective, teacher_steps, shelf, across)
        return Search(setup, config, given, record).run(ledger, everybody)
