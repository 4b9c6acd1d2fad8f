"""Schedulers of better solvers, for flow models that come with Euler's; `solvers.py` chooses their settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch
from diffusers import DPMSolverMultistepScheduler, FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler
from torch import Tensor

from budcache.errors import PipelineError
from budcache.pipeline.schedulers import retime

__all__ = ["DPMPP", "IPNDM2", "SPACINGS", "UniPC", "another_solver", "check_euler"]

FLOW = "flow_prediction"


def _karras(levels: Tensor) -> Tensor:
    """Even steps of the seventh root."""
    first, last = levels[0] ** (1 / 7), levels[-1] ** (1 / 7)
    return (first + torch.linspace(0, 1, len(levels), dtype=levels.dtype) * (last - first)) ** 7


def _exponential(levels: Tensor) -> Tensor:
    """Even steps of the logarithm."""
    return torch.linspace(float(levels[0].log()), float(levels[-1].log()), len(levels), dtype=levels.dtype).exp()


def _beta(levels: Tensor) -> Tensor:
    """Quantiles of the beta distribution with 0.6 and 0.6: dense at both ends."""
    even = torch.linspace(1, 0, len(levels), dtype=levels.dtype)
    return levels[-1] + (levels[0] - levels[-1]) * _quantiles(even, 0.6)


# Where the levels between the first and the last lie, as the settings of diffusers' schedulers have it.
SPACINGS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "usual": lambda levels: levels,
    "karras": _karras,
    "exponential": _exponential,
    "beta": _beta,
}


def _quantiles(shares: Tensor, shape: float) -> Tensor:
    """Of the symmetric beta distribution, which SciPy has and nothing that is installed here.

    With s = t^shape the density t^(shape-1) (1-t)^(shape-1) dt becomes (1 - s^(1/shape))^(shape-1) ds / shape, smooth
    up to the middle; the upper half is the lower one turned round.
    """
    s = torch.linspace(0, 0.5**shape, 20_001, dtype=torch.float64)
    density = (1 - s ** (1 / shape)) ** (shape - 1)
    below = torch.cumulative_trapezoid(density, s)
    below = torch.cat([torch.zeros(1, dtype=torch.float64), below]) / (2 * below[-1])  # half of all is below the middle
    lower = torch.minimum(shares, 1 - shares).double().contiguous()
    at = torch.searchsorted(below, lower).clamp(1, len(s) - 1)
    part = (lower - below[at - 1]) / (below[at] - below[at - 1])
    found = (s[at - 1] + part * (s[at] - s[at - 1])) ** (1 / shape)
    return torch.where(shares <= 0.5, found, 1 - found).to(shares.dtype)


def _respace(scheduler: Any, spacing: str) -> None:
    """Other levels between the first and the last of a scheduler that has its own, and the times that go with them."""
    if spacing != "usual":
        levels = SPACINGS[spacing](scheduler.sigmas[:-1])
        times = torch.stack([retime(scheduler, level) for level in levels.to("cpu", torch.float32)])
        scheduler.sigmas = torch.cat([levels, scheduler.sigmas[-1:]])
        scheduler.timesteps = times.to(scheduler.timesteps)


class _Told:
    """A scheduler that tells a tally of its steps; a copy, which pipelines make for a second stream, tells its own."""

    tally: Any = None
    spacing = "usual"

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """One step, and one call of the whole network."""
        found = super().step(*args, **kwargs)  # type: ignore[misc]
        if self.tally is not None:
            done: int = self.step_index  # type: ignore[attr-defined]
            self.tally.step_begins(done - 1)
            self.tally.step_ends(done - 1, last=done == len(self.timesteps))  # type: ignore[attr-defined]
        return found

    def _begins(self) -> None:
        if self.tally is not None:
            self.tally.run_begins(None)


class IPNDM2(_Told, FlowMatchEulerDiscreteScheduler):  # type: ignore[misc]
    """iPNDM(2M) for flow models, which diffusers does not have: `numerics.solvers.ipndm2` as a scheduler."""

    past: Any = None

    @wraps(FlowMatchEulerDiscreteScheduler.set_timesteps)
    def set_timesteps(self, *args: Any, **kwargs: Any) -> None:
        """A new run has no past."""
        self.past = None
        super().set_timesteps(*args, **kwargs)
        _respace(self, self.spacing)
        self._begins()

    @wraps(FlowMatchEulerDiscreteScheduler.step)
    def step(self, model_output: Any, *args: Any, **kwargs: Any) -> Any:
        """Continue the line through the last two outputs."""
        slope = model_output if self.past is None else 1.5 * model_output - 0.5 * self.past
        self.past = model_output
        return super().step(slope, *args, **kwargs)


class _OnEulersLevels(_Told):
    """A multistep scheduler of diffusers for flow models, on the very noise levels that Euler's would have.

    Its own `use_flow_sigmas` has other levels, and pipelines then keep theirs to themselves. So it is left off, and
    what a noise level means is said here.
    """

    solver: Any  # the class of diffusers
    euler: Any  # gives the levels: shifted, stretched or inverted as its configuration has it
    gap = 1e-6  # of the largest level to 1: the logarithm of what is left of the picture must be finite

    def __init__(self, **given: Any) -> None:
        super().__init__(prediction_type=FLOW, **given)  # type: ignore[call-arg]
        self.given = given

    @wraps(FlowMatchEulerDiscreteScheduler.set_timesteps)
    def set_timesteps(self, *args: Any, **kwargs: Any) -> None:
        """Euler's levels and times, verbatim, or others between the first and the last."""
        self.euler.set_timesteps(*args, **kwargs)
        _respace(self.euler, self.spacing)
        # Without a past, and with a configuration that it understands.
        fresh = self.solver(prediction_type=FLOW, **self.given)
        fresh.set_timesteps(len(self.euler.timesteps))
        own = _settings(self)
        vars(self).update(vars(fresh))
        self.register_to_config(**own)  # type: ignore[attr-defined]
        self.sigmas = self.euler.sigmas.to("cpu", torch.float32).clone()
        # The first level alone gives way, and not beyond the second: levels must fall.
        self.sigmas[0] = min(float(self.sigmas[0]), max(1 - self.gap, float(self.sigmas[:2].mean())))
        self.timesteps = self.euler.timesteps
        self._begins()

    def scale_noise(self, *args: Any, **kwargs: Any) -> Any:
        """As Euler's: pipelines that start midway mix noise into a picture."""
        return self.euler.scale_noise(*args, **kwargs)

    def _sigma_to_alpha_sigma_t(self, sigma: Any) -> tuple[Any, Any]:
        return 1 - sigma, sigma


