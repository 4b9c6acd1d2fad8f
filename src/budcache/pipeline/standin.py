"""A scheduler that stands in for another one.

A stock pipeline meets the world in `scheduler.set_timesteps`, `scheduler.timesteps` and `scheduler.step`.
Whoever stands there decides how often and at which noise levels the model is called, and the pipeline's
own guidance, ControlNets, adapters, offloading and compilation never notice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from diffusers.schedulers.scheduling_utils import SchedulerMixin
from torch import Tensor

from budcache.errors import PipelineError
from budcache.pipeline.schedulers import scaled

__all__ = ["StandIn", "Timesteps", "ask_for_steps", "counted", "counted_run"]

Loop = Callable[[tuple[int, ...]], Iterator[Tensor]]
Rest = Callable[[int], Tensor]


class Timesteps(Tensor):
    """Timesteps that know when a pipeline loops over them, and which steps they are.

    To everything else (`len`, indexing, arithmetic, comparison) it is the plain tensor that it is.
    """

    steps: tuple[int, ...]  # of the full run, one per value
    loop: Loop
    rest: Rest | None
    counter: StandIn | None

    @classmethod
    def of(
        cls,
        values: Tensor,
        steps: Sequence[int],
        loop: Loop,
        rest: Rest | None = None,
        counter: StandIn | None = None,
    ) -> Timesteps:
        """Timesteps of some steps.

        Args:
            values: the timesteps.
            steps: which steps they are.
            loop: what a `for` loop over them runs through, given the steps.
            rest: what is left from a place on, if not just the values there: this is how an image-to-image pipeline
                finds its start.
            counter: who knows at which step a loop is that need not take them all; they are then steps in a row.
        """
        timesteps = values.as_subclass(cls)
        timesteps.steps, timesteps.loop, timesteps.rest = tuple(steps), loop, rest
        timesteps.counter = counter
        return timesteps

    # Results of arithmetic are plain tensors: only slices are still something to loop over.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __getitem__(self, index: Any) -> Tensor:
        values = self.as_subclass(Tensor)
        if isinstance(index, int):
            return values[self._reached(index)]
        if not isinstance(index, slice) or index.step not in (None, 1):
            return values[index]
        if self.rest is not None and index.stop is None:
            return self.rest(index.indices(len(values))[0])
        return Timesteps.of(values[index], self.steps[index], self.loop, counter=self.counter)

    # An inpainting pipeline asks behind each step whether there is another (`i < len(timesteps) - 1`), and takes
    # `timesteps[i + 1]` for the level that its sample has now. It has passed the reused steps behind step i, too.

    @property
    def _passed(self) -> range:
        return range(0) if self.counter is None else self.counter.passed

    def _reached(self, index: int) -> int:
        passed = self._passed
        return passed.stop - self.steps[0] if passed and self.steps[0] + index in passed else index

    def __len__(self) -> int:
        passed = self._passed
        return len(self.steps) - (len(passed) if passed and passed.stop > self.steps[-1] else 0)

    def __iter__(self) -> Iterator[Tensor]:
        return self.loop(self.steps)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.as_subclass(Tensor).clone()


# The stand-in of the run that this thread is in, where the pipeline counts the steps of the full run (see `counting`).
counted_run: ContextVar[StandIn | None] = ContextVar("counted_run", default=None)


@contextmanager
def counted(scheduler: StandIn | None) -> Iterator[None]:
    """Within it, a pipeline counts the steps that `scheduler` says; with None it counts for itself."""
    token = counted_run.set(scheduler)
    try:
        yield
    finally:
        counted_run.reset(token)
        if scheduler is not None and counted_run.get() is not scheduler:  # a modular pipeline's blocks are nested
            scheduler.left()


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

    @property
    def passed(self) -> range:
        """The reused steps that the sample has passed together with the one at which the model was evaluated last."""
        return range(0)

    def left(self) -> None:
        """The pipeline's call is over, whether it came to its end or not."""

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


def ask_for_steps(asked: dict[str, Any], steps: int, default: int | None) -> bool:
    """Make a pipeline's request for its default number of steps one for `steps`; any other number is refused.

    Args:
        asked: the arguments of `set_timesteps`, which are changed.
        steps: K.
        default: the number that the pipeline asks for when its user names none.

    Returns:
        Whether the user gave sigmas or timesteps of his own. FLUX and others hand over even sigmas where the user gave
        none; nothing but the numbers tells them from his.
    """
    given = [asked[name] for name in ("sigmas", "timesteps") if asked.get(name) is not None]
    number = int(asked.get("num_inference_steps") or (len(given[0]) if given else 0))
    if number not in (steps, default):
        raise PipelineError(
            f"{steps} steps are expected, but the pipeline was asked for {number}. "
            f"Pass num_inference_steps={steps}; for {number} steps another policy is needed."
        )
    sigmas = asked.get("sigmas")
    even = sigmas is not None and np.allclose(np.asarray(sigmas), np.linspace(1, 1 / number, number), atol=1e-6)
    if number != steps:  # the user named no number, so the pipeline's default came
        if given and not even:
            raise PipelineError(
                f"the pipeline was given {number} sigmas or timesteps of its own, but {steps} steps are expected. "
                f"Leave them out and pass num_inference_steps={steps}."
            )
        if asked.get("num_inference_steps") is not None:
            asked["num_inference_steps"] = steps
        if even:
            asked["sigmas"] = np.linspace(1, 1 / steps, steps)
    return bool(given) and not even
