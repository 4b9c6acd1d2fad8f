"""The clock: what a pipeline's call takes before, in and after its denoising loop, and the memory that it needs."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

from budcache.errors import PipelineError
from budcache.pipeline.parts import denoisers, device_of

__all__ = ["Clock", "Lap"]

RESET_PEAK = Path("/proc/self/clear_refs")
STATUS = Path("/proc/self/status")


class Lap(NamedTuple):
    """One call of a pipeline, in seconds.

    Attributes:
        before: text encoders, and whatever else comes before the first call of the network.
        loop: from there to the end of the last call; with `to_the_end`, to the end of the pipeline's call.
        after: the rest, which is the decoder's.
        memory: the most that was in use meanwhile, in bytes: of the GPU, else of the process; None where nobody tells.
    """

    before: float
    loop: float
    after: float
    memory: int | None


class Clock:
    """Times calls of a pipeline. On a GPU by events, after everything before has finished.

    Args:
        pipe: the pipeline.
    """

    def __init__(self, pipe: Any) -> None:
        import torch

        self.pipe, self.torch = pipe, torch
        self.device = device_of(pipe)
        self.cuda = self.device.type == "cuda"

    def time(self, run: Callable[[], Any], to_the_end: bool = False) -> tuple[Any, Lap]:
        """Run something that calls the pipeline once.

        Args:
            run: it.
            to_the_end: whether all that comes after the last call of the network belongs to the loop: for runs that
                end with latents, of which the solver's last steps are a part.
        """
        marks: dict[str, Any] = {}
        self._forget_peak()
        begin = self._now()
        with ExitStack() as undo:
            for module in denoisers(self.pipe).values():
                undo.callback(module.register_forward_pre_hook(lambda *_: self._first(marks)).remove)
                undo.callback(module.register_forward_hook(lambda *_: self._last(marks)).remove)
            found = run()
        end = self._now()
        if self.cuda:
            self.torch.cuda.synchronize(self.device)
        if to_the_end and "first" not in marks:  # a module that was compiled in place does not hear hooks
            raise PipelineError(
                "the calls of this pipeline's network cannot be heard, so its loop cannot be told from the rest. "
                "Compile it with pipe.transformer = torch.compile(pipe.transformer) instead of .compile()."
            )
        first, last = marks.get("first", begin), marks.get("last", end)
        stop = end if to_the_end else last
        lap = Lap(self._between(begin, first), self._between(first, stop), self._between(stop, end), self._peak())
        return found, lap

    def _first(self, marks: dict[str, Any]) -> None:
        if "first" not in marks:
            marks["first"] = self._now()

    def _last(self, marks: dict[str, Any]) -> None:
        marks["last"] = self._now(wait=False)

    def _now(self, wait: bool = True) -> Any:
        if not self.cuda:
            return time.perf_counter()
        if wait:
            self.torch.cuda.synchronize(self.device)
        event: Any = self.torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self.torch.cuda.current_stream(self.device))
        return event

    def _between(self, begin: Any, end: Any) -> float:
        return float(begin.elapsed_time(end)) / 1000 if self.cuda else float(end - begin)

    def _forget_peak(self) -> None:
        if self.cuda:
            self.torch.cuda.reset_peak_memory_stats(self.device)
            return
        with suppress(OSError):  # not Linux, or not allowed: then the peak is that of the process so far
            RESET_PEAK.write_text("5")

    def _peak(self) -> int | None:
        if self.cuda:
            return int(self.torch.cuda.max_memory_allocated(self.device))
        try:
            lines = STATUS.read_text().splitlines()
        except OSError:
            return None
        return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), None)
