"""A method at its best: all the knobs that its authors name, chosen on calibration samples by quality at a budget.

Settings are compared by the PSNR of their pictures to those of the full runs, as comparisons do. Whoever knows its
steps beforehand costs nothing to bring to a budget: its masks are listed, those that full runs call poor are left out,
and the others meet with some settings each on few samples, the better half of them on twice as many, and so on, the
last four on all; then all settings of the best mask. A method that decides while it runs has its threshold set on both
sides of the budget, and its quality is read off in between; its variants meet likewise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np

from budcache.aggregate import Care
from budcache.baselines.base import Baseline
from budcache.baselines.pictures import Sample
from budcache.baselines.record import Record
from budcache.baselines.thresholds import FEW, HIGHEST, LOWEST, Thresholds
from budcache.baselines.trials import Trials
from budcache.errors import SearchError
from budcache.mask import Computed
from budcache.options import check_care

__all__ = ["Choice", "Tuner", "first_samples", "halving_runs", "tune"]

Method = TypeVar("Method", bound=Baseline)
Candidate = TypeVar("Candidate")

GRID, LEAST = 4000, 400  # values of a threshold that masks are listed for, over all variants; of each at least
MOST = 16  # masks of one budget that are run against each other
EACH = 6  # settings of each of them, at most
MORE = 8  # samples that settings are first run on where the worst ones count: of fewer little can be told about those
LAST = 4  # of these, and of variants of a threshold, that are run on all samples


@dataclass(frozen=True)
class Choice(Generic[Method]):
    """A method at a budget.

    Attributes:
        settings: each with the calls that it makes on calibration samples. The first is the nearest to the budget.
            Where that does not meet it, or may not on other samples, others on both sides of the budget follow.
        samples: calibration samples that it was chosen on.
        sample_calls: what choosing took.
    """

    settings: tuple[tuple[Method, float], ...]
    samples: int
    sample_calls: int


def tune(
    pipe: Any,
    method: Method,
    budget: int,
    samples: Sequence[Sample],
    steps: int | None = None,
    care: Care = "typical",
) -> Method:
    """The method with its settings chosen for `budget` calls per sample on average, as near as it can come.

    Args:
        pipe: the pipeline; static methods without any choice do not run it.
        method: a calibrated or published method.
        budget: computed steps per sample.
        samples: keyword arguments of the pipeline's `__call__`, one set per sample.
        steps: K; the method's own if left out.
        care: what counts in the choice, "typical" errors or the "worst" ones.
    """
    return Tuner(pipe, method, samples, steps, care=check_care(care)).choice(budget).settings[0][0]


class Tuner(Generic[Method]):
    """Brings one method to any number of budgets; what was run for one serves the next.

    Args:
        pipe: the pipeline.
        method: a calibrated or published method.
        samples: keyword arguments of the pipeline's `__call__`, one set per sample.
        steps: K; the method's own if left out.
        known: the samples' full runs, if they were recorded already.
        batch: how many samples of a static method run as one.
        spent: told sample-calls as they are spent.
        care: what counts in the choice, typical errors or the worst ones, as in our search.
        learned_here: whether the method was learned on these very samples; see `Trials`.
    """

    def __init__(
        self,
        pipe: Any,
        method: Method,
        samples: Sequence[Sample],
        steps: int | None = None,
        known: Record | None = None,
        batch: int = 1,
        spent: Callable[[int], None] = lambda calls: None,
        care: Care = "typical",
        learned_here: bool = False,
    ) -> None:
        self.method, self.samples, self.steps = method, samples, method.steps if steps is None else steps
        self.trials = Trials(pipe, samples, self.steps, known, batch, spent, care, learned_here, method.whole)
        self._thresholds: Thresholds[Method] = Thresholds(self.trials)

    @property
    def sample_calls(self) -> float:
        """What choosing has taken so far."""
        return self.trials.sample_calls

    def choice(self, budget: int) -> Choice[Method]:
        """The method's best settings for a budget."""
        if not 1 <= budget <= self.steps:
            raise SearchError(
                f"a budget of {budget} does not fit {self.steps} steps. Choose one from 1 to {self.steps}."
            )
        if not self.method.static and not self.samples:
            raise SearchError(
                f"{self.method.name} decides while it runs, so tuning it needs samples. Pass at least one."
            )
        before = self.sample_calls
        settings = self._static(budget) if self.method.static else self._dynamic(budget)
        if budget < self.steps and all(calls == self.steps for _, calls in settings):
            raise SearchError(
                f"{self.method.name} computes all of {self.steps} steps whatever its settings: the steps at both ends "
                "that it always computes leave nothing to skip. Use more steps, or leave it out."
            )
        return Choice(tuple(settings), len(self.samples), round(self.sample_calls - before))

    # Methods that know their steps beforehand

    def _static(self, budget: int) -> list[tuple[Method, float]]:
        reached = sorted(self._masks, key=lambda calls: (abs(calls - budget), calls))
        nearest = reached[0]
        other = next((calls for calls in reached if (calls - budget) * (nearest - budget) < 0), None)
        sides = [nearest] if nearest == budget or other is None else [nearest, other]
        return [(self._best(self._masks[calls]), float(calls)) for calls in sides]

    @cached_property
    def _masks(self) -> dict[float, list[Method]]:
        """All settings that differ, by their calls; the method's own come first."""
        found: dict[Hashable, Method] = {}
        variants = self.method.variants()
        for variant in variants:
            solved = [variant.at_budget(budget, self.steps) for budget in range(1, self.steps + 1)]
            settings = [each for each in solved if each is not None]
            for setting in settings or map(variant.tuned, _values(variant, self.steps, len(variants))):
                found.setdefault(setting.pattern(self.steps), setting)
        groups: dict[float, list[Method]] = {}
        for setting in found.values():
            groups.setdefault(setting.planned(self.steps).calls, []).append(setting)
        return groups

    def _best(self, settings: list[Method]) -> Method:
        if not self.samples:
            return settings[0]
        masks: dict[Hashable, list[Method]] = {}
        for setting in settings:
            masks.setdefault(setting.planned(self.steps).branches, []).append(setting)
        # Where there are many, full runs say which masks are poor, but nothing of their other settings.
        groups = list(masks.values())
        if len(groups) > MOST:
            groups = sorted(groups, key=lambda those: self._harm(those[0].planned(self.steps)))[:MOST]
        first = self._halved([setting for those in groups for setting in those[:EACH]], self._quality)
        others = [each for each in masks[first.planned(self.steps).branches] if each != first]
        last = [first, self._halved(others, self._quality)] if others else [first]
        return self._halved(last, self._quality)

    def _quality(self, setting: Method, count: int) -> float:
        return self.trials.run(setting, count).quality(count)

    def _harm(self, run: Computed) -> float:
        """What full runs say of a mask: how far reused residuals are from the true ones, by the length of the steps."""
        full, masks = self.trials.full, run.branches
        sigmas = np.array(full.sigmas) if full.sigmas is not None else np.linspace(1, 0, self.steps + 1)
        lengths, total = -np.diff(sigmas), 0.0
        for number, mask in enumerate(masks):
            distance = np.nan_to_num(full.mean("distance", number if len(masks) > 1 else None), nan=1e9)
            segments = [(start, k) for start, end in mask.segments for k in range(start + 1, end)]
            total += sum(distance[start][k] * lengths[k] for start, k in segments)
        return float(total / len(masks))

    # Methods that decide while they run

    def _dynamic(self, budget: int) -> list[tuple[Method, float]]:
        method = self.method
        if budget == self.steps:
            return [(method.tuned(method.knob.most), float(budget))]
        reached = [
            each for variant in method.variants() if (each := self._thresholds.loosened(variant, budget)) is not None
        ]
        variants = list(dict.fromkeys(reached))
        if not variants:
            loosest = method.tuned(method.knob.fewest)
            return [(loosest, self.trials.run(loosest, 1).mean_calls(1))]

        def quality(variant: Method, count: int) -> float:
            return self._thresholds.at_budget(variant, budget, count)

        return self._thresholds.both_sides(self._halved(variants, quality), budget)

    def _halved(self, candidates: Sequence[Method], quality: Callable[[Method, int], float]) -> Method:
        return halved(candidates, quality, len(self.samples), first_samples(self.trials.care))


