"""A job on a pipeline: samples held open with their teachers, and the quality of what was found measured on others."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from budcache.errors import SearchError
from budcache.policy import Quality, Reuse

if TYPE_CHECKING:
    from torch import Tensor

    from budcache.calibration.calibration import Calibration, Objective

__all__ = ["Job", "Judge", "digest", "memory_said", "seeded", "settings_of", "split", "take_samples"]


@dataclass(frozen=True)
class Job:
    """What all parts of one search or fit have in common."""

    pipe: Any
    steps: int
    reuse: Reuse
    batch: int
    objective: Literal["latent", "pixel"] | Objective
    state_memory: int
    teacher_steps: int | None = None  # None: the full run is the teacher

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise SearchError(f"batch must be at least 1, got {self.batch}.")
        check_teacher(self.steps, self.teacher_steps)

    @contextmanager
    def calibration(
        self, samples: Sequence[Mapping[str, Any]], seed: int, taught: Callable[[int], None] | None = None
    ) -> Iterator[Calibration]:
        """Hold the pipeline open on samples, teachers run; sample i has seed + i."""
        from budcache.calibration.calibration import Calibration, latent_mse
        from budcache.pipeline import PipelineModel, merge

        given = [seeded(sample, seed + i) for i, sample in enumerate(samples)]
        with ExitStack() as stack, memory_said():
            runs = []
            for begin in range(0, len(given), self.batch):
                call = merge(given[begin : begin + self.batch]) if self.batch > 1 else given[begin]
                runs.append(stack.enter_context(PipelineModel(self.pipe, steps=self.steps, reuse=self.reuse, **call)))
            if runs[0].begin:
                raise SearchError("a search needs whole runs, but these start midway. Use strength=1.")
            objective = self.objective
            if objective == "latent":
                objective = latent_mse
            elif objective == "pixel":
                parts = [samples[begin : begin + self.batch] for begin in range(0, len(samples), self.batch)]
                objective = _PixelError(
                    self.pipe, self.steps, {id(run): part for run, part in zip(runs, parts, strict=True)}
                )
            finer = self.finer_sigmas(samples[0])
            yield Calibration(
                runs,
                objective=objective,
                state_memory=self.state_memory,
                teacher_sigmas=finer,
                spent=0 if finer is None else 1,
                taught=taught,
            )

    def finer_sigmas(self, sample: Mapping[str, Any]) -> Tensor | None:
        """The pipeline's own levels for a finer teacher, if there is to be one; to open the pipeline costs a call."""
        from budcache.pipeline import PipelineModel

        if self.teacher_steps is None or self.teacher_steps == self.steps:
            return None
        with PipelineModel(self.pipe, steps=self.teacher_steps, **seeded(sample, 0)) as finer:
            return finer.sigmas

    @contextmanager
    def judge(self, samples: Sequence[Mapping[str, Any]], seed: int) -> Iterator[Judge]:
        """Samples to choose and to measure on, which nothing was searched or fitted on."""
        with self.calibration(samples, seed) as calibration:
            yield Judge(self, samples, calibration)


class Judge:
    """Held-out samples: how good is what was found?"""

    def __init__(self, job: Job, samples: Sequence[Mapping[str, Any]], calibration: Calibration) -> None:
        self.job, self.samples, self.calibration = job, samples, calibration
        self._decoded = 0
        self._full: list[list[Any]] = []

    @property
    def calls(self) -> int:
        """Sample-calls so far; to open the pipeline for a picture costs one."""
        return self.calibration.calls + self._decoded

    def measure(self, finals: Sequence[Tensor]) -> Quality:
        """The quality of final latents, one for each of the runs, against the teacher's."""
        import numpy as np

        from budcache.metrics import psnr

        if not self._full:
            runs = range(len(self.calibration.runs))
            self._full = [self._pictures(run, self.calibration.teacher(run)) for run in runs]
        ratios = [
            min(psnr(picture, reference), 100.0)  # a perfect picture is infinitely near; JSON knows no infinity
            for run, x in enumerate(finals)
            for picture, reference in zip(self._pictures(run, x), self._full[run], strict=True)
        ]
        return Quality(
            loss=self.calibration.loss(finals),
            psnr=float(np.mean(ratios)),
            psnr_p5=float(np.percentile(ratios, 5)),
            psnr_worst=float(np.min(ratios)),
            samples=len(ratios),
        )

    def quality(self, candidate: Any) -> Quality:
        """The quality of anything that can tell its final latents."""
        return self.measure(candidate.finals(self.calibration))

    def _pictures(self, run: int, x: Tensor) -> list[Any]:
        from budcache.pipeline import decode

        batch = self.job.batch
        self._decoded += len(x)
        return decode(self.job.pipe, x, self.samples[run * batch : (run + 1) * batch], steps=self.job.steps)


