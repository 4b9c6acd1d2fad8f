"""The seam: any stock pipeline as a `Model`, through its scheduler alone.

The pipeline runs in a thread of its own. Its scheduler's timesteps are a lazy sequence, and `step` hands
the model's output to us and waits to be told the next sample and noise level. So the pipeline's own code
does all that it always does (encoding, guidance, ControlNets, packing), once, and we may evaluate its model
wherever we like. What is searched is what is served.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import queue
import threading
import types
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from budcache.errors import PipelineError
from budcache.pipeline.residual import Memo, Trunk, attach, detach
from budcache.pipeline.samples import merge
from budcache.pipeline.scheduler import BudcacheScheduler
from budcache.pipeline.standin import StandIn, Timesteps, check_scheduler, clone, install, levels, retime
from budcache.policy import Reuse
from budcache.solvers import Solver

__all__ = ["PipelineModel", "decode"]


class _Abandoned(BaseException):
    """Ends a pipeline's run from within; nobody's error, so not an Exception that a pipeline might handle."""


@dataclass(frozen=True)
class _Request:
    """Where to evaluate the model next; None is the pipeline's own first sample, and its level."""

    x: Tensor | None = None
    sigma: Tensor | None = None
    memo: Memo | None = None  # reuse this instead of computing


@dataclass(frozen=True)
class _Finish:
    """Leave the loop with this sample and let the pipeline come to its end; without one, just stop."""

    x: Tensor | None = None


@dataclass(frozen=True)
class _Reply:
    x: Tensor
    v: Tensor
    memo: Memo


class _Line:
    """The line between the driver and the pipeline's thread: one asks, the other answers."""

    def __init__(self) -> None:
        self.requests: queue.SimpleQueue[_Request | _Finish] = queue.SimpleQueue()
        self.replies: queue.SimpleQueue[_Reply | BaseException | tuple[Any]] = queue.SimpleQueue()

    def listen(self) -> _Request | _Finish:
        """In the pipeline's thread: wait for what is wanted next."""
        request = self.requests.get()
        if isinstance(request, _Finish) and request.x is None:
            raise _Abandoned
        return request


class _SeamScheduler(StandIn):
    """Sits where the pipeline's scheduler was, and does what the line says."""

    def __init__(self, inner: Any, line: _Line, trunk: Trunk | None, grad: bool) -> None:
        super().__init__(copy.deepcopy(inner))
        self.line, self.trunk, self.grad = line, trunk, grad
        self.request: _Request | _Finish | None = None
        self.begin = 0
        self.ready = False

    @property
    def timesteps(self) -> Tensor:
        timesteps: Tensor = self.inner.timesteps
        return Timesteps.of(timesteps, range(len(timesteps)), self._loop) if self.ready else timesteps

    def _set_timesteps(self, *args: Any, **kwargs: Any) -> None:
        self.inner.set_timesteps(*args, **kwargs)
        self.ready = True

    def _loop(self, steps: tuple[int, ...]) -> Iterator[Tensor]:
        self.begin = steps[0] if steps else len(self.inner.timesteps)
        if self.grad:
            torch.set_grad_enabled(True)  # this thread's own; the encoders before it ran without
        self.request = self.line.listen()
        while isinstance(self.request, _Request):
            if self.trunk is not None:
                self.trunk.begin(self.request.memo is None, self.request.memo)
            yield retime(self.inner, self._level(self.request))
        # Returning ends the pipeline's loop, and it goes on to its end as after any run.

    def _level(self, request: _Request) -> Tensor:
        return levels(self.inner)[self.begin] if request.sigma is None else request.sigma

    def _step(self, model_output: Tensor, timestep: Any, sample: Tensor, *args: Any, **kwargs: Any) -> Any:
        asked = self.request
        if not isinstance(asked, _Request):
            raise PipelineError(
                "this pipeline does not loop over scheduler.timesteps, so its model cannot be driven from outside. "
                "A policy searched on a similar pipeline can still be applied to it."
            )
        if asked.x is not None and not (sample is asked.x or torch.equal(sample, asked.x)):
            raise PipelineError(
                "this pipeline changes its latents between steps (inpainting?), so its model cannot be driven from "
                "outside. Search on the text-to-image pipeline and apply the policy here."
            )
        memo = self.trunk.end() if self.trunk is not None else {}
        self.line.replies.put(_Reply(sample, model_output, memo))
        self.request = self.line.listen()
        return _Stepped(self.request.x) if kwargs.get("return_dict", True) else (self.request.x,)

    @property
    def place(self) -> int:
        """The step of the grid at which the model is being evaluated, or behind which."""
        grid = levels(self.inner)[:-1]
        sigma = self._level(self.request) if isinstance(self.request, _Request) else grid[self.begin]
        return max(int((grid >= sigma.detach().to(grid)).sum()) - 1, 0)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        raise PipelineError(
            "this pipeline copies its scheduler (for sound?), so its model cannot be driven from outside. "
            "A policy made by hand or for a similar pipeline can still be applied to it."
        )

    def scale_model_input(self, sample: Tensor, timestep: Any = None) -> Tensor:
        inner = self.inner
        if isinstance(self.request, _Request) and hasattr(inner, "_step_index"):
            # The inner one looks its level up by index: give it one level, this one, to look up.
            inner = clone(inner)
            inner.sigmas, inner._step_index = self._level(self.request).detach().reshape(1), 0
        scaled: Tensor = inner.scale_model_input(sample, timestep)
        return scaled


