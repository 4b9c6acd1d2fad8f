"""A row of a comparison as a value: one method at one budget, everything per sample, and what that says together."""

from __future__ import annotations

from operator import mul
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, Strict

from budcache.aggregate import mean
from budcache.comparison.timing import Speed, between, speed
from budcache.mask import Mask
from budcache.metrics.base import Summary, summary
from budcache.storage.schema import Count, MaskField, Text, Value
from budcache.storage.schema import Number as Finite

if TYPE_CHECKING:
    from budcache.metrics import Metric

__all__ = ["BESIDE", "CLOSE", "FULL", "LARGEST", "MAX_SAMPLES", "Entry", "Measure", "Name", "Number", "Samples"]

FULL = "full"
MAX_SAMPLES = 100_000
LARGEST = 1e100  # beyond it sums of squares are not finite any more
CLOSE = 0.05  # calls from the budget, on average, that count as none
BESIDE = "beside:"  # before the name of a method whose second setting it is, in a folder


Name = Annotated[str, Strict(), Field(max_length=400)]  # stands in sentences
Number = Annotated[Finite, Field(ge=-LARGEST, le=LARGEST)]
Numbers = Annotated[tuple[Number, ...], Field(fail_fast=True)]


class Measure(Value):
    """What a reader has to know of a metric."""

    name: Text
    title: Text
    unit: Text = ""
    digits: Annotated[int, Strict(), Field(ge=0, le=12)] = 3
    higher: Annotated[bool, Strict()] = True  # is better
    reference: Annotated[bool, Strict()] = True  # compares with the full run
    moving: Annotated[bool, Strict()] = False  # is of videos alone

    @classmethod
    def of(cls, metric: Metric | type[Metric]) -> Measure:
        """The description of a metric."""
        return cls.model_validate({name: getattr(metric, name) for name in cls.model_fields})

    @property
    def tail_name(self) -> str:
        """What its bad tail is called: the 5th percentile of what should be high, the 95th of what should be low."""
        return "p5" if self.higher else "p95"

    @property
    def tail_title(self) -> str:
        """The same in words."""
        return "5th percentile" if self.higher else "95th percentile"

    def written(self, value: float, digits: int | None = None) -> str:
        """A value as people read it, without its unit."""
        return f"{value:.{self.digits if digits is None else digits}f}"

    def spoken(self, value: float, error: float | None = None) -> str:
        """A value as it stands in a sentence: fewer digits, its standard error if it has one, and its unit."""
        digits = 1 if self.unit == "dB" else self.digits
        off = "" if error is None else f" ± {self.written(error, digits)}"
        return f"{self.written(value, digits)}{off} {self.unit}".rstrip()


Samples = Field(min_length=1, max_length=MAX_SAMPLES, fail_fast=True)
# Of a run: whole, but where guidance branches decide apart a step may count by a part.
Calls = Annotated[Count, Field(ge=1)] | Annotated[Number, Field(ge=1)]


