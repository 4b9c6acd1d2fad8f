"""Whether a policy suits a pipeline: looked at when it is applied, and again at the start of every run."""

from __future__ import annotations

import warnings
from typing import Any

from budcache.errors import BudcacheWarning, PipelineError
from budcache.pipeline.adapters import at_work
from budcache.pipeline.arguments import arguments
from budcache.pipeline.experts import switch_of
from budcache.pipeline.origin import difference, guidance_of
from budcache.pipeline.tie import Tie
from budcache.policy import Origin, Policy

__all__ = ["RunWatch", "check_model", "check_scheduler_of"]

FAR = 0.5  # of the guidance; on tiny-flux a fit at 3.5 still gains at 5 and no longer does at 7


def check_scheduler_of(policy: Policy, scheduler: Any) -> None:
    """Refuse numbers that were made for another scheduler; say where they can do without."""
    origin, now = policy.origin, type(scheduler).__name__
    if origin is None or origin.scheduler is None or origin.scheduler == now:
        return
    if policy.rows is not None:
        warnings.warn(
            f"the policy was fitted with {origin.scheduler}, the pipeline has {now}. Its rows need no solver, so "
            f"it works as it is: what it comes near to are full runs with {origin.scheduler}.",
            BudcacheWarning,
            stacklevel=5,
        )
    elif policy.sigmas is not None or policy.weights is not None:
        fitted = "sigmas" if policy.sigmas is not None else "blend weights"
        raise PipelineError(
            f"the policy's {fitted} were made for {origin.scheduler}, but the pipeline has {now}. "
            f"Set pipe.scheduler = {origin.scheduler}.from_config(pipe.scheduler.config), or search with {now}."
        )
    else:
        _warn(f"the mask was searched with {origin.scheduler}, but the pipeline has {now}")


def check_model(policy: Policy, pipe: Any) -> None:
    """Say where a pipeline is not the model that a policy was made on."""
    if policy.origin is None:
        return
    differs = difference(policy.origin, pipe) or _other_switch(policy.origin, pipe, policy.steps)
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


class RunWatch(Tie):
    """Looks at the start of each run whether it is still one that the policy was made for."""

    def __init__(self, pipe: Any, policy: Policy, before: object = None) -> None:
        super().__init__(pipe)
        assert policy.origin is not None
        self.origin, self.seen = policy.origin, at_work(pipe)
        self.fitted_at = _guidance_range(policy.origin) if policy.is_blended else None
        self.warned_of: set[float] = set()  # guidance scales
        if isinstance(before, RunWatch) and before.fitted_at == self.fitted_at:  # another rung of the ladder
            self.warned_of = before.warned_of

    def __call__(self) -> None:
        """A run begins."""
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
