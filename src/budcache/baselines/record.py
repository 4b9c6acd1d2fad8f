"""The instrumented full run from which every method that needs it is calibrated."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from budcache.baselines.base import Branch, Here, Knob, Native, relative_l1
from budcache.baselines.pictures import Sample, drawn
from budcache.baselines.runs import caching
from budcache.baselines.signals import PROJECTED, signal
from budcache.errors import PipelineError, SearchError
from budcache.pipeline.parts import bare, denoisers

__all__ = ["Record", "Trace", "record", "unwatched"]

Array = NDArray[np.float64]

# A residual is kept for one run, to be compared with the others of that run: at most so many of its values, whole
# tokens at equal distances. All that is asked of them are means over values.
KEPT_VALUES = 1 << 20


@dataclass(frozen=True)
class Trace:
    """One guidance branch of one full run in numbers; NaN at steps that it did not run.

    R_k is the trunk's residual at step k, h_k what entered it; means are over all values of the batch.

    Attributes:
        branch: which of a step's calls it is, from 0.
        signal: change of TeaCache's signal since the step before, relative L1, shape [K].
        output: change of the transformer's output, likewise.
        ratio: MagCache's magnitude ratio: mean over tokens of |R_k| / |R_{k-1}|, 1 at the first, shape [K].
        size: mean |R_k|, shape [K].
        mean: mean R_k, shape [K].
        distance: mean |R_a - R_k|, shape [K, K].
        gram: mean R_a R_k, shape [K, K].
        change: mean |(h_k + R_k) - (h_{k-1} + R_{k-1})|: how far the trunk's output moved, shape [K].
        left: mean (h_a + R_a) (h_k + R_k), of what left the trunk, shape [K, K].
        projected: as `signal`, of the signal's projection, where the model has one; else NaN, shape [K].
    """

    branch: int
    signal: Array
    output: Array
    ratio: Array
    size: Array
    mean: Array
    distance: Array
    gram: Array
    change: Array
    left: Array
    projected: Array


@dataclass(frozen=True)
class Record:
    """What was seen in the full runs of some samples: numbers, and each one's picture; and how to run them again.

    Args:
        steps: K.
        model: the name of the transformer's class.
        traces: one for each run and guidance branch.
        pipe: the pipeline, and the samples that it ran, `batch` at a time: LeMiCa needs runs of its own.
        pictures: of each sample, which tuning compares with, in half precision.
        sigmas: the noise levels that they ran on, K + 1 of them, where the scheduler has some.
    """

    steps: int
    model: str
    traces: tuple[Trace, ...]
    pipe: Any = None
    samples: tuple[Sample, ...] = ()
    batch: int = 1
    pictures: tuple[NDArray[np.float16], ...] = field(default=(), repr=False, compare=False)
    sigmas: tuple[float, ...] | None = None

    def mean(self, name: str, branch: int | None = None) -> Array:
        """The mean of a field over all runs, of one branch or of all."""
        found = [getattr(trace, name) for trace in self.traces if branch is None or trace.branch == branch]
        if not found:
            raise SearchError(
                f"the record has no guidance branch {branch}. Record with the guidance that you will use."
            )
        values = np.stack(found)
        seen = ~np.isnan(values)
        mean: Array = np.where(seen, values, 0).sum(0) / np.maximum(seen.sum(0), 1)
        return np.where(seen.any(0), mean, np.nan)

    @property
    def runs(self) -> int:
        """How many full runs there are, each of `batch` samples."""
        return sum(trace.branch == 0 for trace in self.traces)

    def without(self, part: int, parts: int) -> Record:
        """All but the runs of one of so many parts, to learn on what that part can then judge; see `part_of`."""
        places = accumulate(trace.branch == 0 for trace in self.traces)  # 1 for the traces of the first run
        samples = [number for number in range(len(self.samples)) if self.part_of(number, parts) != part]
        return replace(
            self,
            traces=tuple(each for each, place in zip(self.traces, places, strict=True) if (place - 1) % parts != part),
            samples=tuple(self.samples[number] for number in samples),
            pictures=tuple(self.pictures[number] for number in samples),
        )

    def part_of(self, sample: int, parts: int) -> int:
        """Which of so many parts a sample is of: its runs are dealt out to them in turns."""
        return sample // self.batch % parts

    @property
    def branches(self) -> int:
        """Calls of the transformer in a step."""
        return 1 + max(trace.branch for trace in self.traces)


def record(pipe: Any, steps: int, samples: Sequence[Sample], batch: int = 1) -> Record:
    """Run samples in full and note what the methods need to know; the pipeline is left untouched.

    Args:
        pipe: a pipeline whose trunk is known.
        steps: K.
        samples: keyword arguments of the pipeline's `__call__`, one set per sample.
        batch: how many samples run as one. Numbers are then means over a batch.
    """
    if not samples:
        raise SearchError("there are no samples to record. Pass at least one, such as {'prompt': 'a cat'}.")
    recorder = _Recorder(steps=steps)
    branches = recorder.run.branches
    traces: list[Trace] = []
    pictures: list[NDArray[np.float16]] = []
    with ExitStack() as undo:
        for module in denoisers(pipe).values():
            undo.callback(module.register_forward_hook(recorder.run.output_hook).remove)
        undo.enter_context(caching(pipe, recorder, steps))
        for start in range(0, len(samples), batch):
            branches.clear()
            pictures += drawn(pipe, samples[start : start + batch], steps)
            traces += [branches[number].trace(number, steps) for number in sorted(branches)]
            branches.clear()
    model = type(next(map(bare, denoisers(pipe).values()))).__name__
    return Record(steps, model, tuple(traces), pipe, tuple(samples), batch, tuple(pictures), recorder.run.sigmas)


def unwatched(pipe: Any, steps: int, samples: Sequence[Sample]) -> Record:
    """The pictures of full runs and nothing else: for solvers, on networks whose trunk nobody knows."""
    pictures = [drawn(pipe, [sample], steps)[0] for sample in samples]
    return Record(steps, "", (), pipe, tuple(samples), pictures=tuple(pictures))


@dataclass
class _RunSoFar:
    """The branches of the run that is being recorded, by number of the call within a step."""

    branches: dict[int, _RecordingBranch] = field(default_factory=dict)
    newest: _RecordingBranch | None = None
    sigmas: tuple[float, ...] | None = None

    def output_hook(self, module: Any, args: Any, out: Any) -> None:
        """Hand the transformer's own output, after its head, to the branch that was called last."""
        if self.newest is not None:
            sample = out[0] if isinstance(out, tuple) else out.sample
            self.newest.output(torch.stack(list(sample)) if isinstance(sample, list) else sample)