def first_samples(care: Care) -> int:
    """How many samples all settings are run on."""
    return FEW if care == "typical" else MORE


def halved(
    candidates: Sequence[Candidate], quality: Callable[[Candidate, int], float], samples: int, few: int = FEW
) -> Candidate:
    """The best of some candidates: all meet on few samples, the better half on twice as many, the last few on all.

    Args:
        quality: of a candidate on so many of the samples; higher is better.
        samples: how many there are.
        few: how many all candidates meet on.
    """
    ranked = list(candidates)
    if len(ranked) > 1:
        for left, count in _rounds(len(ranked), samples, few):
            worth = {place: quality(each, count) for place, each in enumerate(ranked[:left])}
            ranked = [ranked[place] for place in sorted(worth, key=lambda place: -worth[place])]
    return ranked[0]


def halving_runs(candidates: int, samples: int, few: int = FEW) -> int:
    """How many runs of one sample `halved` makes of so many candidates."""
    runs = before = 0
    for left, count in _rounds(candidates, samples, few) if candidates > 1 else ():
        runs, before = runs + left * (count - before), count
    return runs


def _rounds(candidates: int, samples: int, few: int) -> Iterator[tuple[int, int]]:
    """How many candidates meet on how many samples, round by round."""
    left, count = candidates, min(few, samples)
    while left > LAST and count < samples:
        yield left, count
        left, count = max(LAST, left // 2), min(2 * count, samples)
    yield left, samples


def _values(method: Baseline, steps: int, variants: int) -> list[float]:
    """The values of a static method's knob that masks are listed for, the method's own first."""
    knob = method.knob
    own = float(getattr(method, knob.name))
    if knob.whole:
        last = min(int(knob.fewest), max(steps, int(knob.most) + 8))
        return [own, *(float(value) for value in range(int(knob.most), last + 1) if value != own)]
    count = max(LEAST, GRID // variants)
    decades = math.log10(HIGHEST / LOWEST)
    return [own, knob.most, *(LOWEST * 10 ** (decades * i / count) for i in range(count + 1)), knob.fewest]