class DPMPP(_OnEulersLevels, DPMSolverMultistepScheduler):  # type: ignore[misc]
    """DPM-Solver++(2M)."""

    solver = DPMSolverMultistepScheduler
    gap = 5e-4  # about where diffusers has it begin; nearer to 1, its second step is of first order

    @wraps(DPMSolverMultistepScheduler.step)  # pipelines look at what it takes
    def step(self, *args: Any, **kwargs: Any) -> Any:
        """One step."""
        return super().step(*args, **kwargs)


class UniPC(_OnEulersLevels, UniPCMultistepScheduler):  # type: ignore[misc]
    """UniPC."""

    solver = UniPCMultistepScheduler

    @wraps(UniPCMultistepScheduler.step)
    def step(self, *args: Any, **kwargs: Any) -> Any:
        """One step."""
        return super().step(*args, **kwargs)


def another_solver(scheduler: Any, name: str, *, spacing: str = "usual", gap: float | None = None, **given: Any) -> Any:
    """A scheduler of another solver on the same noise levels, for flow models that come with Euler's.

    Args:
        scheduler: the pipeline's own.
        name: "ipndm" (2M), "dpmpp" (DPM-Solver++ 2M) or "unipc".
        spacing: where the levels between the first and the last lie, one of `SPACINGS`.
        gap: how far below 1 the first level lies at least; None is what suits the solver. iPNDM needs none.
        given: settings of the solver's scheduler in diffusers.
    """
    check_euler(scheduler)
    if name == "ipndm":
        solver: Any = IPNDM2.from_config(scheduler.config)
    else:
        solver = {"dpmpp": DPMPP, "unipc": UniPC}[name](**given)
        solver.euler = FlowMatchEulerDiscreteScheduler.from_config(scheduler.config)
        # Pipelines look into the configuration for how to shift the levels.
        solver.register_to_config(**_settings(scheduler))
        solver.gap = solver.gap if gap is None else gap
    solver.spacing = spacing
    return solver


def check_euler(scheduler: Any) -> None:
    """Refuse a scheduler that no other solver can take the place of here."""
    if not isinstance(scheduler, FlowMatchEulerDiscreteScheduler):
        raise PipelineError(
            "other solvers are set up for pipelines that come with FlowMatchEulerDiscreteScheduler, and this one has "
            f"{type(scheduler).__name__}. Leave their fewer steps out."
        )
    if scheduler.config.invert_sigmas:
        raise PipelineError(
            "other solvers need noise levels that fall, and invert_sigmas makes them rise. Leave them out."
        )


def _settings(scheduler: Any) -> dict[str, Any]:
    return {name: value for name, value in scheduler.config.items() if name[:1].isalpha()}  # others are diffusers' own
