"""Speed-ups that can be believed: pairs of a full run and a run of the method, in the same round.

What is compared is the denoising loop, without text encoders and decoder, which no method touches. A pair sees the same
machine, so its ratio does not drift; and the median of the ratios is not moved by a few disturbed pairs. Its 95 %
interval lies between two of the ratios in order of size, which holds whatever the noise is like. If one looks often
enough, an interval is narrow by luck, so one look is not enough: the ratio is known when the interval is within 5 % at
two looks, five pairs apart. If that does not come to pass after many pairs, it is not measurable here, and no number is
printed. What counts as many depends on how long they take: small models are the ones that a busy machine disturbs most.

A method saves calls and nothing else, so it cannot be faster than the full run by more than the ratio of the calls. A
measurement that says otherwise has failed. One that says so only within its interval has found the ratio of the calls.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

__all__ = [
    "LEAST_PAIRS",
    "MANY_PAIRS",
    "NOT_MEASURABLE",
    "NOT_TIMED",
    "Pair",
    "Speed",
    "between",
    "enough",
    "pace",
    "speed",
]

LEAST_PAIRS, MANY_PAIRS, MOST_PAIRS = 20, 30, 90
LOOK = 5  # pairs from one look to the next
SECONDS = 30.0  # a method, within which more than `MANY_PAIRS` are run
KNOWN = 0.05  # the half-width of its interval, as a share of a speed-up that counts as known
NOT_MEASURABLE, NOT_TIMED = "not measurable here", "not timed"
FEW = 3  # pairs of runs with as many calls, of which a median tells something
BEYOND = 0.01  # by which an interval may lie above what the calls allow: machines repeat themselves no better
CHANCE = 0.05  # that the true median is outside of its interval


class Speed(NamedTuple):
    """How many times faster than the full run: the median over pairs, and the ends of its 95 % interval."""

    median: float
    low: float
    high: float
    noisy: bool  # it is not known to 5 %, or impossible: do not print it
    pairs: int = 0
    capped: bool = False  # pairs tell a little more than the calls allow, so it is at most what they allow

    @property
    def known(self) -> bool:
        """Whether there is a number to print."""
        return not self.noisy

    @property
    def text(self) -> str:
        """As it stands in a table."""
        return NOT_TIMED if not self.pairs else NOT_MEASURABLE if self.noisy else f"{self.at_most}{self.median:.2f}x"

    @property
    def at_most(self) -> str:
        """What stands before the number where it is a bound."""
        return "≤" if self.capped else ""


class Pair(NamedTuple):
    """A full run and a run of a method, soon after each other: seconds of their loops, calls, and peak memory."""

    full: float
    full_calls: float
    own: float
    calls: float
    memory: int | None = None  # of the method's run
    full_memory: int | None = None


def enough(
    run: Callable[[int, Sequence[int]], Sequence[Pair]],
    count: int = 1,
    clock: Callable[[], float] = time.monotonic,
    made: Sequence[Sequence[float]] = (),
) -> list[list[Pair]]:
    """Pairs of methods with the same full runs until every ratio is known: 30 at most, and where they are quick 90.

    Quick is within 30 seconds a method. A method whose ratio is known takes no part in later rounds.

    Args:
        run: makes the round of a number for the methods with these numbers, a pair of each; round 0 only warms up.
        count: how many methods there are.
        clock: seconds.
        made: the calls of each method on all samples, if they may be others than on those that are timed.
    """
    left = list(range(count))
    run(0, left)
    begin, turn, found = clock(), 0, [list[Pair]() for _ in left]
    while left and (turn < MANY_PAIRS or (turn < MOST_PAIRS and clock() - begin < SECONDS * count)):
        turn += 1
        for number, pair in zip(left, run(turn, left), strict=True):
            found[number].append(pair)
        if turn >= LEAST_PAIRS and turn % LOOK == 0:
            left = [number for number in left if not pace(found[number], made[number] if made else ()).known]
    return found


def pace(pairs: Sequence[Pair], made: Sequence[float] = ()) -> Speed:
    """The speed-up that pairs tell; see `speed`."""
    full, full_calls, own, calls, *_ = zip(*pairs, strict=True)
    return speed(own, calls, full, full_calls, made)


def speed(
    seconds: Sequence[float],
    calls: Sequence[float],
    full_seconds: Sequence[float],
    full_calls: Sequence[float],
    made: Sequence[float] = (),
) -> Speed:
    """The speed-up from pairs of runs.

    Args:
        seconds: of the method's loop, in each pair.
        calls: its model calls.
        full_seconds: of the full run's loop, in each pair.
        full_calls: its model calls.
        made: the method's calls on all samples, of which only some are timed: the speed-up is that of these.
    """
    if not seconds:
        return Speed(1.0, 1.0, 1.0, noisy=True)
    ratios = [full / own for full, own in zip(full_seconds, seconds, strict=True)]
    counts = Counter(made or calls)
    allowed = sum(full_calls) / len(full_calls) * counts.total() / sum(n * count for n, count in counts.items())
    earlier = ratios[:-LOOK] or ratios, calls[:-LOOK] or calls
    whole, before = _typical(ratios, calls, counts), _typical(*earlier, counts)
    impossible = whole.low > allowed * (1 + BEYOND) or whole.middle > allowed * (1 + KNOWN / 2)
    noisy = len(ratios) < LEAST_PAIRS or not (whole.narrow and before.narrow) or impossible
    best, capped = min(whole.middle, allowed), whole.middle > allowed
    return Speed(best, min(best, whole.low), max(best, min(whole.high, allowed)), noisy, len(ratios), capped)


def between(one: Speed, other: Speed, share: float) -> Speed:
    """The speed-up of a method that runs by the second of two settings in this share of its runs: times add up."""

    def mixed(first: float, second: float) -> float:
        return 1 / ((1 - share) / first + share / second)

    middle, low, high = (mixed(*ends) for ends in zip(one[:3], other[:3], strict=True))
    pairs, capped = min(one.pairs, other.pairs), one.capped or other.capped
    return Speed(middle, low, high, one.noisy or other.noisy, pairs, capped)


class _Typical(NamedTuple):
    """A typical ratio, the ends of its 95 % interval, and whether these are within 5 % of it."""

    middle: float
    low: float
    high: float
    narrow: bool


def _typical(ratios: Sequence[float], calls: Sequence[float], counts: Mapping[float, int]) -> _Typical:
    """The ratio over runs whose calls may differ from sample to sample; `counts` has how many runs make so many.

    Runs of as many calls have a median of their own, and in their proportions times add up: the median over all would
    be that of the commonest number of calls. What was hardly timed, or never, lies on a straight line between others.
    How far pairs scatter is told by all of them together, each beside what is typical of its calls; every further
    median takes a pair away, and with few pairs to a median nothing is known.
    """
    groups = {n: [ratio for ratio, own in zip(ratios, calls, strict=True) if own == n] for n in sorted(set(calls))}
    like = {n: median(group) for n, group in groups.items() if len(group) >= FEW} or {
        n: median(group) for n, group in groups.items()
    }
    # Times in units of the full run's, which are straight in the calls where ratios are not.
    times = {n: float(np.interp(n, list(like), [1 / ratio for ratio in like.values()])) for n in {*counts, *groups}}
    middle = sum(counts.values()) / sum(count * times[n] for n, count in counts.items())
    low, high = _interval([ratio * times[n] for ratio, n in zip(ratios, calls, strict=True)])
    wider = len(calls) / (len(calls) - len(like) + 1)
    below, above = (1 - low) * wider, (high - 1) * wider
    narrow = max(below, above) <= KNOWN and len(calls) >= FEW * len(groups)
    return _Typical(middle, middle * max(1 - below, 0), middle * (1 + above), narrow)


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the median: as many values are outside of it as chance seldom puts on one side of it."""
    ordered, count, outside, tail = sorted(values), len(values), 0, 0.5 ** len(values)
    while 2 * tail <= CHANCE:
        outside += 1
        tail += math.comb(count, outside) * 0.5**count
    outside = max(outside - 1, 0)
    return ordered[outside], ordered[-1 - outside]
