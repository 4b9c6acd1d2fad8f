"""From one number per sample to one number: every mean that a search, a fit or a judgement uses is here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

__all__ = [
    "TINY",
    "Care",
    "cared_for",
    "geometric_mean",
    "mean",
    "near_worst",
    "percentile",
    "power_mean",
    "standard_error",
]

Care: TypeAlias = Literal["typical", "worst"]

TINY = 1e-20  # a loss below this counts as this
# How `near_worst` weighs its samples: 1 would be the mean, infinity the worst one alone.
POWER = 4
# How care for the worst weighs errors: 0 would be the geometric mean, 1 the mean. Chosen on calibration prompts of
# tiny-flux (docs/facts.md); docs/results.md has what it brings.
WORST_POWER = 0.75


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean: the paper's loss over samples."""
    return math.fsum(values) / len(values)


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean, in which each sample counts relative to its own error; it goes with the mean PSNR.

    Not a number if one of the values is not.
    """
    if any(math.isnan(value) for value in values):
        return math.nan
    return math.exp(mean([math.log(max(value, TINY)) for value in values]))


def near_worst(values: Sequence[float]) -> float:
    """A power mean near to the largest value.

    Arrivals are judged by it: a sample that has strayed far on its way ends as another picture, and calling the model
    later does not bring it back; so the worst ones count most.
    """
    return power_mean(values, POWER)


def power_mean(values: Sequence[float], power: float) -> float:
    """The mean of the values' powers, as a value again: from the geometric mean near 0 to the largest at infinity."""
    scale = max(*values, 1e-300)
    return float(scale * mean([(value / scale) ** power for value in values]) ** (1 / power))


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which such a share of the values lies, on a straight line between two of them."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = min(int(place), max(len(ordered) - 2, 0))
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def cared_for(errors: Sequence[float], care: Care) -> float:
    """What a choice goes by: the typical error, or a mean in which large errors count more.

    Those to choose by are few. In their arithmetic mean one that turns into another picture under any policy would
    outweigh all that differ, and a percentile is one or two of them; so care for the worst is in between.
    """
    found = (
        geometric_mean(errors) if care == "typical" else power_mean([max(error, TINY) for error in errors], WORST_POWER)
    )
    return found if math.isfinite(found) else math.inf


def standard_error(values: Sequence[float]) -> float | None:
    """How far the mean of such samples scatters; None for a single one, which tells nothing of it."""
    if len(values) < 2:
        return None
    middle = mean(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1) / len(values))
