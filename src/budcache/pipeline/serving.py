"""Putting a policy on a pipeline, changing it between runs, and taking it off again."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any, ParamSpec

from budcache.chosen import Opened, PolicyLike, check_choice, check_seconds, choose, opened
from budcache.errors import PipelineError
from budcache.options import known_options_of_serving
from budcache.pipeline.arguments import arguments, is_modular
from budcache.pipeline.branches import Branches
from budcache.pipeline.following import follow
from budcache.pipeline.parts import check_pipeline
from budcache.pipeline.recording import check_not_recorded
from budcache.pipeline.residual import attach, detach
from budcache.pipeline.scheduler import BudcacheScheduler
from budcache.pipeline.seconds import Timing, fitting, measured, to_time
from budcache.pipeline.standin import Timesteps
from budcache.pipeline.stats import Stats
from budcache.pipeline.suited import RunWatch, check_model, check_scheduler_of
from budcache.pipeline.tie import Tie
from budcache.policy import Ladder, Policy

__all__ = ["Handle", "applied", "apply"]

# Pipelines that compute more from the number of steps than their timesteps, so that it has to be named: FLUX.2 shifts
# its noise levels by it. (Image-to-image pipelines find their start by it.)
_COUNTING = ("Flux2",)

logger = logging.getLogger("budcache")

_applying = threading.Lock()

P = ParamSpec("P")


@known_options_of_serving
def apply(
    pipe: Any,
    policy: PolicyLike,
    *,
    budget: int | None = None,
    seconds: float | None = None,
    call: Mapping[str, Any] | None = None,
    measure_again: bool = False,
) -> Handle:
    """Make a pipeline follow a policy until the handle's `remove()`.

    Args:
        pipe: any diffusers pipeline; call it as before, with `num_inference_steps` left out or equal to the
            policy's steps.
        policy: a policy, a ladder (with `budget` or `seconds`), or the path of either.
        budget: which rung of a ladder to take, in model calls per sample.
        seconds: or the time that a run may take. The pipeline is timed once, under the smallest rung, and the largest
            rung that fits is taken; where all steps fit, the full run. `handle.reason` says why.
        call: arguments of the pipeline to time it with: size, batch, guidance; else its defaults.
        measure_again: whether to time it even if a measurement is kept beside the ladder's file.
    """
    check_choice(budget, seconds)
    given = opened(policy)
    first = choose(given, budget) if seconds is None else _smallest(given)
    with _applying:  # of several threads one gets through, and the others are told
        handle = _apply(pipe, first, given)
    try:
        if seconds is not None:
            handle.use(seconds=seconds, call=call, measure_again=measure_again)
    except BaseException:
        handle.remove()
        raise
    return handle


def _apply(pipe: Any, policy: Policy, given: Opened) -> Handle:
    check_pipeline(pipe)
    scheduler = pipe.scheduler
    if isinstance(scheduler, BudcacheScheduler):
        raise PipelineError(
            "this pipeline already carries a policy. Call remove() on its handle first, or, if it was loaded with one, "
            "set pipe.scheduler = pipe.scheduler.inner."
        )
    check_not_recorded(pipe)
    check_scheduler_of(policy, scheduler)
    check_model(policy, pipe)
    known = arguments(pipe)
    default_steps = known.get("num_inference_steps")
    # The blocks of a modular pipeline count the steps of the full run, so it has to see them all.
    strength = "strength" in known or is_modular(pipe)
    if strength or type(pipe).__name__.startswith(_COUNTING) or not isinstance(default_steps, int):
        default_steps = None
    ours = BudcacheScheduler(
        scheduler, policy, default_steps, strength, own_sigmas=bool({"sigmas", "timesteps"} & set(known))
    )
    undo = follow(pipe)
    try:
        _fit_out(pipe, ours, policy, None)
    except BaseException:
        undo()
        raise
    pipe.scheduler = ours
    # Some pipelines size their bar by num_inference_steps; it should end full.
    pipe.progress_bar = _ProgressBar(pipe)
    return Handle(pipe, scheduler, pipe.progress_bar, undo, given)


def _fit_out(pipe: Any, ours: BudcacheScheduler, policy: Policy, before: Policy | None) -> None:
    """Give a pipeline what a policy needs beside the scheduler, and take from it what only the one before needed."""
    trunk, had_trunk = policy.reuse == "residual", before is not None and before.reuse == "residual"
    if trunk and not had_trunk:
        attach(pipe, ours.trunk)  # first, since it may refuse
    elif had_trunk and not trunk:
        detach(pipe, ours.trunk)
    if policy.guided is not None and ours.branches is None:
        ours.branches = Branches(pipe)
    elif policy.guided is None and ours.branches is not None:
        ours.branches.remove()
        ours.branches = None
    ours.at_start = None if policy.origin is None else RunWatch(pipe, policy, ours.at_start)


def _smallest(given: Opened) -> Policy:
    return given.value if isinstance(given.value, Policy) else given.value.rungs[0]


def _in_a_block(function: Callable[P, Handle]) -> Callable[P, AbstractContextManager[Handle]]:
    """What makes a handle, with the same options, for the length of a `with` block."""

    @wraps(function)
    def block(*args: P.args, **options: P.kwargs) -> Iterator[Handle]:
        handle = function(*args, **options)
        try:
            yield handle
        finally:
            handle.remove()

    block.__name__ = block.__qualname__ = "applied"
    block.__doc__ = "`apply` for the length of a `with` block."
    returned = inspect.signature(function).replace(return_annotation="AbstractContextManager[Handle]")
    block.__signature__ = returned  # type: ignore[attr-defined]
    return known_options_of_serving(contextmanager(block))


applied = _in_a_block(apply)


class Handle:
    """A policy on a pipeline: what it does, how to change it, and how to take it off."""

    def __init__(
        self,
        pipe: Any,
        original: Any,
        bar: Any,
        undo: Callable[[], None],
        given: Opened,
    ) -> None:
        self._pipe, self._original, self._ours, self._bar, self._undo = pipe, original, pipe.scheduler, bar, undo
        self._given = given
        self._reason: str | None = None

    @property
    def policy(self) -> Policy:
        """The policy that is carried out."""
        policy: Policy = self._ours.policy
        return policy

    @property
    def reason(self) -> str | None:
        """Why it is this rung, where a time was named."""
        return self._reason

    @property
    def is_active(self) -> bool:
        """Whether the pipeline still follows the policy; another scheduler set since then ends it."""
        return self._pipe.scheduler is self._ours

    def use(
        self,
        policy: PolicyLike | None = None,
        *,
        budget: int | None = None,
        seconds: float | None = None,
        call: Mapping[str, Any] | None = None,
        measure_again: bool = False,
    ) -> Policy:
        """Carry out another rung, or another policy, from the next run on; the stats go on counting.

        Args:
            policy: a policy, a ladder, or the path of either; None is what was applied.
            budget: which rung of a ladder, in model calls per sample.
            seconds: or the time that a run may take, as for `apply`.
            call: arguments of the pipeline to time it with.
            measure_again: whether to time it even if there is a measurement.

        Returns:
            The policy that is carried out now.
        """
        if not self.is_active:
            raise PipelineError("this policy is no longer on the pipeline, so it cannot be changed. Apply it again.")
        given = self._given if policy is None else opened(policy)
        check_choice(budget, seconds)
        reason = None
        if seconds is None:
            chosen = choose(given, budget)
        else:
            timing = self._timing(given, call, measure_again)
            ladder = given.value if isinstance(given.value, Ladder) else Ladder.of([given.value])
            chosen, reason = fitting(ladder, timing, check_seconds(seconds))
            logger.info("%s", reason)
        self._carry_out(chosen)
        self._given, self._reason = given, reason
        return chosen

    def _carry_out(self, policy: Policy) -> None:
        before = self.policy
        check_scheduler_of(policy, self._ours.inner)
        if not (before.origin and policy.origin and before.origin.difference(policy.origin) is None):
            check_model(policy, self._pipe)
        self._ours.use(policy, lambda: _fit_out(self._pipe, self._ours, policy, before))

    def _timing(self, given: Opened, call: Mapping[str, Any] | None, again: bool) -> Timing:
        """How long the pipeline takes; what is run to find out does not count."""
        pipe, ours, before, smallest = self._pipe, self._ours, self.policy, _smallest(given)

        def run(arguments_of_run: Mapping[str, Any]) -> int:
            pipe(**arguments_of_run)
            return int(ours.stats.last_run_calls)

        wanted = to_time(pipe, call)
        if "num_inference_steps" in arguments(pipe):
            wanted = {**wanted, "num_inference_steps": smallest.steps}
        counted = ours.stats
        self._carry_out(smallest)
        ours.stats = Stats()
        try:
            return measured(pipe, wanted, run, given.file, again)
        finally:
            ours.stats = counted
            self._carry_out(before)

    def stats(self) -> Stats:
        """How many runs, computed and reused steps there have been so far."""
        stats: Stats = self._ours.stats
        return stats.copy()

    def remove(self) -> None:
        """Give the pipeline back as it was; a second time does nothing."""
        pipe = self._pipe
        if pipe.__dict__.get("progress_bar") is self._bar:
            del pipe.__dict__["progress_bar"]
        self._undo()
        if self.policy.reuse == "residual":
            detach(pipe, self._ours.trunk)
        if self._ours.branches is not None:
            self._ours.branches.remove()
        if self.is_active:  # a scheduler that the user set meanwhile is not ours to replace
            pipe.scheduler = self._original

    def __repr__(self) -> str:
        state = "active" if self.is_active else "removed"
        return f"<budcache {state}: {self.policy.budget} of {self.policy.steps} steps on {type(self._pipe).__name__}>"


class _ProgressBar(Tie):
    """A pipeline's `progress_bar`, sized by the calls that will really be made."""

    def __call__(self, iterable: Any = None, total: int | None = None, **options: Any) -> Any:
        pipe = self.pipe
        ours = isinstance(pipe.scheduler, BudcacheScheduler)
        if total is not None and ours:
            total = pipe.scheduler.planned_calls
        bar = type(pipe).progress_bar(pipe, iterable, total, **options)
        if isinstance(iterable, Timesteps) and ours:
            bar.total = pipe.scheduler.planned_calls  # a loop over them does not take them all
        return bar
