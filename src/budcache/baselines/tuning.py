"""Setting a method's knob so that it makes the calls that one wants to compare at."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from budcache.baselines.base import Baseline
from budcache.baselines.record import Sample, call
from budcache.baselines.runs import caching
from budcache.errors import SearchError

__all__ = ["tune"]

Method = TypeVar("Method", bound=Baseline)

LOWEST = 1e-4  # a knob's logarithm is bisected, from here on: nothing skips below
BISECTIONS = 18
GRID = 2000


def tune(pipe: Any, method: Method, budget: int, samples: Sequence[Sample], steps: int | None = None) -> Method:
    """The method with its knob set so that it makes `budget` calls per sample on average, as near as it can come.

    Args:
        pipe: the pipeline; static methods do not run it.
        method: a calibrated or published method.
        budget: computed steps per sample.
        samples: keyword arguments of the pipeline's `__call__`, one set per sample; run one by one.
        steps: K; the method's own if left out.

    Where a method's sources leave a choice of settings, all are tuned and the one whose final latents come nearest to
    the full run's on the samples is taken. Where even the loosest knob leaves more than `budget` forced steps, they are
    loosened notch by notch. The result's fields say what was done.
    """
    steps = method.steps if steps is None else steps
    if not 1 <= budget <= steps:
        raise SearchError(f"a budget of {budget} does not fit {steps} steps. Choose one from 1 to {steps}.")
    if not method.static and not samples:
        raise SearchError(f"{method.name} decides while it runs, so tuning it needs samples. Pass at least one.")
    found = [_tuned(pipe, variant, budget, samples, steps) for variant in method.variants()]
    if len(found) == 1 or not samples:
        return found[0]
    latents = [pipe(**call([sample], steps))[0] for sample in samples]

    def rank(trial: Method) -> tuple[int, float]:
        error = 0.0
        with caching(pipe, trial, steps) as runs:
            for sample, full in zip(samples, latents, strict=True):
                error += float((pipe(**call([sample], steps))[0].float() - full.float()).square().mean())
        return round(abs(sum(runs.calls) / len(samples) - budget)), error

    return min(found, key=rank)


def _tuned(pipe: Any, method: Method, budget: int, samples: Sequence[Sample], steps: int) -> Method:
    exact = method.at_budget(budget, steps)
    if exact is not None:
        return exact

    def calls(trial: Method, few: bool = False) -> float:
        if trial.static:
            return float(trial.mask(steps).budget)
        with caching(pipe, trial, steps) as runs:
            for sample in samples[:1] if few else samples:
                pipe(**call([sample], steps))
        return sum(runs.calls) / len(runs.calls)

    while calls(method.tuned(method.knob.fewest), few=True) > budget:
        looser = method.relaxed()
        if looser is None:
            return method.tuned(method.knob.fewest)
        method = looser
    search = _scan if method.static else _bisect
    near = 1 / max(len(samples), 1)  # one call of one sample is as good as exact
    return method.tuned(search(lambda value: calls(method.tuned(value)), budget, method, near))


def _nearness(calls: float, budget: int) -> tuple[float, bool]:
    return abs(calls - budget), calls > budget  # of two equally near ones, the cheaper


def _scan(calls: Callable[[float], float], budget: int, method: Baseline, near: float) -> float:
    """The nearest over all values of the knob: a mask costs nothing, and calls need not fall steadily."""
    knob = method.knob
    if knob.whole:
        first, last = sorted((int(knob.most), int(knob.fewest)))
        values = [float(value) for value in range(first, last + 1)]
    else:
        decades = math.log10(knob.fewest / LOWEST)
        values = [knob.most, *(LOWEST * 10 ** (decades * i / GRID) for i in range(GRID + 1))]
    return min(values, key=lambda value: _nearness(calls(value), budget))  # the first, so the most careful, of equals


def _bisect(calls: Callable[[float], float], budget: int, method: Baseline, near: float) -> float:
    knob = method.knob
    low, high = (knob.most, knob.fewest) if knob.whole else (math.log(LOWEST), math.log(knob.fewest))
    best, nearest = knob.fewest, (math.inf, True)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        value = float(round(middle)) if knob.whole else math.exp(middle)
        made = calls(value)
        if _nearness(made, budget) < nearest:
            best, nearest = value, _nearness(made, budget)
        if abs(made - budget) <= near:
            break
        low, high = (middle, high) if made > budget else (low, middle)
    return best
