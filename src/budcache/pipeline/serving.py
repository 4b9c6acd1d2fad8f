"""Putting a policy on a pipeline, and taking it off again."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from budcache.chosen import PolicyLike, choose
from budcache.errors import BudcacheWarning, PipelineError
from budcache.options import known_options_of_serving
from budcache.pipeline.adapters import at_work
from budcache.pipeline.arguments import arguments, is_modular
from budcache.pipeline.branches import Branches
from budcache.pipeline.experts import switch_of
from budcache.pipeline.following import follow
from budcache.pipeline.origin import difference, guidance_of
from budcache.pipeline.parts import check_pipeline
from budcache.pipeline.recording import check_not_recorded
from budcache.pipeline.residual import attach, detach
from budcache.pipeline.scheduler import BudcacheScheduler, Stats
from budcache.pipeline.standin import Timesteps
from budcache.pipeline.tie import Tie
from budcache.policy import Origin, Policy

__all__ = ["Handle", "applied", "apply"]

# Pipelines that compute more from the number of steps than their timesteps, so that it has to be named: FLUX.2 shifts
# its noise levels by it. (Image-to-image pipelines find their start by it.)
_COUNTING = ("Flux2",)

FAR = 0.5  # of the guidance; on tiny-flux a fit at 3.5 still gains at 5 and no longer does at 7

_applying = threading.Lock()


@known_options_of_serving
def apply(pipe: Any, policy: PolicyLike, *, budget: int | None = None) -> Handle:
    """Make a pipeline follow a policy until the handle's `remove()`.

    Args:
        pipe: any diffusers pipeline; call it as before, with `num_inference_steps` left out or equal to the
            policy's steps.
        policy: a policy, a ladder (with `budget`), or the path of either.
        budget: which rung of a ladder to take, in model calls per sample.
    """
    policy = choose(policy, budget)
    with _applying:  # of several threads one gets through, and the others are told
        return _apply(pipe, policy)


def _apply(pipe: Any, policy: Policy) -> Handle:
    check_pipeline(pipe)
    scheduler = pipe.scheduler
    if isinstance(scheduler, BudcacheScheduler):
        raise PipelineError(
            "this pipeline already carries a policy. Call remove() on its handle first, or, if it was loaded with one, "
            "set pipe.scheduler = pipe.scheduler.inner."
        )
    check_not_recorded(pipe)
    _check_origin(policy, pipe)
    known = arguments(pipe)
    default_steps = known.get("num_inference_steps")
    # The blocks of a modular pipeline count the steps of the full run, so it has to see them all.
    strength = "strength" in known or is_modular(pipe)
    if strength or type(pipe).__name__.startswith(_COUNTING) or not isinstance(default_steps, int):
        default_steps = None
    ours = BudcacheScheduler(
        scheduler, policy, default_steps, strength, own_sigmas=bool({"sigmas", "timesteps"} & set(known))
    )
    if policy.origin is not None:
        ours.at_start = _RunWatch(pipe, policy)
    undo = follow(pipe)
    try:
        if policy.reuse == "residual":
            attach(pipe, ours.trunk)  # last, since whatever fails before would leave it in the transformer
        if policy.guided is not None:
            ours.branches = Branches(pipe)
    except BaseException:
        undo()
        raise
    pipe.scheduler = ours
    # Some pipelines size their bar by num_inference_steps; it should end full.
    pipe.progress_bar = _ProgressBar(pipe)
    return Handle(pipe, scheduler, pipe.progress_bar, undo)


@known_options_of_serving
@contextmanager
def applied(pipe: Any, policy: PolicyLike, *, budget: int | None = None) -> Iterator[Handle]:
    """`apply` for the length of a `with` block."""
    handle = apply(pipe, policy, budget=budget)
    try:
        yield handle
    finally:
        handle.remove()


class Handle:
    """A policy on a pipeline: what it does, and how to take it off."""

    def __init__(self, pipe: Any, original: Any, bar: Any, undo: Callable[[], None]) -> None:
        self._pipe, self._original, self._ours, self._bar, self._undo = pipe, original, pipe.scheduler, bar, undo

    @property
    def policy(self) -> Policy:
        """The policy that is carried out."""
        policy: Policy = self._ours.policy
        return policy

    @property
    def is_active(self) -> bool:
        """Whether the pipeline still follows the policy; another scheduler set since then ends it."""
        return self._pipe.scheduler is self._ours

    def stats(self) -> Stats:
        """How many runs, computed and reused steps there have been so far."""
        stats: Stats = self._ours.stats
        return replace(stats)

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


def _check_origin(policy: Policy, pipe: Any) -> None:
    origin = policy.origin
    if origin is None:
        return
    now = type(pipe.scheduler).__name__
    if origin.scheduler is not None and origin.scheduler != now:
        if policy.rows is not None:
            warnings.warn(
                f"the policy was fitted with {origin.scheduler}, the pipeline has {now}. Its rows need no solver, so "
                f"it works as it is: what it comes near to are full runs with {origin.scheduler}.",
                BudcacheWarning,
                stacklevel=4,
            )
        elif policy.sigmas is not None or policy.weights is not None:
            fitted = "sigmas" if policy.sigmas is not None else "blend weights"
            raise PipelineError(
                f"the policy's {fitted} were made for {origin.scheduler}, but the pipeline has {now}. "
                f"Set pipe.scheduler = {origin.scheduler}.from_config(pipe.scheduler.config), or search with {now}."
            )
        else:
            _warn(f"the mask was searched with {origin.scheduler}, but the pipeline has {now}")
    differs = difference(origin, pipe) or _other_switch(origin, pipe, policy.steps)
    if differs is not None:
        _warn(differs)


def _other_switch(origin: Origin, pipe: Any, steps: int) -> str | None:
    """How the second expert's turn differs from that of the policy, as a clause; None if it does not."""
    here = switch_of(pipe, steps) if origin.switch is not None else None
    if here == origin.switch:
        return None
    then = "one network makes all steps" if here is None else f"at step {here}"
    return f"it was made where the second expert takes over at step {origin.switch}, here {then}"