class Entry(Value):
    """One method at one budget: everything per sample, in the order of the prompts."""

    method: Name
    title: Text
    budget: Count  # that was asked for; a method with a threshold may make more calls or fewer
    calls: Annotated[tuple[Calls, ...], Samples]
    equivalents: tuple[Number, ...] = ()  # the network's operations, in units of whole calls; none where not counted
    seconds: Annotated[tuple[Annotated[Number, Field(gt=0)], ...], Samples]  # while drawing, so on a busy machine
    full_seconds: Annotated[tuple[Annotated[Number, Field(gt=0)], ...], Samples]  # of full runs' loops, in pairs with
    full_calls: Annotated[tuple[Calls, ...], Samples]
    timed_seconds: tuple[Annotated[Number, Field(gt=0)], ...] = ()  # these of the method; none where not timed
    timed_calls: tuple[Calls, ...] = ()
    before_seconds: Number | None = None  # of text encoders, for each sample
    after_seconds: Number | None = None  # and of the decoder
    memory: Count | None = None  # the most that a timed run had in use, in bytes
    full_memory: Count | None = None  # likewise of the full runs in pairs with these
    masks: Annotated[tuple[MaskField, ...], Samples]  # of the steps that ran: image-to-image may start midway
    branches: tuple[tuple[MaskField, ...], ...] = ()  # of each guidance branch, where they decided apart
    values: dict[Text, Numbers] = Field(
        default_factory=dict
    )  # by metric, once measured: of this setting, see `quality`
    knob: Text | None = None  # what it was tuned to
    learned_on: Count | None = None  # samples that it was searched, fitted or tuned on, where that is known
    learning_calls: Count | None = None  # sample-calls that this took, where that is known
    second: Entry | None = None  # the method's setting on the other side of the budget, where this one does not meet it

    def _check(self) -> None:
        for name, row in {"seconds": self.seconds, "masks": self.masks, **self.values}.items():
            if len(row) != len(self.calls):
                raise ValueError(f"{self.method} has calls of {len(self.calls)} samples but {name} of {len(row)}")
        if len(self.full_seconds) != len(self.full_calls):
            raise ValueError(
                f"{self.method} has {len(self.full_seconds)} times and {len(self.full_calls)} calls of full runs; "
                "give as many of both"
            )
        if self.branches and len(self.branches) != len(self.calls):
            raise ValueError(f"{self.method} has masks of branches of {len(self.branches)} samples, not of all")
        if self.equivalents and len(self.equivalents) != len(self.calls):
            raise ValueError(f"{self.method} has call-equivalents of {len(self.equivalents)} samples, not of all")
        if len(self.timed_seconds) != len(self.timed_calls) or len(self.timed_seconds) not in (0, len(self.full_calls)):
            raise ValueError(f"{self.method} has timed runs that are no pairs; give as many of both kinds")
        if self.second is not None and (self.second.second or len(self.second.calls) != len(self.calls)):
            raise ValueError(f"{self.method} has a second setting that does not fit the first")

    @property
    def mean_calls(self) -> float:
        """Model calls per sample, on average; between two settings, where there are two."""
        return sum(part * mean(each.calls) for each, part in self._parts)

    @property
    def falls_short(self) -> bool:
        """Whether its settings make fewer calls than the budget, and none that was found makes more."""
        return self.knob is not None and self.mean_calls < self.budget - CLOSE

    @property
    def mean_equivalents(self) -> float | None:
        """The same with probes and partial passes counted by their share of the network's operations."""
        if not all(each.equivalents for each in self.counting):
            return None
        return sum(part * mean(each.equivalents) for each, part in self._parts)

    @property
    def share(self) -> float:
        """How much the second setting counts: as much as takes the two of them to the budget, in calls."""
        if self.second is None:
            return 0.0
        mine, other = mean(self.calls), mean(self.second.calls)
        return min(max((self.budget - mine) / (other - mine), 0.0), 1.0) if other != mine else 0.0

    def quality(self, measure: str) -> Numbers | None:
        """A metric of every sample at the budget: between the two settings, where there are two."""
        rows = [each.values.get(measure) for each in self.counting]
        if not all(rows):
            return None
        parts = [part for _, part in self._parts]
        return tuple(sum(map(mul, parts, values)) for values in zip(*(row for row in rows if row), strict=True))

    @property
    def _parts(self) -> list[tuple[Entry, float]]:
        """The settings that count, with how much."""
        if len(self.counting) == 1:
            return [(self.counting[0], 1.0)]
        return [(each, self.share if each is self.second else 1 - self.share) for each in self.counting]

    @property
    def calls_text(self) -> str:
        """The calls as people read them: one number, or the mean and the range; of two settings both means."""
        means = [f"{mean(each.calls):.1f}" for each in self.counting]
        if len(means) > 1:
            return " | ".join(sorted(means, key=float))
        low, high = min(self.counting[0].calls), max(self.counting[0].calls)
        return str(low) if low == high else f"{means[0]} ({low}-{high})"

    @property
    def timed(self) -> bool:
        """Whether it was timed beside full runs."""
        return all(each.timed_seconds for each in self.counting)

    @property
    def counting(self) -> tuple[Entry, ...]:
        """The settings that its numbers are of, the nearest to the budget first: one, or two that it lies between."""
        if self.second is None or self.share == 0:
            return (self,)
        if self.share == 1:
            return (self.second,)
        return (self, self.second) if self.share <= 0.5 else (self.second, self)

    @property
    def speed(self) -> Speed:
        """How many times faster than full runs, and how sure that is; between two settings, where there are two.

        The full run itself is the measure.
        """
        if self.method == FULL:
            return Speed(1.0, 1.0, 1.0, noisy=False, pairs=1)
        if self.second is not None and self.share == 1:
            return self.second.speed
        full = (self.full_seconds, self.full_calls) if self.timed_seconds else ((), ())
        mine = speed(self.timed_seconds, self.timed_calls, *full, made=self.calls)
        return mine if self.second is None or self.share == 0 else between(mine, self.second.speed, self.share)

    @property
    def speedup(self) -> float:
        """How many times faster than the full run, typically."""
        return self.speed.median

    @property
    def made(self) -> tuple[Mask, ...]:
        """All that was computed, to draw: the samples' masks, of every branch where branches decided apart."""
        return tuple(mask for those in self.branches for mask in those) or self.masks

    @property
    def usual_mask(self) -> Mask:
        """The mask that most samples had."""
        return max(self.masks, key=self.masks.count)

    def summed(self, measure: Measure) -> Summary | None:
        """Mean, standard error, bad tail and worst of a metric; None where it was not measured or does not apply."""
        found = self.quality(measure.name)
        return summary(found, measure.higher) if found else None
