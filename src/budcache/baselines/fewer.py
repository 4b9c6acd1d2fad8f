"""Fewer steps of a better solver: what a user would choose who has no cache at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from diffusers import DPMSolverMultistepScheduler, FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler

from budcache.errors import PipelineError

__all__ = ["IPNDM2", "SOLVERS", "another_solver", "solved_by"]

SOLVERS = ("ipndm", "dpmpp", "unipc")


class IPNDM2(FlowMatchEulerDiscreteScheduler):  # type: ignore[misc]
    """iPNDM(2M) for flow models, which diffusers does not have: `numerics.solvers.ipndm2` as a scheduler."""

    past: Any = None

    @wraps(FlowMatchEulerDiscreteScheduler.set_timesteps)
    def set_timesteps(self, *args: Any, **kwargs: Any) -> None:
        """A new run has no past."""
        self.past = None
        super().set_timesteps(*args, **kwargs)

    @wraps(FlowMatchEulerDiscreteScheduler.step)
    def step(self, model_output: Any, *args: Any, **kwargs: Any) -> Any:
        """Continue the line through the last two outputs."""
        slope = model_output if self.past is None else 1.5 * model_output - 0.5 * self.past
        self.past = model_output
        return super().step(slope, *args, **kwargs)


def another_solver(scheduler: Any, name: str) -> Any:
    """A scheduler of another solver on the same noise levels, for flow models that come with Euler's.

    Args:
        scheduler: the pipeline's own.
        name: "ipndm" (2M), "dpmpp" (DPM-Solver++ 2M) or "unipc".
    """
    if not isinstance(scheduler, FlowMatchEulerDiscreteScheduler):
        raise PipelineError(
            "other solvers are set up for pipelines that come with FlowMatchEulerDiscreteScheduler, and this one has "
            f"{type(scheduler).__name__}. Leave their fewer steps out."
        )
    own = scheduler.config
    if name == "ipndm":
        return IPNDM2.from_config(own)
    flow: dict[str, Any] = {"use_flow_sigmas": True, "prediction_type": "flow_prediction", "flow_shift": own.shift}
    if own.use_dynamic_shifting:
        flow |= {"use_dynamic_shifting": True, "time_shift_type": own.time_shift_type}
    return (DPMSolverMultistepScheduler if name == "dpmpp" else UniPCMultistepScheduler)(**flow)


@contextmanager
def solved_by(pipe: Any, name: str) -> Iterator[None]:
    """A pipeline with another solver for the length of a `with` block."""
    original = pipe.scheduler
    pipe.scheduler = another_solver(original, name)
    try:
        yield
    finally:
        pipe.scheduler = original