def _warn(clause: str) -> None:
    warnings.warn(
        f"this policy may not fit: {clause}. The number of calls holds all the same; the quality may not. "
        "Search again on this pipeline to be sure.",
        BudcacheWarning,
        stacklevel=4,
    )


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


class _RunWatch(Tie):
    """Looks at the start of each run whether it is still one that the policy was made for."""

    def __init__(self, pipe: Any, policy: Policy) -> None:
        super().__init__(pipe)
        assert policy.origin is not None
        self.origin, self.seen = policy.origin, at_work(pipe)
        self.fitted_at = _guidance_range(policy.origin) if policy.is_blended else None
        self.warned_of: set[float] = set()  # guidance scales

    def __call__(self) -> None:
        if self.pipe is None:  # a copy of the scheduler has moved to another pipeline
            return
        now = at_work(self.pipe)
        if now != self.seen:  # a LoRA has come, gone or changed since the policy was applied
            self.seen = now
            differs = difference(self.origin, self.pipe)
            if differs is not None:
                _warn(differs)
        here = guidance_of(self.pipe)
        if self.fitted_at is None or here is None or here in self.warned_of:
            return
        low, high = self.fitted_at
        if not low <= here <= high:
            self.warned_of.add(here)
            how = f"call={{'guidance_scale': {here:g}}} or --guidance {here:g}"
            if "guidance_scale" not in arguments(self.pipe):
                how = "the guider that the pipeline has now"
            ranges = self.origin.ranges.get("guidance")
            where = f"{self.origin.guidance:g}" if ranges is None else f"{ranges[0]:g} to {ranges[1]:g}"
            warnings.warn(
                f"the policy was fitted at guidance {where}, this run has {here:g}: quality may suffer. "
                f"Fit it again at that guidance, with {how}.",
                BudcacheWarning,
                stacklevel=4,
            )


def _guidance_range(origin: Origin) -> tuple[float, float] | None:
    """Between which guidance scales a fit can be trusted: those that it was made on, or near to the one."""
    if "guidance" in origin.ranges:
        return origin.ranges["guidance"]
    if origin.guidance is None:
        return None
    room = FAR * max(origin.guidance, 1.0)
    return origin.guidance - room, origin.guidance + room
