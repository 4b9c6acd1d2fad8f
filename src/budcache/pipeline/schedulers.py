"""Schedulers of diffusers: which of them can be stood in for, their noise levels, and levels put in verbatim."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch import Tensor

from budcache.errors import PipelineError
from budcache.numerics.solvers import Solver

__all__ = ["as_solver", "check_noise", "check_scheduler", "clone", "install", "levels", "retime", "scaled", "skip_to"]


def clone(scheduler: Any) -> Any:
    """A copy of a scheduler that can go on by itself: its state is its own, the tensors in it are shared."""
    twin = copy.copy(scheduler)
    for name, value in vars(scheduler).items():
        if isinstance(value, list | dict):
            setattr(twin, name, copy.copy(value))
    return twin


def scaled(scheduler: Any, sample: Tensor, timestep: Any) -> Tensor:
    """A sample as a scheduler hands it to the model; schedulers of flow models leave it as it is and may not say so."""
    scale = getattr(scheduler, "scale_model_input", None)
    return sample if scale is None else scale(sample, timestep)


def levels(scheduler: Any) -> Tensor:
    """The K + 1 effective noise levels of a scheduler after `set_timesteps`.

    Schedulers that keep no sigmas (DDIM) step by timestep alone; there the timestep as a fraction is the level.
    """
    timesteps = scheduler.timesteps
    sigmas = getattr(scheduler, "sigmas", None)
    if isinstance(sigmas, Tensor) and len(sigmas) == len(timesteps) + 1:
        return sigmas.detach().to("cpu", torch.float32)
    fractions = timesteps.detach().to("cpu", torch.float32) / float(scheduler.config.num_train_timesteps)
    return torch.cat([fractions, fractions.new_zeros(1)])


def as_solver(scheduler: Any) -> Solver:
    """A scheduler, after `set_timesteps`, as a pure function; without a past it begins at the level it is given."""
    own, quiet = levels(scheduler), _without_noise(scheduler)

    def solve(x: Tensor, v: Tensor, here: Tensor, there: Tensor, past: Any) -> tuple[Tensor, Any]:
        if past is None:
            k, begun = int((own - here.detach().to(own)).abs().argmin()), clone(scheduler)
            if hasattr(begun, "set_begin_index"):
                begun._step_index = None  # it may have been asked to scale its first sample
                begun.set_begin_index(k)
        else:
            k, begun = past[0], clone(past[1])
        if hasattr(begun, "is_scale_input_called"):
            begun.is_scale_input_called = True  # it was, by the pipeline, on the seam's own scheduler
        x = begun.step(v, begun.timesteps[k], x, return_dict=False, **quiet)[0]
        return x, (k + 1, begun)

    return solve


def skip_to(scheduler: Any, step: int) -> None:
    """Let a scheduler go on at a step; some scale samples by the one that they are at."""
    if hasattr(scheduler, "_step_index"):
        scheduler._step_index = step


def retime(scheduler: Any, sigma: Tensor) -> Tensor:
    """The timestep that belongs to any noise level, differentiable in it.

    On the scheduler's own grid it is exactly the scheduler's own timestep; between, on a straight line.
    """
    grid, timesteps = levels(scheduler), scheduler.timesteps
    value = sigma.detach().to("cpu", torch.float32)
    on_grid = (grid[:-1] == value).nonzero()
    if len(on_grid) and not sigma.requires_grad:
        own: Tensor = timesteps[int(on_grid[0])]
        return own
    times = torch.cat([timesteps.to("cpu", torch.float64), torch.zeros(1, dtype=torch.float64)])
    k = int((grid[:-1] >= value).sum().clamp(1, len(grid) - 1)) - 1  # the grid falls: k is above, k + 1 below
    slope = float((times[k + 1] - times[k]) / (grid[k + 1].double() - grid[k].double()))
    time = float(times[k]) + slope * (sigma.to(torch.float64) - float(grid[k]))
    if timesteps.is_floating_point():
        return time.to(timesteps.device, timesteps.dtype)
    # UniPC and DPM-Solver++ hand out whole timesteps. Gradients pass through the rounding as if it were not there.
    whole = time + (time.trunc() - time).detach()
    return (
        whole.to(timesteps.device, torch.float32)
        if sigma.requires_grad
        else whole.to(timesteps.device, timesteps.dtype)
    )


def install(scheduler: Any, sigmas: tuple[float, ...] | Tensor) -> None:
    """Put effective noise levels into a scheduler, verbatim: after `set_timesteps`, so that nothing shifts them.

    Levels that are a tensor keep their gradient, so that steps are differentiable in them.
    """
    own = getattr(scheduler, "sigmas", None)
    name = type(scheduler).__name__
    if not isinstance(own, Tensor) or len(own) != len(scheduler.timesteps) + 1:
        raise PipelineError(
            f"{name} keeps no list of sigmas to replace, so it serves no policy with sigmas, no alignment and no finer "
            "teacher. Do without them, or use a scheduler such as EulerDiscreteScheduler."
        )
    if sigmas[0] > 2 * float(own[0]) or float(own[0]) > 2 * sigmas[0]:
        raise PipelineError(
            f"the policy's sigmas begin at {sigmas[0]:g} but {name} begins at {float(own[0]):g}: they belong to "
            "another kind of model. Search a policy on this pipeline."
        )
    new = torch.as_tensor(sigmas).to(own.device, own.dtype)
    timesteps = torch.stack([retime(scheduler, sigma) for sigma in new[:-1].detach().to("cpu", torch.float32)])
    scheduler.sigmas = new
    scheduler.timesteps = timesteps.to(scheduler.timesteps)
    # Two levels may now share a truncated timestep; only counting, not looking up, tells them apart.
    if hasattr(scheduler, "set_begin_index"):
        scheduler.set_begin_index(0)


_INSTEAD = (
    "Set pipe.scheduler to a deterministic first-order one, such as FlowMatchEulerDiscreteScheduler "
    "for flow models, or DDIMScheduler or EulerDiscreteScheduler for UNets."
)


def check_scheduler(scheduler: Any) -> None:
    """Refuse a scheduler under which reuse has no meaning: stochastic, or calling the model twice a step."""
    name = type(scheduler).__name__
    order = getattr(scheduler, "order", 1)
    if order != 1:
        raise PipelineError(f"{name} calls the model {order} times a step, so a step cannot be reused. {_INSTEAD}")
    expected = ["model_output", "timestep", "sample"]
    if not hasattr(scheduler, "step") or list(inspect.signature(scheduler.step).parameters)[:3] != expected:
        raise PipelineError(f"{name}.step does not take {', '.join(expected)}, so it cannot be wrapped. {_INSTEAD}")
    if _is_stochastic(scheduler):
        raise PipelineError(
            f"{name} adds fresh noise at its steps. An output that is repeated there holds the noise of an earlier "
            f"step, and the difference would stay in the picture. {_INSTEAD}"
        )


def check_noise(scheduler: Any, asked: dict[str, Any]) -> None:
    """Refuse a step that would add fresh noise: DDIM and TCD do so where the pipeline passes an eta, or none to TCD."""
    known = inspect.signature(scheduler.step).parameters.get("eta")
    if known is not None and (eta := asked.get("eta", known.default)):
        raise PipelineError(
            f"eta={eta} adds fresh noise, so what is reused would not fit. Call the pipeline with eta=0.0; one that "
            "takes no eta needs another scheduler."
        )


def _without_noise(scheduler: Any) -> dict[str, float]:
    """The argument of `step` that keeps noise out, where there is one: pipelines pass it, and 0 if not told."""
    return {"eta": 0.0} if "eta" in inspect.signature(scheduler.step).parameters else {}


def _is_stochastic(scheduler: Any) -> bool:
    """Whether two runs from the same state part ways; found by running, so no list of names can grow stale."""
    extra = {"mu": 1.0} if scheduler.config.get("use_dynamic_shifting") else {}
    ends, quiet = [], _without_noise(scheduler)
    for seed in (0, 1):
        trial = copy.deepcopy(scheduler)
        trial.set_timesteps(4, **extra)
        x = torch.ones(1, 4, 4, 4)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for t in trial.timesteps[:2]:
                if hasattr(trial, "scale_model_input"):
                    trial.scale_model_input(x, t)  # some insist on being asked before each step
                x = trial.step(torch.full_like(x, 0.1), t, x, return_dict=False, **quiet)[0]
        ends.append(x)
    return not torch.equal(*ends)
