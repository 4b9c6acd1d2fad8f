"""A pipeline's run, seen step by step.

`followed` puts a scheduler in the place of the pipeline's own. It shows the pipeline all K steps, leaves the arithmetic
to the scheduler that was there and tells a `Listener` where the run is. Together with a `trunk.Conductor`, which is for
deciding what a transformer does within a step, this is all that a caching method needs to know of a pipeline.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from budcache.errors import PipelineError
from budcache.pipeline.arguments import arguments
from budcache.pipeline.schedulers import check_scheduler, install
from budcache.pipeline.standin import StandIn, Timesteps, ask_for_steps

__all__ = ["Listener", "check_free", "followed"]


class Listener(Protocol):
    """Who is told where a run is.

    The order is `run_begins`, then `step_begins` and `step_ends` for each step, then `run_ends`. A run that is broken
    off, by an exception or by its user, lacks some of these, but never the last.
    """

    def run_begins(self, sigmas: Tensor | None) -> Tensor | None:
        """The run's noise levels are known, shape [K + 1], or None where the scheduler keeps none.

        Returns other levels to run on, or None to leave them as they are.
        """

    def step_begins(self, step: int) -> None:
        """The model is about to be called at a step, from 0 to K - 1."""

    def step_ends(self, step: int, last: bool) -> None:
        """It was called, and the sample is about to be advanced; `last` if no step follows."""

    def run_ends(self) -> None:
        """The run is over, or was left: let go of its tensors. It may be said more often than there are runs."""


@contextmanager
def followed(pipe: Any, steps: int, listener: Listener) -> Iterator[None]:
    """Tell a listener of all runs of a pipeline for the length of a `with` block.

    Args:
        pipe: a pipeline that loops over its scheduler's timesteps, as all of diffusers do.
        steps: K. The pipeline is to be called with `num_inference_steps` left out or equal to it.
        listener: who is told.
    """
    check_free(pipe)
    original = pipe.scheduler
    pipe.scheduler = StepScheduler(original, steps, listener, _default_steps(pipe))
    try:
        yield
    finally:
        pipe.scheduler = original


def check_free(pipe: Any) -> None:
    """Refuse a pipeline whose scheduler has been replaced already."""
    if isinstance(pipe.scheduler, StandIn):
        raise PipelineError("this pipeline carries a policy or a caching method already. Take that off first.")


def _default_steps(pipe: Any) -> int | None:
    """The number of steps that a pipeline asks for when its user names none."""
    known = arguments(pipe)
    if "strength" in known:
        return None  # an image-to-image pipeline computes its start from the number, so it has to be named
    default = known.get("num_inference_steps")
    return default if isinstance(default, int) else None


class StepScheduler(StandIn):
    """Shows a pipeline all K steps of its own scheduler and tells a listener where it is."""

    def __init__(self, inner: Any, steps: int, listener: Listener, default_steps: int | None) -> None:
        check_scheduler(inner)
        super().__init__(copy.deepcopy(inner))
        self.steps, self.listener, self.default_steps = steps, listener, default_steps
        self._run: object | None = None  # the loop that is running
        self._step_now: int | None = None
        self._last = 0

    @property
    def timesteps(self) -> Tensor:
        """The inner scheduler's, whose loop tells where it is."""
        timesteps: Tensor = self.inner.timesteps
        if len(timesteps) != self.steps:
            return timesteps  # before `set_timesteps`
        return Timesteps.of(timesteps, range(self.steps), self._loop)

    def _set_timesteps(self, *args: Any, **kwargs: Any) -> None:
        self._leave()  # an exception may have left the run before, and its frames may still be alive
        call = inspect.signature(self.inner.set_timesteps).bind(*args, **kwargs)
        ask_for_steps(call.arguments, self.steps, self.default_steps)
        self.inner.set_timesteps(*call.args, **call.kwargs)
        if len(self.inner.timesteps) != self.steps:
            raise PipelineError(
                f"{type(self.inner).__name__} makes {len(self.inner.timesteps)} timesteps out of {self.steps} steps. "
                "Use a scheduler that makes one a step."
            )
        own = getattr(self.inner, "sigmas", None)
        sigmas = (
            own.detach().to("cpu", torch.float32) if isinstance(own, Tensor) and len(own) == self.steps + 1 else None
        )
        other = self.listener.run_begins(sigmas)
        if other is not None and sigmas is not None and not torch.equal(other, sigmas):
            install(self.inner, tuple(other.tolist()))

    def _loop(self, steps: tuple[int, ...]) -> Iterator[Tensor]:
        """The pipeline's `for t in timesteps`; an image-to-image pipeline takes the last of them only."""
        if not steps:
            raise PipelineError("the pipeline has no step left to run. Raise its strength.")
        run = self._run = object()
        self._last = steps[-1]
        try:
            for step in steps:
                self._step_now = step
                self.listener.step_begins(step)
                yield self.inner.timesteps[step]
        finally:  # also when an exception left the loop, which may drop this iterator only after the next run has begun
            if self._run is run:
                self._leave()

    def _step(self, model_output: Tensor, timestep: Any, sample: Tensor, *args: Any, **kwargs: Any) -> Any:
        if self._step_now is None:
            raise PipelineError(
                "this pipeline does not loop over scheduler.timesteps, so its steps cannot be followed. "
                "Compare on a pipeline that does, such as the text-to-image one of its family."
            )
        self.listener.step_ends(self._step_now, last=self._step_now == self._last)
        return self.inner.step(model_output, timestep, sample, *args, **kwargs)

    def _leave(self) -> None:
        self._run = self._step_now = None
        self.listener.run_ends()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        raise PipelineError(
            "this pipeline is under a caching method, which a copy would not be. Leave its `with` block first."
        )
