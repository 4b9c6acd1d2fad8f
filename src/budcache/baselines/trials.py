"""Settings of a method, run on samples: the calls that they make, and how near their pictures are to the full runs'."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from budcache.aggregate import Care, cared_for
from budcache.baselines.base import Baseline
from budcache.baselines.pictures import Sample, drawn, ratio
from budcache.baselines.record import Record, record, unwatched
from budcache.baselines.runs import caching

__all__ = ["Trial", "Trials"]

PARTS = 4  # of the samples, each of which is left out once where a method is learned on them


@dataclass
class Trial:
    """What a setting did on the first samples."""

    calls: list[float]
    ratios: list[float]  # PSNR in dB
    care: Care

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
        learned_here: whether the method was learned on these very samples. One that learns much is then run on each
            quarter of them as learned on the other three (of two or three samples, on each; a single one
            serves for both).
        whole: whether the method runs the whole network, so that nothing of full runs but their pictures is needed.
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
        learned_here: bool = False,
        whole: bool = False,
    ) -> None:
        self.pipe, self.samples, self.steps, self.batch, self.spent = pipe, samples, steps, batch, spent
        self.care: Care = care
        self.learned_here, self.whole = learned_here, whole
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
        found: dict[int, tuple[float, float]] = {}
        for learned, those in self._as_learned(setting, range(len(trial.calls), count)):
            with caching(self.pipe, learned, self.steps) as runs:
                for begin in range(0, len(those), size):
                    part = those[begin : begin + size]
                    pictures = drawn(self.pipe, [self.samples[i] for i in part], setting.asked(self.steps))
                    found |= {i: (runs.calls[-1], ratio(each, full[i])) for i, each in zip(part, pictures, strict=True)}
                    self._spend(runs.calls[-1] * len(part))
        trial.calls += [found[i][0] for i in sorted(found)]
        trial.ratios += [found[i][1] for i in sorted(found)]
        return trial

    def _as_learned(self, setting: Baseline, samples: Sequence[int]) -> Iterator[tuple[Baseline, Sequence[int]]]:
        """The setting and the samples to run it on; what is learned is learned without them."""
        parts = min(PARTS, self.full.runs)
        if not (self.learned_here and setting.held_out and parts > 1):
            yield setting, samples
            return
        for part in range(parts):
            if those := [i for i in samples if self.full.part_of(i, parts) == part]:
                yield setting.relearned(self.full.without(part, parts)), those

    @cached_property
    def full(self) -> Record:
        """The samples' full runs."""
        if self._known is not None:
            return self._known
        self._spend(self.steps * len(self.samples))
        if self.whole:
            return unwatched(self.pipe, self.steps, self.samples)
        return record(self.pipe, self.steps, self.samples, self.batch)

    def _spend(self, calls: float) -> None:
        before, self.sample_calls = self.sample_calls, self.sample_calls + calls
        self.spent(int(self.sample_calls) - int(before))