class _Stepped(dict[Any, Any]):
    """What `step` returns when a pipeline asks for a named output."""

    def __init__(self, x: Tensor | None) -> None:
        super().__init__({0: x})
        self.prev_sample = x


class PipelineModel:
    """A stock pipeline, held open at its denoising loop, as a `Model`.

    Args:
        pipe: any diffusers pipeline; it is left exactly as it is.
        steps: K of the full run.
        reuse: "output" or "residual"; what a memo is.
        grad: make velocities differentiable in x and sigma.
        **call: keyword arguments of the pipeline's `__call__`: prompts (a list makes a batch), embeddings,
            images, sizes, guidance, generators. `output_type` says what `finish` returns.

    Attributes:
        noise: the sample at which the pipeline's own run begins, shape [N, ...], in its own latent layout.
        sigmas: the effective noise levels of that run, shape [K + 1].
        begin: the step at which it begins; not 0 only for image-to-image with `strength` below 1.
        calls: how often the model was really evaluated.

    Use it in a `with` block, or close it: until then a thread waits inside the pipeline.
    """

    def __init__(self, pipe: Any, *, steps: int, reuse: Reuse = "output", grad: bool = False, **call: Any) -> None:
        if isinstance(pipe.scheduler, BudcacheScheduler):
            raise PipelineError("this pipeline carries a policy. Call remove() on its handle first.")
        check_scheduler(pipe.scheduler)
        self.reuse_mode, self.calls = reuse, 0
        self._line, self._trunk = _Line(), Trunk() if reuse == "residual" else None
        if self._trunk is not None:
            attach(pipe, self._trunk)
        # A shallow copy shares every network with the pipeline but has its own scheduler, progress bar and flags.
        twin = copy.copy(pipe)
        self._scheduler = twin.scheduler = _SeamScheduler(pipe.scheduler, self._line, self._trunk, grad)
        twin.set_progress_bar_config(disable=True)
        call = {"output_type": "latent", **call, "num_inference_steps": steps}
        self._thread = threading.Thread(
            target=_run,
            args=(twin, self._line, call, _autocast()),
            name="budcache-pipeline",
            daemon=True,  # an interpreter that exits does not wait for it
        )
        # The thread knows the line but not this object, so that dropping this object ends the thread.
        self._shut = weakref.finalize(self, _shut, self._line, pipe, self._trunk)
        self._thread.start()
        self._first = self._ask(_Request())
        self.noise, self.begin = self._first.x, self._scheduler.begin
        self.sigmas = levels(self._scheduler.inner)
        if len(self.sigmas) != steps + 1:
            self.close()
            raise PipelineError(
                f"{type(pipe.scheduler).__name__} makes {len(self.sigmas) - 1} timesteps out of {steps} steps, so "
                "masks do not fit it. Use a scheduler that makes one a step."
            )

    def compute(self, x: Tensor, sigma: Tensor) -> tuple[Tensor, Any]:
        """Evaluate the pipeline's model, guidance included; see `Model`."""
        # The first sample at the first level was evaluated when the pipeline was opened.
        reply = self._first if self._is_first(x, sigma) else self._ask(_Request(x.to(self.noise.dtype), sigma))
        return reply.v, reply.v if self._trunk is None else reply.memo

    def reuse(self, x: Tensor, sigma: Tensor, memo: Any) -> Tensor:
        """The velocity from a memo: the output itself, or embedder and head around the trunk's residual."""
        if self._trunk is None:
            output: Tensor = memo
            return output
        return self._ask(_Request(x.to(self.noise.dtype), sigma, memo)).v

    def solver(self, sigmas: Tensor | None = None) -> Solver:
        """The pipeline's own scheduler as a pure function, on its own noise levels or on others."""
        start = copy.deepcopy(self._scheduler.inner)
        if sigmas is not None:
            install(start, tuple(sigmas.tolist()))
        if hasattr(start, "set_begin_index"):
            start.set_begin_index(self.begin)

        def solve(x: Tensor, v: Tensor, here: Tensor, there: Tensor, past: Any) -> tuple[Tensor, Any]:
            k, scheduler = (self.begin, start) if past is None else past
            scheduler = clone(scheduler)
            if hasattr(scheduler, "is_scale_input_called"):
                scheduler.is_scale_input_called = True  # it was, by the pipeline, on the seam's own scheduler
            x = scheduler.step(v, scheduler.timesteps[k], x, return_dict=False)[0]
            return x, (k + 1, scheduler)

        return solve

    def finish(self, x: Tensor) -> Any:
        """Let the pipeline end with `x` as its final latents; returns what its `__call__` returns."""
        self._require_open()
        self._line.requests.put(_Finish(x.to(self.noise.dtype)))
        result = self._answer()
        self.close()
        assert isinstance(result, tuple)
        return result[0]

    def close(self) -> None:
        """End the pipeline's run and its thread."""
        self._shut()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> PipelineModel:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _is_first(self, x: Tensor, sigma: Tensor) -> bool:
        if sigma.requires_grad or x.requires_grad or float(sigma) != float(self.sigmas[self.begin]):
            return False
        return x is self.noise or (x.shape == self.noise.shape and torch.equal(x.to(self.noise), self.noise))

    def _ask(self, request: _Request) -> _Reply:
        self._require_open()
        self._line.requests.put(request)
        reply = self._answer()
        if not isinstance(reply, _Reply):
            self.close()
            raise PipelineError("the pipeline ended without a single step. Check steps and strength.")
        if request.memo is None:
            self.calls += 1
        return reply

    def _answer(self) -> _Reply | tuple[Any]:
        try:
            reply = self._line.replies.get()
        except BaseException:  # Ctrl-C: the thread stops after the call that it is in, without being waited for
            self._shut()
            raise
        if isinstance(reply, BaseException):
            self.close()
            raise reply
        return reply

    def _require_open(self) -> None:
        if not self._shut.alive:
            raise PipelineError("this model is closed. Open the pipeline again.")


