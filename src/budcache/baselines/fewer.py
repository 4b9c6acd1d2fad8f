"""Fewer steps of a better solver: what a user would choose who has no cache at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from diffusers import DPMSolverMultistepScheduler, FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler

from budcache.errors import PipelineError

__all__ = ["DPMPP", "IPNDM2", "UniPC", "another_solver", "solved_by"]

FLOW = "flow_prediction"


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


class _OnEulersLevels:
    """A multistep scheduler of diffusers for flow models, on the very noise levels that Euler's would have.

    Its own `use_flow_sigmas` has other levels, and pipelines then keep theirs to themselves. So it is left off, and
    what a noise level means is said here.
    """

    solver: Any  # the class of diffusers
    euler: Any  # gives the levels: shifted, stretched or inverted as its configuration has it
    most = 1 - 1e-6  # the largest level: the logarithm of what is left of the picture must be finite

    @wraps(FlowMatchEulerDiscreteScheduler.set_timesteps)
    def set_timesteps(self, *args: Any, **kwargs: Any) -> None:
        """Euler's levels and times, verbatim."""
        self.euler.set_timesteps(*args, **kwargs)
        fresh = self.solver(prediction_type=FLOW)  # without a past, and with a configuration that it understands
        fresh.set_timesteps(len(self.euler.timesteps))
        own = _settings(self)
        vars(self).update(vars(fresh))
        self.register_to_config(**own)  # type: ignore[attr-defined]
        self.sigmas = self.euler.sigmas.to("cpu", torch.float32).clamp(max=self.most)
        self.timesteps = self.euler.timesteps

    def _sigma_to_alpha_sigma_t(self, sigma: Any) -> tuple[Any, Any]:
        return 1 - sigma, sigma


class DPMPP(_OnEulersLevels, DPMSolverMultistepScheduler):  # type: ignore[misc]
    """DPM-Solver++(2M)."""

    solver = DPMSolverMultistepScheduler
    most = 1 - 5e-4  # about where diffusers has it begin; nearer to 1, its second step is of first order


class UniPC(_OnEulersLevels, UniPCMultistepScheduler):  # type: ignore[misc]
    """UniPC."""

    solver = UniPCMultistepScheduler


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
    if scheduler.config.invert_sigmas:
        raise PipelineError(
            "other solvers need noise levels that fall, and invert_sigmas makes them rise. Leave them out."
        )
    if name == "ipndm":
        return IPNDM2.from_config(scheduler.config)
    solver = (DPMPP if name == "dpmpp" else UniPC)(prediction_type=FLOW)
    solver.euler = FlowMatchEulerDiscreteScheduler.from_config(scheduler.config)
    # Pipelines look into the configuration for how to shift the levels.
    solver.register_to_config(**_settings(scheduler))
    return solver


def _settings(scheduler: Any) -> dict[str, Any]:
    return {name: value for name, value in scheduler.config.items() if name[:1].isalpha()}  # others are diffusers' own


@contextmanager
def solved_by(pipe: Any, name: str) -> Iterator[None]:
    """A pipeline with another solver for the length of a `with` block."""
    original = pipe.scheduler
    pipe.scheduler = another_solver(original, name)
    try:
        yield
    finally:
        pipe.scheduler = original
