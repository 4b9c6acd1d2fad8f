"""Settings of a method, run on samples: the calls that they make, and how near their pictures are to the full runs'."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from budcache.aggregate import Care, cared_for
from budcache.baselines.base import Baseline
from budcache.baselines.pictures import Sample, drawn, ratio
from budcache.baselines.record import Record, record
from budcache.baselines.runs import caching

__all__ = ["Trial", "Trials"]


@dataclass
class Trial:
    """What a setting did on the first samples."""

    calls: list[float]
    ratios: list[float]  # PSNR in dB
    care: Care = "typical"

    def mean_calls(self, count: int) -> float:
        """Calls per sample, on the first so many."""
        return float(np.mean(self.calls[:count]))

    def quality(self, count: int) -> float:
        """How near the pictures are, on the first so many: of typical errors this is the mean PSNR."""
        return -10 * math.log10(cared_for([10 ** (-ratio / 10) for ratio in self.ratios[:count]], self.care))


class Trials:
    """Runs settings on samples, each on each at most once.

    Args:
        pipe: the pipeline.
        samples: keyword arguments of the pipeline's `__call__`, one set per sample.
        steps: K.
        known: the samples' full runs, if they were recorded already.
        batch: how many samples of a static method run as one.
        spent: told sample-calls as they are spent.
        care: what counts in a setting's quality, typical errors or the worst ones.
    """

    def __init__(
        self,
        pipe: Any,
        samples: Sequence[Sample],
        steps: int,
        known: Record | None = None,
        batch: int = 1,
        spent: Callable[[int], None] = lambda calls: None,
        care: Care = "typical",
    ) -> None:
        self.pipe, self.samples, self.steps, self.batch, self.spent = pipe, samples, steps, batch, spent
        self.care: Care = care
        self.sample_calls = 0.0
        self._known = known
        self._made: dict[str, Trial] = {}

    def __contains__(self, setting: Baseline) -> bool:
        return repr(setting) in self._made

    def __getitem__(self, setting: Baseline) -> Trial:
        """What is known of a setting that was run."""
        return self._made[repr(setting)]

    def run(self, setting: Baseline, count: int) -> Trial:
        """A setting on the first samples, of which only those are run that were not before."""
        trial = self._made.setdefault(repr(setting), Trial([], [], self.care))
        if len(trial.calls) >= count:
            return trial
        full = self.full.pictures  # which may have to be drawn first, without the method
        size = self.batch if setting.static else 1  # who decides while it runs decides for a batch as a whole
        with caching(self.pipe, setting, self.steps) as runs:
            for begin in range(len(trial.calls), count, size):
                part = range(begin, min(begin + size, count))
                pictures = drawn(self.pipe, [self.samples[i] for i in part], self.steps)
                trial.calls += [runs.calls[-1]] * len(part)
                trial.ratios += [ratio(picture, full[i]) for picture, i in zip(pictures, part, strict=True)]
                self._spend(runs.calls[-1] * len(part))
        return trial

    @cached_property
    def full(self) -> Record:
        """The samples' full runs."""
        if self._known is not None:
            return self._known
        self._spend(self.steps * len(self.samples))
        return record(self.pipe, self.steps, self.samples, self.batch)

    def _spend(self, calls: float) -> None:
        before, self.sample_calls = self.sample_calls, self.sample_calls + calls
        self.spent(int(self.sample_calls) - int(before))
