"""Speed-ups that noise does not inflate: every sample against a full run that was timed beside it.

The samples of an entry are drawn in up to three parts, and a full run is timed just before each part. So a speed-up
compares runs of the same minute, and timing costs at most three full runs for each method and budget.

A method saves calls and nothing else, so it cannot be faster than the full run by more than the ratio of the calls.
Where the clock says otherwise, that is noise, and the ratio of the calls is taken instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median, quantiles
from typing import NamedTuple

__all__ = ["PARTS", "Speed", "parts", "speed"]

PARTS = 3  # full runs timed for each method and budget, at most
STEADY = 0.2  # the middle half of the timings may spread by so much of their median
CHEAP = 0.95  # seconds per call, as a share of a full run's; anything cheaper is noise


class Speed(NamedTuple):
    """How many times faster than the full run: the median over the samples, and the lowest and highest."""

    median: float
    low: float
    high: float
    noisy: bool  # the timings spread too much, or are impossible: the speed-up is a rough one


def parts(count: int, most: int = PARTS) -> list[range]:
    """The samples 0 .. count - 1 in up to so many runs of neighbours, as equal as possible."""
    some = min(most, count)
    ends = [count * part // some for part in range(some + 1)]
    return [range(begin, end) for begin, end in pairwise(ends)]


def speed(
    seconds: Sequence[float], calls: Sequence[int], full_seconds: Sequence[float], full_calls: Sequence[int]
) -> Speed:
    """The speed-up of samples that were drawn in as many parts as full runs were timed.

    Args:
        seconds: of each sample.
        calls: model calls of each sample.
        full_seconds: of the full run before each part.
        full_calls: model calls of these full runs.
    """
    paces, found = list[float](), list[float]()
    for part, full, most in zip(parts(len(seconds), len(full_seconds)), full_seconds, full_calls, strict=True):
        for number in part:
            # What a call costs, fixed costs included, in units of what it costs in the full run.
            pace = (seconds[number] / calls[number]) / (full / most)
            paces.append(pace)
            found.append(most / calls[number] / max(pace, 1.0))
    quarter, _, three_quarters = quantiles(paces, method="inclusive") if len(paces) > 1 else paces * 3
    usual = median(paces)
    noisy = usual < CHEAP or three_quarters - quarter > STEADY * usual
    return Speed(median(found), min(found), max(found), noisy)