class _RecordingBranch(Branch):
    """Computes everything and records what goes through."""

    def __init__(self, run: _RunSoFar) -> None:
        self.run = run
        self.step = 0
        self.signals: dict[int, float] = {}
        self.projected: dict[int, float] = {}
        self.outputs: dict[int, float] = {}
        self.ratios: dict[int, float] = {}
        self.changes: dict[int, float] = {}
        self.residuals: dict[int, Tensor] = {}
        self.lefts: dict[int, Tensor] = {}
        self.before: dict[str, Tensor] = {}

    def decide(self, here: Here) -> bool:
        """Compute."""
        self.follow(here, True)
        return True

    def follow(self, here: Here, compute: bool) -> None:
        """Record what enters the trunk."""
        self.step, self.run.newest = here.step, self
        self.signals[here.step] = self._changed("signal", signal(here))
        if here.model in PROJECTED:
            self.projected[here.step] = self._changed("projected", signal(here, projected=True))

    def output(self, out: Tensor) -> None:
        """Record what leaves the head."""
        self.outputs[self.step] = self._changed("output", out)

    def computed(self, here: Here, residual: Tensor) -> None:
        """Record what leaves the trunk."""
        norms = residual.float().norm(dim=-1)
        old = self.before.get("norms")
        fits = old is not None and old.shape == norms.shape
        self.ratios[here.step] = float((norms / old.clamp_min(1e-12)).mean()) if fits and old is not None else 1.0
        self.before["norms"] = norms
        left = here.hidden + residual
        old = self.before.get("left")
        if old is not None and old.shape == left.shape:
            self.changes[here.step] = float((left.float() - old.float()).abs().mean())
        self.before["left"] = left
        tokens = residual.shape[:-1].numel()
        stride = max(1, -(-tokens * residual.shape[-1] // KEPT_VALUES))
        self.residuals[here.step] = residual.flatten(0, -2)[::stride].float().flatten().clone()
        self.lefts[here.step] = left.flatten(0, -2)[::stride].float().flatten().clone()

    def _changed(self, name: str, new: Tensor) -> float:
        old = self.before.get(name)
        self.before[name] = new.detach().clone()
        return relative_l1(new, old) if old is not None and old.shape == new.shape else float("nan")

    def trace(self, number: int, steps: int) -> Trace:
        """The recorded run in numbers."""
        ran = sorted(self.residuals)
        if len({value.shape for value in self.residuals.values()}) > 1:
            raise PipelineError(
                "the hidden states changed their size within a run, so its steps cannot be compared. Guidance that "
                "starts or stops midway does that: record without it."
            )
        kept, left = (torch.stack([those[k] for k in ran]) for those in (self.residuals, self.lefts))
        tables = [torch.cdist(kept, kept, p=1.0) / kept.shape[1], _products(kept), _products(left)]
        distance, gram, lefts = (np.full((steps, steps), np.nan) for _ in tables)
        for table, values in zip((distance, gram, lefts), tables, strict=True):
            table[np.ix_(ran, ran)] = values.cpu().double().numpy()
        series = functools.partial(_series, steps)
        return Trace(
            number,
            series(self.signals),
            series(self.outputs),
            series(self.ratios),
            series({k: float(value.abs().mean()) for k, value in self.residuals.items()}),
            series({k: float(value.mean()) for k, value in self.residuals.items()}),
            distance,
            gram,
            series(self.changes),
            lefts,
            series(self.projected),
        )


def _products(rows: Tensor) -> Tensor:
    """Mean products of rows, summed in double precision: neighbouring steps differ little, and solvers subtract."""
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for begin in range(0, rows.shape[1], 1 << 16):
        part = rows[:, begin : begin + (1 << 16)].double()
        total += part @ part.T
    return total / rows.shape[1]


def _series(steps: int, values: dict[int, float]) -> Array:
    series = np.full(steps, np.nan)
    for k, value in values.items():
        series[k] = value
    return series


@dataclass(frozen=True, kw_only=True)
class _Recorder(Native):
    """The method that computes everything and records it."""

    name: ClassVar[str] = "record"
    knob: ClassVar[Knob] = Knob("steps")
    run: _RunSoFar = field(default_factory=_RunSoFar)

    @classmethod
    def calibrated(cls, record: Record) -> _Recorder:
        """Needs no calibration."""
        return cls(steps=record.steps)

    def sigmas(self, sigmas: Tensor, steps: int) -> Tensor:
        """As they are, noted."""
        self.run.sigmas = tuple(sigmas.tolist())
        return sigmas

    def branch(self, steps: int, number: int) -> Branch:
        """One for each call of a step, whichever of a pipeline's experts it goes to."""
        return self.run.branches.setdefault(number, _RecordingBranch(self.run))
