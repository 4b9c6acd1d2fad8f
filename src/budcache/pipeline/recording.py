"""Recording: ordinary full runs of a user's own program, kept as inner products (F10).

The pipeline's own scheduler goes on doing its work. A stand-in passes everything through to it and copies what goes by:
the latents and the model's outputs. At the end of a run they become a small matrix, and nothing else is kept.
"""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from budcache.errors import BudcacheWarning, PipelineError, RecordError
from budcache.pipeline.adapters import at_work
from budcache.pipeline.experts import switch_of
from budcache.pipeline.origin import describe, guidance_of
from budcache.pipeline.parts import check_pipeline
from budcache.pipeline.scheduler import BudcacheScheduler
from budcache.pipeline.schedulers import check_noise, check_scheduler, levels
from budcache.pipeline.standin import StandIn
from budcache.policy import Origin
from budcache.records.gram import Grams, gram_of
from budcache.records.record import MAX_STEPS, Record, Runs
from budcache.wording import several

__all__ = ["check_not_recorded", "recording"]


@contextmanager
def recording(pipe: Any, record: Record | None = None) -> Iterator[Record]:
    """Record the full runs that a pipeline makes within a `with` block; not a bit of them changes.

    Args:
        pipe: any diffusers pipeline; call it as always, with any prompts, batches and sizes.
        record: one to add to; None begins a new one.

    Runs of other steps or settings are kept apart. A run that fails or is interrupted leaves the record as it was.
    """
    check_pipeline(pipe)
    original = pipe.scheduler
    if isinstance(original, BudcacheScheduler):
        raise PipelineError("this pipeline carries a policy, and what is recorded are full runs. Call remove() first.")
    check_not_recorded(pipe)
    if record is not None and not isinstance(record, Record):
        raise RecordError(f"a record to add to is wanted, got {type(record).__name__}. Load it with Record.load(path).")
    check_scheduler(original)
    found = Record() if record is None else record
    recorder = _Recorder(original, pipe, found)
    pipe.scheduler = recorder
    try:
        yield found
        recorder.tell_of_unfinished()
    finally:
        if pipe.scheduler is recorder:  # one that the user set meanwhile is not ours to replace
            pipe.scheduler = original


def check_not_recorded(pipe: Any) -> None:
    """Refuse a pipeline that is being recorded: what is recorded are its own full runs, and nothing else."""
    if isinstance(pipe.scheduler, _Recorder):
        raise PipelineError("this pipeline is being recorded, full run by full run. Do this after the `with` block.")


class _Recorder(StandIn):
    """Lets the pipeline's own scheduler work, and copies what goes by."""

    def __init__(self, inner: Any, pipe: Any, record: Record) -> None:
        super().__init__(inner)
        self.pipe, self.record = pipe, record
        self.latents: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.asked: dict[str, Any] = {}  # of the last step
        self.unfinished = 0
        self.known_origin: Origin | None = None
        self.known_adapters: tuple[Any, ...] = ()
        self.thread = 0  # that began the run
        self.lock = threading.RLock()

    # Some pipelines copy their scheduler; what belongs to the copy is not recorded.
    def __copy__(self) -> Any:
        return copy.copy(self.inner)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.inner, memo)

    def _set_timesteps(self, *args: Any, **kwargs: Any) -> None:
        with self.lock:
            self._begin_anew()
            self.thread = threading.get_ident()
            self.inner.set_timesteps(*args, **kwargs)

    def _step(self, model_output: Tensor, timestep: Any, sample: Tensor, *args: Any, **kwargs: Any) -> Any:
        with self.lock:
            self._require_own_thread()
            self.latents.append(_copied(sample))
            self.outputs.append(_copied(model_output))
            self.asked = kwargs
            result = self.inner.step(model_output, timestep, sample, *args, **kwargs)
            if len(self.outputs) == len(self.inner.timesteps):
                self._finish(result[0])
            return result

    def _require_own_thread(self) -> None:
        """Steps of two runs would mix into one that never was, and its matrix would look like any other."""
        if self.thread != threading.get_ident():
            raise PipelineError(
                "two threads run this pipeline at once, and only one of them can be recorded. Give each thread a "
                "pipeline of its own, type(pipe)(**pipe.components), and a recording of its own; records add up with +."
            )

    def tell_of_unfinished(self) -> None:
        """Runs that made some steps and never came to their last one are not in the record: say so."""
        self._begin_anew()
        if self.unfinished:
            warnings.warn(
                f"{several(self.unfinished, 'run')} ended before the last step, or began behind the first, and "
                f"{'is' if self.unfinished == 1 else 'are'} not in the record. Only whole runs can be recorded.",
                BudcacheWarning,
                stacklevel=4,
            )

    def _begin_anew(self) -> None:
        self.unfinished += bool(self.outputs)
        self.latents, self.outputs = [], []

    def _finish(self, final: Tensor) -> None:
        """Put a run that has come to its end into the record; trouble here is not the run's."""
        latents, outputs = [*self.latents, _copied(final)], self.outputs
        self.latents, self.outputs = [], []
        try:
            check_noise(self.inner, self.asked)
            if len(outputs) > MAX_STEPS:
                raise PipelineError(f"a run of {len(outputs)} steps is too long to record; {MAX_STEPS} is the most.")
            if latents[0].shape != outputs[0].shape:
                raise PipelineError("the model's outputs have another shape than its latents.")
            own = levels(self.inner).double().numpy()
            self.record.add(Runs(self._origin(len(outputs)), Grams(own, gram_of(latents, outputs))))
        except Exception as error:
            warnings.warn(f"a run was not recorded: {error}", BudcacheWarning, stacklevel=4)

    def _origin(self, steps: int) -> Origin:
        """The pipeline and its settings; to look at the network's weights is worth it once."""
        here = at_work(self.pipe)
        if self.known_origin is None or self.known_adapters != here:
            # What a call's own arguments may change and a scheduler does not see is left open.
            unseen = dict.fromkeys(("height", "width", "frames", "true_guidance"))
            self.known_origin, self.known_adapters = describe(self.pipe, **unseen), here
        found, guidance = {"switch": switch_of(self.pipe, steps)}, guidance_of(self.pipe)
        return self.known_origin.model_copy(update=found if guidance is None else {**found, "guidance": guidance})


def _copied(value: Tensor) -> Tensor:
    return value.detach().to("cpu", copy=True)
