"""The seam: where a pipeline meets its scheduler, we stand and drive its model.

The pipeline runs in a thread of its own. Its scheduler's timesteps are a lazy sequence, and `step` hands
the model's output to us and waits to be told the next sample and noise level. So the pipeline's own code
does all that it always does (encoding, guidance, ControlNets, packing), once, and we may evaluate its model
wherever we like. What is searched is what is served.
"""

from __future__ import annotations

import contextlib
import copy
import queue
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from budcache.errors import PipelineError
from budcache.pipeline.branches import Branches
from budcache.pipeline.modular import run
from budcache.pipeline.residual import Memo, Trunk
from budcache.pipeline.schedulers import check_noise, clone, levels, retime, scaled
from budcache.pipeline.standin import StandIn, Timesteps

__all__ = ["Finish", "Line", "Reply", "Request", "SeamScheduler", "run_pipeline"]


class Abandoned(BaseException):
    """Ends a pipeline's run from within; nobody's error, so not an Exception that a pipeline might handle."""


@dataclass(frozen=True)
class Request:
    """Where to evaluate the model next; None is the pipeline's own first sample, and its level."""

    x: Tensor | None = None
    sigma: Tensor | None = None
    memo: Memo | None = None  # reuse this instead of computing


@dataclass(frozen=True)
class Finish:
    """Leave the loop with this sample and let the pipeline come to its end; without one, just stop."""

    x: Tensor | None = None


@dataclass(frozen=True)
class Reply:
    """The sample that the model was evaluated at, what came out, and what it left behind."""

    x: Tensor
    v: Tensor
    memo: Memo
    conditional: Tensor | None = None  # what the conditional branch alone gave, where it is known apart


class Line:
    """The line between the driver and the pipeline's thread: one asks, the other answers."""

    def __init__(self) -> None:
        self.requests: queue.SimpleQueue[Request | Finish] = queue.SimpleQueue()
        self.replies: queue.SimpleQueue[Reply | BaseException | tuple[Any]] = queue.SimpleQueue()

    def listen(self) -> Request | Finish:
        """In the pipeline's thread: wait for what is wanted next."""
        request = self.requests.get()
        if isinstance(request, Finish) and request.x is None:
            raise Abandoned
        return request


class SeamScheduler(StandIn):
    """Sits where the pipeline's scheduler was, and does what the line says."""

    def __init__(
        self, inner: Any, line: Line, trunk: Trunk | None, grad: bool, branches: Branches | None = None
    ) -> None:
        super().__init__(copy.deepcopy(inner))
        self.line, self.trunk, self.grad, self.branches = line, trunk, grad, branches
        self.first = True  # no step has been made yet
        self.request: Request | Finish | None = None
        self.begin = 0
        self.ready = False

    @property
    def timesteps(self) -> Tensor:
        """Timesteps whose loop takes its next one from the line."""
        timesteps: Tensor = self.inner.timesteps
        if not self.ready:
            return timesteps
        return Timesteps.of(timesteps, range(len(timesteps)), self._loop, counter=self)

    def _set_timesteps(self, *args: Any, **kwargs: Any) -> None:
        self.inner.set_timesteps(*args, **kwargs)
        self.ready = True
        if self.branches is not None:
            self.branches.begin()

    def _loop(self, steps: tuple[int, ...]) -> Iterator[Tensor]:
        self.begin = steps[0] if steps else len(self.inner.timesteps)
        self.request = self.line.listen()
        while isinstance(self.request, Request):
            self._record(self.request.x, self.request.sigma)
            if self.trunk is not None:
                self.trunk.begin(self.request.memo is None, self.request.memo)
            yield retime(self.inner, self._level(self.request))
        self._record(self.request.x)
        # Returning ends the pipeline's loop, and it goes on to its end as after any run.

    def _record(self, *inputs: Tensor | None) -> None:
        """Record for gradients only where somebody asks for them; the switch is this thread's own."""
        torch.set_grad_enabled(self.grad and any(value is not None and value.requires_grad for value in inputs))

    def _level(self, request: Request) -> Tensor:
        return levels(self.inner)[self.begin] if request.sigma is None else request.sigma

    def _step(self, model_output: Tensor, timestep: Any, sample: Tensor, *args: Any, **kwargs: Any) -> Any:
        asked = self.request
        if not isinstance(asked, Request):
            raise PipelineError(
                "this pipeline does not loop over scheduler.timesteps, so its model cannot be driven from outside. "
                "A policy searched on a similar pipeline can still be applied to it."
            )
        if asked.x is not None and not (sample is asked.x or torch.equal(sample, asked.x)):
            raise PipelineError(
                "this pipeline changes its latents between steps (inpainting?), so its model cannot be driven from "
                "outside. Search on the text-to-image pipeline and apply the policy here."
            )
        check_noise(self.inner, kwargs)
        memo = self.trunk.end() if self.trunk is not None else {}
        conditional = None if self.branches is None else self.branches.take(model_output, self.first)
        self.first = False
        # The first sample is kept, but some pipelines write the next one into the same memory.
        x = sample.clone() if asked.x is None else sample
        self.line.replies.put(Reply(x, model_output, memo, conditional))
        self.request = asked = self.line.listen()
        # Already here, not only in the loop: some pipelines write the sample that they get into a tensor of their own.
        self._record(asked.x, asked.sigma if isinstance(asked, Request) else None)
        return _Stepped(asked.x) if kwargs.get("return_dict", True) else (asked.x,)

    @property
    def place(self) -> int:
        """The step of the grid at which, or behind which, the model is being evaluated; see `StandIn`."""
        grid = levels(self.inner)[:-1]
        sigma = self._level(self.request) if isinstance(self.request, Request) else grid[self.begin]
        return max(int((grid >= sigma.detach().to(grid)).sum()) - 1, 0) - self.begin

    @property
    def length(self) -> int:
        """See `StandIn`."""
        return len(self.inner.timesteps) - self.begin

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        raise PipelineError(
            "this pipeline copies its scheduler (for sound?), so its model cannot be driven from outside. "
            "A policy made by hand or for a similar pipeline can still be applied to it."
        )

    def scale_model_input(self, sample: Tensor, timestep: Any = None) -> Tensor:
        """As the inner scheduler's, at the level that was asked for."""
        inner = self.inner
        if isinstance(self.request, Request) and hasattr(inner, "_step_index"):
            # The inner one looks its level up by index: give it one level, this one, to look up.
            inner = clone(inner)
            inner.sigmas, inner._step_index = self._level(self.request).detach().reshape(1), 0
        return scaled(inner, sample, timestep)


class _Stepped(dict[Any, Any]):
    """What `step` returns when a pipeline asks for a named output."""

    def __init__(self, x: Tensor | None) -> None:
        super().__init__({0: x})
        self.prev_sample = x


def run_pipeline(twin: Any, line: Line, call: dict[str, Any], autocast: dict[str, torch.dtype]) -> None:
    """The thread: one ordinary call of the pipeline."""
    try:
        with contextlib.ExitStack() as ambient:
            for device, dtype in autocast.items():
                ambient.enter_context(torch.autocast(device, dtype))
            ambient.enter_context(torch.no_grad())
            line.replies.put((run(twin, call),))
    except Abandoned:
        with contextlib.suppress(Exception):
            twin.maybe_free_model_hooks()  # what the pipeline would have done at its end
    except BaseException as error:
        line.replies.put(error)
