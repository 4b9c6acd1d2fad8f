"""Speed-ups that can be believed: pairs of a full run and a run of the method, one right after the other.

What is compared is the denoising loop, without text encoders and decoder, which no method touches. A pair sees the same
machine, so its ratio does not drift; the median of the ratios is not moved by a few disturbed pairs; and pairs are run
until the median is known to 5 %. If it is not after many of them, it is not measurable here, and no number is printed.
What counts as many depends on how long they take: small models are the ones that a busy machine disturbs most.

A method saves calls and nothing else, so it cannot be faster than the full run by more than the ratio of the calls. A
measurement that says otherwise has failed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

__all__ = ["LEAST_PAIRS", "NOT_MEASURABLE", "NOT_TIMED", "Pair", "Speed", "enough", "pace", "speed"]

LEAST_PAIRS, MANY_PAIRS, MOST_PAIRS = 5, 15, 60
SECONDS = 20.0  # within which more than `MANY_PAIRS` are run
KNOWN = 0.05  # the half-width of its interval, as a share of a speed-up that counts as known
NOT_MEASURABLE, NOT_TIMED = "not measurable here", "not timed"
TO_SIGMA = 1.4826  # the standard deviation of normal values whose median absolute deviation is 1
OF_MEDIAN = 1.2533  # the standard error of a median, in those of a mean


class Speed(NamedTuple):
    """How many times faster than the full run: the median over pairs, and the ends of its interval (two errors)."""

    median: float
    low: float
    high: float
    noisy: bool  # it is not known to 5 %, or impossible: do not print it
    pairs: int = 0

    @property
    def known(self) -> bool:
        """Whether there is a number to print."""
        return not self.noisy

    @property
    def text(self) -> str:
        """As it stands in a table."""
        return NOT_TIMED if not self.pairs else NOT_MEASURABLE if self.noisy else f"{self.median:.2f}x"


class Pair(NamedTuple):
    """A full run and a run of a method, one after the other: seconds of their loops, and calls."""

    full: float
    full_calls: float
    own: float
    calls: float
    memory: int | None = None


def enough(run: Callable[[int], Pair], clock: Callable[[], float] = time.monotonic) -> list[Pair]:
    """Pairs until their ratio is known: 15 at most, and where they are quick 60 within 20 seconds.

    Args:
        run: makes the pair of a number; the first one, number 0, only warms up.
        clock: seconds.
    """
    run(0)
    begin, found = clock(), list[Pair]()
    while len(found) < MANY_PAIRS or (len(found) < MOST_PAIRS and clock() - begin < SECONDS):
        found.append(run(len(found) + 1))
        if len(found) >= LEAST_PAIRS and pace(found).known:
            break
    return found


def pace(pairs: Sequence[Pair]) -> Speed:
    """The speed-up that pairs tell."""
    full, full_calls, own, calls, _ = zip(*pairs, strict=True)
    return speed(own, calls, full, full_calls)


def speed(
    seconds: Sequence[float], calls: Sequence[float], full_seconds: Sequence[float], full_calls: Sequence[float]
) -> Speed:
    """The speed-up from pairs of runs.

    Args:
        seconds: of the method's loop, in each pair.
        calls: its model calls.
        full_seconds: of the full run's loop, in each pair.
        full_calls: its model calls.
    """
    if not seconds:
        return Speed(1.0, 1.0, 1.0, noisy=True)
    ratios = [full / own for full, own in zip(full_seconds, seconds, strict=True)]
    allowed = median(most / n for most, n in zip(full_calls, calls, strict=True))
    middle = median(ratios)
    apart = median(abs(ratio - middle) for ratio in ratios)
    half = 2 * OF_MEDIAN * TO_SIGMA * apart / math.sqrt(len(ratios)) / middle
    impossible = middle * (1 - max(half, 0.01)) > allowed  # within its uncertainty it may be what the calls allow
    noisy = len(ratios) < LEAST_PAIRS or half > KNOWN or impossible
    best = min(middle, allowed)
    return Speed(best, min(best, middle * (1 - half)), min(middle * (1 + half), allowed), noisy, len(ratios))