class _PixelError:
    """Mean squared error of decoded pictures of values from -1 to 1, as in the authors' search on Wan."""

    def __init__(self, pipe: Any, steps: int, samples: dict[int, Sequence[Mapping[str, Any]]]) -> None:
        self.pipe, self.steps, self.samples, self.calls = pipe, steps, samples, 0
        self.teachers: dict[int, list[Any]] = {}

    def __call__(self, student: Any, teacher: Any, run: Any) -> Tensor:
        import torch

        if id(run) not in self.teachers:
            self.teachers[id(run)] = self._decode(teacher, run)
        pairs = zip(self._decode(student, run), self.teachers[id(run)], strict=True)
        return torch.tensor([4 * float(((a - b) ** 2).mean()) for a, b in pairs], dtype=torch.float64)

    def _decode(self, x: Any, run: Any) -> list[Any]:
        from budcache.pipeline import decode

        self.calls += len(x)
        return decode(self.pipe, x, self.samples[id(run)], steps=self.steps)


def take_samples(
    prompts: Sequence[str], samples: Sequence[Mapping[str, Any]], call: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Prompts or samples, whichever were given, as keyword arguments of the pipeline, one set per sample."""
    if isinstance(prompts, str):
        prompts = [prompts]
    if prompts and samples:
        raise SearchError("prompts and samples were both given. A sample may have a prompt: put them there.")
    given = [{**call, **sample} for sample in (samples or [{"prompt": prompt} for prompt in prompts])]
    if not given:
        raise SearchError("there are no prompts to calibrate on. Give a few, eight or so, as different as your use.")
    return given


@contextmanager
def memory_said() -> Iterator[None]:
    """An out-of-memory error as a sentence."""
    import torch

    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if type(error) is RuntimeError and "memory" not in str(error):  # how torch says it of a CPU
            raise
        raise SearchError("the model ran out of memory. Use a smaller batch or size, or offloading.") from error


def check_teacher(steps: int, teacher_steps: int | None) -> None:
    """Refuse a teacher that knows less than what it is to teach."""
    if teacher_steps is not None and teacher_steps < steps:
        raise SearchError(
            f"a teacher of {teacher_steps} steps is coarser than the {steps} steps that it is to teach. "
            f"Leave its steps out, or choose more than {steps}."
        )


def split(samples: Sequence[Any], selection: int | None) -> int:
    """How many of the samples to search on; the last ones, a quarter if not told otherwise, are for selection."""
    kept_out = len(samples) // 4 if selection is None else selection
    if not 0 <= kept_out < len(samples):
        raise SearchError(
            f"{kept_out} of {len(samples)} samples for selection leave none to learn from. "
            f"Choose a selection of {len(samples) - 1} at most, or give more prompts."
        )
    return len(samples) - kept_out


def seeded(sample: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """A sample that begins from noise of a seed, unless it says itself where to begin."""
    import torch

    if sample.get("generator") is not None or sample.get("latents") is not None:
        return dict(sample)
    return {**sample, "generator": torch.Generator("cpu").manual_seed(seed)}


def settings_of(sample: Mapping[str, Any]) -> dict[str, Any]:
    """What of a sample's arguments a policy's origin has a field for."""
    fields = {"height": "height", "width": "width", "num_frames": "frames", "guidance_scale": "guidance"}
    return {ours: sample[theirs] for theirs, ours in fields.items() if sample.get(theirs) is not None}


def digest(samples: Sequence[Mapping[str, Any]]) -> str:
    """A short name for a set of samples, the same wherever they are the same."""
    digest = hashlib.sha256()
    for sample in samples:
        for name in sorted(sample):
            digest.update(name.encode())
            digest.update(json.dumps(_contents(sample[name]), default=repr).encode())
    return digest.hexdigest()[:16]


def _contents(value: Any) -> Any:
    """A value as JSON can hold it; tensors, arrays and pictures by a digest, wherever in lists or mappings they are."""
    import numpy as np

    if isinstance(value, Mapping):
        return {str(name): _contents(value[name]) for name in sorted(value, key=str)}
    if isinstance(value, list | tuple):
        return [_contents(each) for each in value]
    if hasattr(value, "initial_seed"):
        return value.initial_seed()
    if hasattr(value, "detach"):
        value = value.detach().cpu().float().numpy()
    if hasattr(value, "tobytes"):
        array = np.asarray(value)
        return [array.shape, array.dtype.str, hashlib.sha256(array.tobytes()).hexdigest()]
    return value
