"""Any stock pipeline as a `Model`: driven from outside, through the seam."""

from __future__ import annotations

import atexit
import copy
import threading
import weakref
from typing import Any

import torch
from torch import Tensor

from budcache.errors import PipelineError
from budcache.numerics.memory import park, unpark
from budcache.numerics.solvers import Solver
from budcache.pipeline.branches import Branches
from budcache.pipeline.decoding import Networks
from budcache.pipeline.following import twin_of
from budcache.pipeline.parts import denoisers
from budcache.pipeline.recording import check_not_recorded
from budcache.pipeline.residual import Trunk, attach, detach
from budcache.pipeline.scheduler import BudcacheScheduler
from budcache.pipeline.schedulers import as_solver, check_scheduler, install, levels
from budcache.pipeline.seam import Finish, Line, Reply, Request, SeamScheduler, run_pipeline
from budcache.policy import Reuse
from budcache.samples.samples import fresh

__all__ = ["PipelineModel"]

_open: weakref.WeakSet[PipelineModel] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """An interpreter that ends under a thread inside torch would abort, so the threads end first."""
    for model in list(_open):
        model.close()


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
        dtype: the number format of the network; some pipelines keep their latents in a finer one.
        conditional: what the conditional branch alone gave when the model was last computed, where guidance runs two
            branches that can be told apart (F12); else None.

    Use it in a `with` block, or close it: until then a thread waits inside the pipeline.
    """

    def __init__(self, pipe: Any, *, steps: int, reuse: Reuse = "output", grad: bool = False, **call: Any) -> None:
        if isinstance(pipe.scheduler, BudcacheScheduler):
            raise PipelineError("this pipeline carries a policy. Call remove() on its handle first.")
        check_not_recorded(pipe)
        check_scheduler(pipe.scheduler)
        self.reuse_mode, self.calls = reuse, 0
        self._line, self._trunk = Line(), Trunk() if reuse == "residual" else None
        twin = twin_of(pipe)
        branches = Branches(pipe) if reuse == "output" else None
        self._scheduler = twin.scheduler = SeamScheduler(pipe.scheduler, self._line, self._trunk, grad, branches)
        call = {"output_type": "latent", **call, "num_inference_steps": steps}
        self._again, self._networks = (twin, fresh(call)), Networks(twin)
        self._networks.listen(True)
        self._thread = threading.Thread(
            target=run_pipeline,
            args=(twin, self._line, call, _autocast()),
            name="budcache-pipeline",
            daemon=True,  # an interpreter that exits does not wait for it
        )
        if self._trunk is not None:
            attach(pipe, self._trunk)  # last, since whatever is refused before would leave it in the transformer
        # The thread knows the line but not this object, so that dropping this object ends the thread.
        self._shut = weakref.finalize(self, _shut, self._line, pipe, self._trunk, branches)
        _open.add(self)
        self._thread.start()
        first = self._ask(Request())
        self._networks.listen(False)
        self.noise, self.begin, self.conditional = first.x, self._scheduler.begin, first.conditional
        weights = [p.dtype for part in denoisers(pipe).values() for p in part.parameters() if p.is_floating_point()]
        self.dtype = weights[0] if weights else self.noise.dtype
        self._first = park(first)
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
        first = self._is_first(x, sigma)
        reply = unpark(self._first) if first else self._ask(Request(x.to(self.noise.dtype), sigma))
        self.conditional = reply.conditional
        return reply.v, reply.v if self._trunk is None else reply.memo

    def reuse(self, x: Tensor, sigma: Tensor, memo: Any) -> Tensor:
        """The velocity from a memo: the output itself, or embedder and head around the trunk's residual."""
        if self._trunk is None:
            output: Tensor = memo
            return output
        return self._ask(Request(x.to(self.noise.dtype), sigma, memo)).v

    def solver(self, sigmas: Tensor | None = None) -> Solver:
        """The pipeline's own scheduler as a pure function, on its own noise levels or on others."""
        start = copy.deepcopy(self._scheduler.inner)
        if sigmas is not None:
            install(start, sigmas)
        return as_solver(start)

    def finish(self, x: Tensor) -> Any:
        """Let the pipeline end with `x` as its final latents; returns what its `__call__` returns.

        First in it are the latents or pictures. A modular pipeline's state is made a tuple of these alone.
        """
        self._require_open()
        self._line.requests.put(Finish(x.to(self.noise.dtype)))
        result = self._answer()
        self.close()
        assert isinstance(result, tuple)
        return result[0]

    def decode(self, x: Tensor) -> list[Any]:
        """Final latents as the pipeline's own pictures: arrays of values from 0 to 1, one per sample.

        No network is evaluated but the decoder, and the run stays open (see `decoding`).
        """
        return list(self._decoded(x, "np"))

    def decoded(self, x: Tensor) -> Tensor:
        """The same as one tensor, channels last, with a gradient where the latents have one."""
        pictures: Tensor = torch.stack(list(self._decoded(x, "pt")))
        return pictures.movedim(-3, -1)

    def _decoded(self, x: Tensor, output_type: str) -> Any:
        twin, call = self._again
        twin, line = copy.copy(twin), Line()
        twin.scheduler = SeamScheduler(self._scheduler.inner, line, None, grad=True)
        line.requests.put(Request())
        line.requests.put(Finish(x.to(self.noise)))
        with self._networks.answering():
            run_pipeline(twin, line, {**fresh(call), "output_type": output_type}, {})
        while not isinstance(reply := line.replies.get(), tuple):  # behind what the first step said
            if isinstance(reply, BaseException):
                raise reply
        return reply[0][0]

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

    def _ask(self, request: Request) -> Reply:
        self._require_open()
        self._line.requests.put(request)
        reply = self._answer()
        if not isinstance(reply, Reply):
            self.close()
            raise PipelineError("the pipeline ended without a single step. Check steps and strength.")
        if request.memo is None:
            self.calls += 1
        return reply

    def _answer(self) -> Reply | tuple[Any]:
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
        # A fork copies this object, but only the thread that forks: nobody would ever answer.
        gone = not self._thread.is_alive() and self._line.replies.empty()  # one that failed has left its error
        if gone or self._thread is threading.current_thread():
            raise PipelineError(
                "the thread that runs this pipeline is not there to answer: it belongs to the process that this one "
                "was forked from, or is the one that asks. Open the pipeline again here."
            )


def _shut(line: Line, pipe: Any, trunk: Trunk | None, branches: Branches | None) -> None:
    line.requests.put(Finish())
    if branches is not None:
        branches.remove()
    if trunk is not None:
        detach(pipe, trunk)


def _autocast() -> dict[str, torch.dtype]:
    """The caller's autocast, which a thread does not inherit."""
    return {device: torch.get_autocast_dtype(device) for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)}
