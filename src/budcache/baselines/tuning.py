"""A method at its best: all the knobs that its authors name, chosen on calibration samples by quality at a budget.

Settings are compared by the final latents, against those of the full runs. Whoever knows its steps beforehand costs
nothing to bring to a budget: its masks are listed, those that full runs call poor are left out, and the others meet on
few samples, the better half of them on twice as many, and so on; last, the settings that share the best mask. A method
that decides while it runs has its threshold set on both sides of the budget, and its quality is read off in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, zip_longest
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from budcache.baselines.base import Baseline
from budcache.baselines.record import Record, Sample, call, record
from budcache.baselines.runs import caching
from budcache.errors import SearchError
from budcache.mask import Computed

__all__ = ["Choice", "Tuner", "tune"]

Method = TypeVar("Method", bound=Baseline)

LOWEST, HIGHEST = 1e-4, 1e2  # thresholds lie in between: nothing skips below, and all skip all that they can above
GRID, LEAST = 4000, 400  # values of a threshold that masks are listed for, over all variants; of each at least
MOST = 16  # settings of one budget that are run against each other
FEW = 4  # samples that all of these are run on
TRIALS = 12  # of a threshold for one budget
APART = 1.0  # calls between the two sides of a budget
STEPS_AWAY = (-1.6, -0.8, 0.8, 1.6)  # calls from the budget at which there are settings in reserve


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


def tune(pipe: Any, method: Method, budget: int, samples: Sequence[Sample], steps: int | None = None) -> Method:
    """The method with its settings chosen for `budget` calls per sample on average, as near as it can come.

    Args:
        pipe: the pipeline; static methods without any choice do not run it.
        method: a calibrated or published method.
        budget: computed steps per sample.
        samples: keyword arguments of the pipeline's `__call__`, one set per sample.
        steps: K; the method's own if left out.
    """
    return Tuner(pipe, method, samples, steps).choice(budget).settings[0][0]


@dataclass
class _Trial:
    """What a setting did on the first samples: its calls, and how near to the full runs it ended, in decibels."""

    calls: list[float]
    nearness: list[float]

    def mean_calls(self, count: int) -> float:
        return float(np.mean(self.calls[:count]))

    def quality(self, count: int) -> float:
        return float(np.mean(self.nearness[:count]))


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
    ) -> None:
        self.pipe, self.method, self.samples, self.batch, self.spent = pipe, method, samples, batch, spent
        self.steps = method.steps if steps is None else steps
        self.sample_calls = 0.0
        self._known = known
        self._trials: dict[str, _Trial] = {}
        self._points: dict[str, dict[float, Method]] = {}  # of each variant, by value of the knob

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
        if len(settings) <= MOST or not self.samples:
            return self._winner(settings)
        masks: dict[Hashable, list[Method]] = {}
        for setting in settings:
            masks.setdefault(setting.planned(self.steps).branches, []).append(setting)
        groups = sorted(masks.values(), key=lambda those: self._harm(those[0].planned(self.steps)))
        # One setting of each mask in turn: what full runs say of a mask says nothing of the other settings.
        turns = (each for turn in zip_longest(*groups) for each in turn if each is not None)
        first, every = self._winner(list(islice(turns, MOST))), len(self.samples)
        others = [each for each in masks[first.planned(self.steps).branches] if each != first]
        last = [first, self._winner(others)] if others else [first]
        return max(last, key=lambda setting: self._trial(setting, every).quality(every))

    def _winner(self, settings: list[Method]) -> Method:
        """The best of some settings: all are run on few samples, the better half on twice as many, and so on."""
        if len(settings) == 1 or not self.samples:
            return settings[0]
        count = min(FEW, len(self.samples))
        while True:
            ranked = sorted(settings, key=lambda setting: -self._trial(setting, count).quality(count))
            if len(ranked) == 1 or count == len(self.samples):
                return ranked[0]
            count = min(2 * count, len(self.samples))
            settings = ranked[: max(2 if count == len(self.samples) else 1, len(ranked) // 2)]

    def _harm(self, run: Computed) -> float:
        """What full runs say of a mask: how far reused residuals are from the true ones, by the length of the steps."""
        full, masks = self._record, run.branches
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
        reached = [each for variant in method.variants() if (each := self._loosened(variant, budget)) is not None]
        variants = list(dict.fromkeys(reached))
        if not variants:
            loosest = method.tuned(method.knob.fewest)
            return [(loosest, self._trial(loosest, 1).mean_calls(1))]
        count, everything = min(FEW, len(self.samples)), len(self.samples)
        while True:
            ranked = sorted(variants, key=lambda variant: -self._at_budget(variant, budget, count))
            if len(ranked) == 1 or count == everything:
                break
            count = min(2 * count, everything)
            variants = ranked[: max(1, len(ranked) // 2)]
        return self._both_sides(ranked[0], budget)

    def _both_sides(self, variant: Method, budget: int) -> list[tuple[Method, float]]:
        """The setting nearest to the budget on all samples, and some in reserve below and above."""
        few, everything = min(FEW, len(self.samples)), len(self.samples)
        self._aim(variant, budget, everything)
        for away in STEPS_AWAY:
            self._aim(variant, min(max(budget + away, 1.0), self.steps), few)
        known = self._known_points(variant, 1)
        tried = [(setting, self._calls(setting), len(self._trials[repr(setting)].calls)) for setting in known]
        whole = [(setting, calls) for setting, calls, count in tried if count == everything]
        nearest = min(whole, key=lambda each: (abs(each[1] - budget), each[1]))
        rest = [(setting, calls) for setting, calls, _ in tried if setting != nearest[0] and calls != nearest[1]]
        near = sorted(rest, key=lambda each: abs(each[1] - budget))
        below, above = ([each for each in near if (each[1] < budget) == side] for side in (True, False))
        return [nearest, *sorted(below[:3] + above[:3], key=lambda each: abs(each[1] - budget))]

    def _calls(self, setting: Method) -> float:
        trial = self._trials[repr(setting)]
        return trial.mean_calls(len(trial.calls))

    def _loosened(self, variant: Method | None, budget: int) -> Method | None:
        """A variant whose knob reaches the budget, its forced steps loosened as far as it takes; None if it cannot."""
        while variant is not None:
            if self._trial(variant.tuned(variant.knob.fewest), 1).mean_calls(1) <= budget:
                return variant
            variant = variant.relaxed()
        return None

    def _at_budget(self, variant: Method, budget: int, count: int) -> float:
        """The quality between the settings nearest to the budget on both sides of it."""
        self._aim(variant, budget, count)
        trials = [self._trials[repr(setting)] for setting in self._known_points(variant, count)]
        points = [(trial.mean_calls(count), trial.quality(count)) for trial in trials]
        below = max((each for each in points if each[0] <= budget), default=None)
        above = min((each for each in points if each[0] >= budget), default=None)
        if below is None or above is None or below[0] == above[0]:
            return min(points, key=lambda each: abs(each[0] - budget))[1]
        return float(np.interp(budget, [below[0], above[0]], [below[1], above[1]]))

    def _aim(self, variant: Method, target: float, count: int) -> None:
        """Try values of the knob until there is one on either side of the wanted calls, not far apart, on `count`."""
        for setting in self._nearest(variant, target):  # what fewer samples found is likely right
            self._trial(setting, count)
        for _ in range(TRIALS):
            made = {value: self._points_of(variant, value, count) for value in self._values_of(variant, count)}
            more = max((value for value, calls in made.items() if calls > target), default=None)
            fewer = min(
                (v for v, calls in made.items() if calls <= target and (more is None or v > more)), default=None
            )
            if target in made.values() or (more and fewer and made[more] - made[fewer] <= APART):
                return
            value = self._next(variant, more, fewer)
            if value is None:
                return
            self._try(variant, value, count)

    def _next(self, variant: Method, more: float | None, fewer: float | None) -> float | None:
        """A value between those on both sides of the target; with one side only, further out, from the method's own."""
        knob = variant.knob
        if more is None and fewer is None:
            own = float(getattr(variant, knob.name))
            return own if knob.most < own < knob.fewest else 1.0
        if more is None:
            value = (fewer or 1.0) / 2
            return value if value >= LOWEST else None
        if fewer is None:
            value = 2 * more
            return value if value <= HIGHEST else None
        value = math.sqrt(more * fewer) if more > 0 else fewer / 2
        return value if abs(value - more) > 1e-6 * value else None

    def _try(self, variant: Method, value: float, count: int) -> None:
        setting = variant.tuned(value)
        self._points.setdefault(repr(variant), {})[value] = setting
        self._trial(setting, count)

    def _nearest(self, variant: Method, target: float) -> list[Method]:
        """The settings tried so far that come nearest to a number of calls, one from below and one from above."""
        known = [(setting, self._calls(setting)) for setting in self._points.get(repr(variant), {}).values()]
        below = sorted((each for each in known if each[1] <= target), key=lambda each: -each[1])[:1]
        above = sorted((each for each in known if each[1] > target), key=lambda each: each[1])[:1]
        return [setting for setting, _ in below + above]

    def _known_points(self, variant: Method, count: int) -> list[Method]:
        points = self._points.get(repr(variant), {})
        return [setting for setting in points.values() if len(self._trials[repr(setting)].calls) >= count]

    def _values_of(self, variant: Method, count: int) -> list[float]:
        points = self._points.get(repr(variant), {})
        return [value for value, setting in points.items() if len(self._trials[repr(setting)].calls) >= count]

    def _points_of(self, variant: Method, value: float, count: int) -> float:
        return self._trials[repr(self._points[repr(variant)][value])].mean_calls(count)

    # Running

    @cached_property
    def _record(self) -> Record:
        if self._known is not None:
            return self._known
        self._spend(self.steps * len(self.samples))
        return record(self.pipe, self.steps, self.samples, self.batch)

    def _trial(self, setting: Method, count: int) -> _Trial:
        """A setting on the first samples, of which only those are run that were not before."""
        trial = self._trials.setdefault(repr(setting), _Trial([], []))
        if len(trial.calls) >= count:
            return trial
        full = self._record.latents  # which may have to be run first, without the method
        size = self.batch if setting.static else 1  # who decides while it runs decides for a batch as a whole
        with caching(self.pipe, setting, self.steps) as runs:
            for begin in range(len(trial.calls), count, size):
                part = range(begin, min(begin + size, count))
                latents = self.pipe(**call([self.samples[i] for i in part], self.steps))[0].cpu()
                trial.calls += [runs.calls[-1]] * len(part)
                trial.nearness += [_nearness(latents[at], full[i]) for at, i in enumerate(part)]
                self._spend(runs.calls[-1] * len(part))
        return trial

    def _spend(self, calls: float) -> None:
        before, self.sample_calls = self.sample_calls, self.sample_calls + calls
        self.spent(int(self.sample_calls) - int(before))


def _nearness(latents: torch.Tensor, full: torch.Tensor) -> float:
    return -10 * math.log10(float((latents.float() - full.float()).square().mean()) + 1e-12)


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
