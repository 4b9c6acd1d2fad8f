"""`budcache.align`: a policy's numbers moved together, so that its final output comes near to the teacher's."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from budcache.errors import SearchError
from budcache.events import Watch
from budcache.jobs.align_gradient import GradientAlignment
from budcache.jobs.align_newton import NewtonAlignment
from budcache.jobs.config import STATE_MEMORY, AlignConfig, AlignMethod, known_options
from budcache.jobs.estimate import put_aside
from budcache.jobs.meter import Meter
from budcache.jobs.setup import Elsewhere, check_call, placed, shelf_of
from budcache.jobs.watching import watching
from budcache.options import bytes_of
from budcache.policy import Ladder, Policy
from budcache.samples.samples import runs_of, split, take_samples

if TYPE_CHECKING:
    from budcache.refine.align import Mean
    from budcache.workers import Workers

__all__ = ["align"]


@known_options
def align(
    pipe: Any,
    policies: Ladder | Policy,
    *,
    method: AlignMethod | None = None,
    prompts: Sequence[str] = (),
    samples: Sequence[Mapping[str, Any]] = (),
    call: Mapping[str, Any] | None = None,
    seed: int = 0,
    selection: int | None = None,
    batch: int = 1,
    epochs: int = 1,
    rate: float | None = None,
    mean: Mean | None = None,
    every: int = 10,
    objective: Literal["latent", "pixel"] = "latent",
    autocast: Literal["bfloat16"] | None = None,
    teacher_steps: int | None = None,
    state_memory: int | str = STATE_MEMORY,
    ledger: str | os.PathLike[str] | None = None,
    workers: Workers | None = None,
    progress: bool | None = None,
    watch: Watch | None = None,
) -> Ladder:
    """Move all numbers of policies together, so that their final outputs come near to the teacher's.

    Two methods. "gauss-newton" (F14) moves the weights of fitted policies, from forward runs alone. "gradient" is the
    paper's Algorithm 3: it learns the noise levels, and blend weights with them, by one update for each sample; the
    paper takes 100 prompts, once. For it the policies may be masks of any kind, also all ones: a short plain schedule
    is aligned with `teacher_steps` of the full run.

    Args:
        pipe: the pipeline that the policies are for.
        policies: what to begin with.
        method: None is "gauss-newton" where all policies are fitted, else "gradient".
        prompts: what to learn on; or
        samples: keyword arguments of the pipeline's `__call__`, one set per sample.
        call: keyword arguments of the pipeline that all samples share.
        seed: sample i starts from noise of seed + i.
        selection: how many of the samples, the last ones, to keep the best by; None is a quarter, but at most 8.
        batch: how many samples to run at once; for Gauss-Newton, as are only prompts, seeds and ledger beside it.
        epochs: how often to go through the samples to learn on, each time from other noise.
        rate: AdamW's learning rate, which falls along a cosine to zero; there is no weight decay. None is the paper's
            1e-3 for noise levels alone, and 1e-2 where there are blend weights.
        mean: which mean of the samples' errors is made small: "arithmetic", as in the paper, or "geometric", in which
            each counts relative to its own error. None is the first for noise levels alone, the second with weights.
        every: after how many updates to look at the selection samples.
        objective: the squared error of final latents, or of decoded pictures.
        autocast: "bfloat16" to run the model in that number format.
        teacher_steps: of the teacher's run on the pipeline's own schedule; None is the policies' steps.
        state_memory: main memory for states, as in `search`.
        ledger: a file in which everything learned is kept, so that a killed alignment can go on.
        workers: who holds the runs, as in `search`; for Gauss-Newton. By gradients one update follows the other.
        progress: whether to show a bar; None shows one in a terminal or a notebook.
        watch: called with every event (`budcache.events`).

    Returns:
        The ladder; a rung that did not gain on the selection samples is as it was.
    """
    ladder = policies if isinstance(policies, Ladder) else Ladder.of([policies])
    config = AlignConfig(
        ladder, epochs, rate, mean, every, objective, autocast, teacher_steps, seed, selection, method, batch
    )
    given = take_samples(prompts, samples, call)
    learned_on = split(given, put_aside(len(given), selection))
    if learned_on == len(given):
        raise SearchError("aligning needs samples to choose by. Give more prompts, or a selection of at least 1.")
    if workers is not None or isinstance(pipe, Elsewhere):
        config.check_workers()
    kind = GradientAlignment if config.way == "gradient" else NewtonAlignment
    with (
        shelf_of(bytes_of(state_memory)) as shelf,
        watching(watch, progress) as everybody,
        placed(pipe, workers, everybody, "align", runs_of(given, batch)) as where,
    ):
        check_call(where, given, "alignment", {"num_inference_steps": None})
        return kind(where, config, given, learned_on, shelf).run(ledger, Meter("align", everybody))
