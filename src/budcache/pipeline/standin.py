"""A scheduler that stands in for another one.

A stock pipeline meets the world in `scheduler.set_timesteps`, `scheduler.timesteps` and `scheduler.step`.
Whoever stands there decides how often and at which noise levels the model is called, and the pipeline's
own guidance, ControlNets, adapters, offloading and compilation never notice.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from diffusers.schedulers.scheduling_utils import SchedulerMixin
from torch import Tensor

from budcache.errors import PipelineError

__all__ = ["StandIn", "Timesteps", "check_scheduler", "clone", "install", "levels", "retime", "scaled"]

Loop = Callable[[tuple[int, ...]], Iterator[Tensor]]
Rest = Callable[[int], Tensor]


class Timesteps(Tensor):
    """Timesteps that know when a pipeline loops over them, and which steps they are.

    To everything else (`len`, indexing, arithmetic, comparison) it is the plain tensor that it is.
    """

    steps: tuple[int, ...]  # of the full run, one per value
    loop: Loop
    rest: Rest | None

    @classmethod
    def of(cls, values: Tensor, steps: Sequence[int], loop: Loop, rest: Rest | None = None) -> Timesteps:
        """Timesteps of some steps.

        Args:
            values: the timesteps.
            steps: which steps they are.
            loop: what a `for` loop over them runs through, given the steps.
            rest: what is left from a place on, if not just the values there: this is how an image-to-image pipeline
                finds its start.
        """
        timesteps = values.as_subclass(cls)
        timesteps.steps, timesteps.loop, timesteps.rest = tuple(steps), loop, rest
        return timesteps

    # Results of arithmetic are plain tensors: only slices are still something to loop over.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __getitem__(self, index: Any) -> Tensor:
        values = self.as_subclass(Tensor)
        if not isinstance(index, slice) or index.step not in (None, 1):
            return values[index]
        if self.rest is not None and index.stop is None:
            return self.rest(index.indices(len(values))[0])
        return Timesteps.of(values[index], self.steps[index], self.loop)

    def __iter__(self) -> Iterator[Tensor]:
        return self.loop(self.steps)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.as_subclass(Tensor).clone()


class StandIn(SchedulerMixin):  # type: ignore[misc]
    """Stands in for the `inner` scheduler; what is not said here, the inner one answers."""

    order = 1
    inner: Any
    own_to_each_copy: tuple[str, ...] = ()  # attributes that copies do not take over

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        # Only called for what is not found here. Before `inner` is set (while copying) there is nothing to ask.
        # What this class does have failed inside; asking the inner one instead would hide that.
        if name == "inner" or (name.startswith("__") and name.endswith("__")) or hasattr(type(self), name):
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        # A pipeline may write to its scheduler too; what is the inner one's is written there.
        theirs = "inner" in vars(self) and name not in vars(self) and not hasattr(type(self), name)
        if theirs and hasattr(self.inner, name):
            setattr(self.inner, name, value)
        elif isinstance(getattr(type(self), name, None), property):
            raise PipelineError(f"scheduler.{name} cannot be set while budcache stands in for the scheduler.")
        else:
            super().__setattr__(name, value)

    # Pipelines also ask `isinstance(self.scheduler, UniPCMultistepScheduler)` and take another way if it is not. Python
    # answers by this; what a stand-in really is (`type`) stays as it is, so it has to say how it is copied and pickled.
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        mine: Any = type(self)
        return _both(mine, self.inner.__class__) if "inner" in vars(self) else mine

    def __reduce_ex__(self, protocol: Any) -> Any:
        state = {name: value for name, value in vars(self).items() if name not in self.own_to_each_copy}
        return object.__new__, (type(self),), state

    def scale_model_input(self, sample: Tensor, timestep: Any = None) -> Tensor:
        """As the inner scheduler's."""
        return scaled(self.inner, sample, timestep)

    @property
    def place(self) -> int:
        """The step that the model is being evaluated at, counted from the one at which the run begins."""
        raise NotImplementedError

    @property
    def length(self) -> int:
        """How many steps the full run has from there."""
        raise NotImplementedError

    # Pipelines ask whether a scheduler has this, so it is there only if the inner one has it.
    @property
    def set_begin_index(self) -> Callable[..., None]:
        """As the inner scheduler's."""
        return _signed(self._set_begin_index, self.inner.set_begin_index)

    def _set_begin_index(self, begin_index: int = 0) -> None:
        self.inner.set_begin_index(begin_index)

    # diffusers reads the *signatures* of these two to learn what a scheduler can take, so they are the inner one's.
    @property
    def set_timesteps(self) -> Callable[..., None]:
        """As the inner scheduler's."""
        return _signed(self._set_timesteps, self.inner.set_timesteps)

    @property
    def step(self) -> Callable[..., Any]:
        """As the inner scheduler's."""
        return _signed(self._step, self.inner.step)

    def _set_timesteps(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError

    def _step(self, model_output: Tensor, timestep: Any, sample: Tensor, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


@functools.cache
def _both(stand_in: Any, inner: Any) -> Any:
    """A class that nothing is an instance of, for questions alone: it has the stand-in's name and both as its bases."""
    return type(stand_in.__name__, (stand_in, inner), {"__module__": stand_in.__module__})


def _signed(method: Callable[..., Any], like: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(like)
    def call(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    return call


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
        raise PipelineError(f"{name} adds fresh noise at its steps, so what is reused would not fit. {_INSTEAD}")


def _is_stochastic(scheduler: Any) -> bool:
    """Whether two runs from the same state part ways; found by running, so no list of names can grow stale."""
    extra = {"mu": 1.0} if scheduler.config.get("use_dynamic_shifting") else {}
    ends = []
    for seed in (0, 1):
        trial = copy.deepcopy(scheduler)
        trial.set_timesteps(4, **extra)
        x = torch.ones(1, 4, 4, 4)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for t in trial.timesteps[:2]:
                if hasattr(trial, "scale_model_input"):
                    trial.scale_model_input(x, t)  # some insist on being asked before each step
                x = trial.step(torch.full_like(x, 0.1), t, x, return_dict=False)[0]
        ends.append(x)
    return not torch.equal(*ends)