def _run(twin: Any, line: _Line, call: dict[str, Any], autocast: dict[str, torch.dtype]) -> None:
    """The thread: one ordinary call of the pipeline."""
    try:
        with contextlib.ExitStack() as ambient:
            for device, dtype in autocast.items():
                ambient.enter_context(torch.autocast(device, dtype))
            ambient.enter_context(torch.no_grad())
            line.replies.put((_counting_steps(type(twin).__call__, twin.scheduler)(twin, **call),))
    except _Abandoned:
        with contextlib.suppress(Exception):
            twin.maybe_free_model_hooks()  # what the pipeline would have done at its end
    except BaseException as error:
        line.replies.put(error)


def _counting_steps(function: Any, scheduler: _SeamScheduler) -> Any:
    """A pipeline's `__call__` in which `for i, t in enumerate(timesteps)` gives the step that t belongs to.

    Pipelines look things up by that i (sigmas, guidance schedules), and we evaluate their model in any order and more
    often than they have steps. So the function runs with an `enumerate` of its own, in a copy of its module's names; it
    is taken undecorated, too, so that its loop may turn gradients on for itself.
    """
    function = inspect.unwrap(function)

    def enumerate_steps(items: Any, start: int = 0) -> Iterator[tuple[int, Any]]:
        if isinstance(getattr(items, "iterable", items), Timesteps):  # a progress bar holds them in `iterable`
            for item in items:
                yield scheduler.place - scheduler.begin + start, item
        else:
            yield from enumerate(items, start)

    names = {**function.__globals__, "enumerate": enumerate_steps}
    twin = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    twin.__kwdefaults__ = function.__kwdefaults__
    return twin


def _shut(line: _Line, pipe: Any, trunk: Trunk | None) -> None:
    line.requests.put(_Finish())
    if trunk is not None:
        detach(pipe, trunk)


def _autocast() -> dict[str, torch.dtype]:
    """The caller's autocast, which a thread does not inherit."""
    return {device: torch.get_autocast_dtype(device) for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)}


def decode(pipe: Any, x: Tensor, samples: Sequence[Mapping[str, Any]], *, steps: int) -> list[Any]:
    """Final latents as the pipeline's own pictures: arrays of values from 0 to 1, one per sample.

    The pipeline is opened at its loop and let go with `x` as its latents, which costs one evaluation of its model.
    """
    call = {**(merge(samples) if len(samples) > 1 else samples[0]), "output_type": "np"}
    with PipelineModel(pipe, steps=steps, **call) as model:
        output = model.finish(x)
    return list(output[0])
