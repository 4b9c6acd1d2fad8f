"""The threshold of a method that decides while it runs, set on both sides of a budget."""

from __future__ import annotations

import math
from typing import Generic, TypeVar

import numpy as np

from budcache.baselines.base import Baseline
from budcache.baselines.trials import Trials

__all__ = ["FEW", "HIGHEST", "LOWEST", "Thresholds"]

Method = TypeVar("Method", bound=Baseline)

LOWEST, HIGHEST = 1e-4, 1e2  # thresholds lie in between: nothing skips below, and all skip all that they can above
FEW = 4  # samples that settings are first run on
TRIALS = 12  # of a threshold for one budget
APART = 1.0  # calls between the two sides of a budget
STEPS_AWAY = (-1.6, -0.8, 0.8, 1.6)  # calls from the budget at which there are settings in reserve


class Thresholds(Generic[Method]):
    """What is known of thresholds, by variant of a method; what was run for one budget serves the next."""

    def __init__(self, trials: Trials) -> None:
        self.trials = trials
        self._points: dict[str, dict[float, Method]] = {}  # of each variant, by value of the knob

    def both_sides(self, variant: Method, budget: int) -> list[tuple[Method, float]]:
        """The setting nearest to the budget on all samples, and some in reserve below and above."""
        few, everything = min(FEW, len(self.trials.samples)), len(self.trials.samples)
        self._aim(variant, budget, everything)
        for away in STEPS_AWAY:
            self._aim(variant, min(max(budget + away, 1.0), self.trials.steps), few)
        known = self._known(variant, 1).values()
        tried = [(setting, self._calls(setting), len(self.trials[setting].calls)) for setting in known]
        whole = [(setting, calls) for setting, calls, count in tried if count == everything]
        nearest = min(whole, key=lambda each: (abs(each[1] - budget), each[1]))
        rest = [(setting, calls) for setting, calls, _ in tried if setting != nearest[0] and calls != nearest[1]]
        near = sorted(rest, key=lambda each: abs(each[1] - budget))
        below, above = ([each for each in near if (each[1] < budget) == side] for side in (True, False))
        return [nearest, *sorted(below[:3] + above[:3], key=lambda each: abs(each[1] - budget))]

    def _calls(self, setting: Method) -> float:
        trial = self.trials[setting]
        return trial.mean_calls(len(trial.calls))

    def loosened(self, variant: Method | None, budget: int) -> Method | None:
        """A variant whose knob reaches the budget, its forced steps loosened as far as it takes; None if it cannot."""
        while variant is not None:
            if self.trials.run(variant.tuned(variant.knob.fewest), 1).mean_calls(1) <= budget:
                return variant
            variant = variant.relaxed()
        return None

    def at_budget(self, variant: Method, budget: int, count: int) -> float:
        """The quality between the settings nearest to the budget on both sides of it."""
        self._aim(variant, budget, count)
        trials = [self.trials[setting] for setting in self._known(variant, count).values()]
        points = [(trial.mean_calls(count), trial.quality(count)) for trial in trials]
        below = max((each for each in points if each[0] <= budget), default=None)
        above = min((each for each in points if each[0] >= budget), default=None)
        if below is None or above is None or below[0] == above[0]:
            return min(points, key=lambda each: abs(each[0] - budget))[1]
        return float(np.interp(budget, [below[0], above[0]], [below[1], above[1]]))

    def _aim(self, variant: Method, target: float, count: int) -> None:
        """Try values of the knob until there is one on either side of the wanted calls, not far apart, on `count`."""
        for setting in self._nearest(variant, target):  # what fewer samples found is likely right
            self.trials.run(setting, count)
        for _ in range(TRIALS):
            known = self._known(variant, count)
            made = {value: self.trials[setting].mean_calls(count) for value, setting in known.items()}
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
        self.trials.run(setting, count)

    def _nearest(self, variant: Method, target: float) -> list[Method]:
        """The settings tried so far that come nearest to a number of calls, one from below and one from above."""
        known = [(setting, self._calls(setting)) for setting in self._points.get(repr(variant), {}).values()]
        below = sorted((each for each in known if each[1] <= target), key=lambda each: -each[1])[:1]
        above = sorted((each for each in known if each[1] > target), key=lambda each: each[1])[:1]
        return [setting for setting, _ in below + above]

    def _known(self, variant: Method, count: int) -> dict[float, Method]:
        """The values of the knob that were run on so many samples, with their settings."""
        points = self._points.get(repr(variant), {})
        return {value: setting for value, setting in points.items() if len(self.trials[setting].calls) >= count}
