"""A comparison as a value: what was measured, of which method, at which budget, and how. A versioned JSON file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, Strict, field_validator

from budcache.comparison.methods import OURS
from budcache.comparison.timing import Speed, between, speed
from budcache.errors import PolicyError
from budcache.mask import Mask
from budcache.metrics.base import Summary, summary
from budcache.policy import Origin
from budcache.storage.files import read_json, write_json
from budcache.storage.schema import Count, MaskField, Seed, Text, Value
from budcache.storage.schema import Number as Finite
from budcache.wording import quote

if TYPE_CHECKING:
    from budcache.metrics import Metric

__all__ = ["CLOSE", "FULL", "VERSION", "Comparison", "Conditions", "Entry", "LeftOut", "Measure", "Tried"]

VERSION = 3
READABLE = (2, 3)
FULL = "full"
MAX_SAMPLES = 100_000
MOST = 2_000  # rows, metrics and budgets: more than anybody compares, and read within a second
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

    def written(self, value: float, digits: int | None = None) -> str:
        """A value as people read it, without its unit."""
        return f"{value:.{self.digits if digits is None else digits}f}"

    def spoken(self, value: float, error: float | None = None) -> str:
        """A value as it stands in a sentence: fewer digits, its standard error if it has one, and its unit."""
        digits = 1 if self.unit == "dB" else min(self.digits, 3)
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
        return self._between(self.calls, self.second.calls if self.second else ())

    @property
    def falls_short(self) -> bool:
        """Whether its settings make fewer calls than the budget, and none that was found makes more."""
        return self.knob is not None and self.mean_calls < self.budget - CLOSE

    @property
    def mean_equivalents(self) -> float | None:
        """The same with probes and partial passes counted by their share of the network's operations."""
        if not self.equivalents or (self.second is not None and not self.second.equivalents):
            return None
        return self._between(self.equivalents, self.second.equivalents if self.second else ())

    @property
    def share(self) -> float:
        """How much the second setting counts: as much as takes the two of them to the budget, in calls."""
        if self.second is None:
            return 0.0
        mine, other = (sum(each.calls) / len(each.calls) for each in (self, self.second))
        return min(max((self.budget - mine) / (other - mine), 0.0), 1.0) if other != mine else 0.0

    def quality(self, measure: str) -> Numbers | None:
        """A metric of every sample at the budget: between the two settings, where there are two."""
        mine, other = self.values.get(measure), self.second and self.second.values.get(measure)
        if not mine or self.second is None:
            return mine or None
        share = self.share
        return tuple((1 - share) * one + share * two for one, two in zip(mine, other, strict=True)) if other else None

    def _between(self, mine: Sequence[float], other: Sequence[float]) -> float:
        first = sum(mine) / len(mine)
        return first if not other else first + self.share * (sum(other) / len(other) - first)

    @property
    def calls_text(self) -> str:
        """The calls as people read them: one number, or the mean and the range; of two settings both means."""
        low, high = min(self.calls), max(self.calls)
        mine = f"{sum(self.calls) / len(self.calls):.1f}"
        if self.second is not None:
            other = f"{sum(self.second.calls) / len(self.second.calls):.1f}"
            return " | ".join(sorted((mine, other), key=float))
        return str(low) if low == high else f"{mine} ({low}-{high})"

    @property
    def latency(self) -> float | None:
        """Seconds of the denoising loop, to the end of the pipeline: the median of the timed runs; None without any.

        Where the speed-up is not known, the machine was too busy for seconds, too.
        """
        if not self.timed_seconds or not self.speed.known:
            return None
        mine, second = median(self.timed_seconds), self.second
        return mine if second is None else (1 - self.share) * mine + self.share * median(second.timed_seconds)

    @property
    def speed(self) -> Speed:
        """How many times faster than full runs, and how sure that is; between two settings, where there are two.

        The full run itself is the measure.
        """
        if self.method == FULL:
            return Speed(1.0, 1.0, 1.0, noisy=False, pairs=1)
        full = (self.full_seconds, self.full_calls) if self.timed_seconds else ((), ())
        mine = speed(self.timed_seconds, self.timed_calls, *full)
        return mine if self.second is None else between(mine, self.second.speed, self.share)

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


class LeftOut(Value):
    """A method that could not take part, and why."""

    method: Name
    title: Text
    budgets: tuple[Count, ...]
    reason: Text


class Tried(Value):
    """One mask that the search scored: a point of its convergence."""

    budget: Count
    loss: Number
    calls: Count
    phase: Text


class Conditions(Value):
    """On what, and how, methods are compared."""

    origin: Origin  # the model, its scheduler and settings, versions
    steps: Count
    budgets: Annotated[tuple[Count, ...], Field(min_length=1, max_length=MOST, fail_fast=True)]
    prompts: Annotated[tuple[str, ...], Samples]  # a title for each sample: its prompt, if it has one
    seed: Seed | None = None  # of the first sample's noise, the next ones count up; None: samples bring their own
    calibration: Count  # samples that were there to search and tune on
    policies: tuple[Text, ...] = ()  # methods that are ladders which the user brought
    fps: Count | None = None  # frames a second at which videos are shown; pictures have none
    device: Text
    threads: Count
    dtype: Text


class Comparison(Conditions):
    """Methods side by side at the same budgets, on prompts and seeds that none of them was made on."""

    kind: Literal["comparison"] = "comparison"
    version: Annotated[int, Strict()] = VERSION
    measures: Annotated[tuple[Measure, ...], Field(max_length=MOST, fail_fast=True)]
    entries: Annotated[tuple[Entry, ...], Field(min_length=1, max_length=MOST, fail_fast=True)]
    left_out: Annotated[tuple[LeftOut, ...], Field(max_length=MOST, fail_fast=True)] = ()
    warnings: tuple[Text, ...] = ()  # sentences on values that are missing
    history: tuple[Tried, ...] = ()  # of our search, where there was one

    @field_validator("version")
    @classmethod
    def _known_version(cls, version: int) -> int:
        if version not in READABLE:
            raise ValueError(
                f"this is a comparison of version {quote(version)}, but this budcache reads versions "
                f"{' and '.join(map(str, READABLE))}; compare again"
            )
        return VERSION  # version 2 lacks call-equivalents, second settings and timed pairs, which may all be missing

    def _check(self) -> None:
        names = [(entry.method, entry.budget) for entry in self.entries]
        if len(set(names)) < len(names):
            raise ValueError("a method stands there twice at the same budget; remove one of them")
        for entry in self.entries:
            if len(entry.calls) != len(self.prompts):
                raise ValueError(
                    f"{entry.method} has {len(entry.calls)} samples, but there are {len(self.prompts)} prompts"
                )
        if self.entry(FULL, self.steps) is None:
            raise ValueError("the full run is missing; it is what the others are compared with")

    @property
    def full(self) -> Entry:
        """The full run."""
        found = self.entry(FULL, self.steps)
        assert found is not None
        return found

    @property
    def methods(self) -> dict[str, str]:
        """The methods' titles by name, the full run left out, in the order of the table."""
        return {entry.method: entry.title for entry in self.entries if entry.method != FULL}

    @property
    def ours(self) -> str | None:
        """The method to put forward: budcache's best, or a policy that was given."""
        known = [name for name in (*OURS, *self.given) if name in self.methods]
        return known[0] if known else None

    @property
    def given(self) -> list[str]:
        """Policies that the user brought: what is put forward where budcache itself was not asked to search."""
        # Comparisons that do not name them have only those of the command line, whose names begin so.
        return [name for name in self.methods if name in self.policies or name.startswith("policy:")]

    def entry(self, method: str, budget: int) -> Entry | None:
        """A method at a budget, if it took part."""
        return next((entry for entry in self.entries if (entry.method, entry.budget) == (method, budget)), None)

    def at(self, budget: int) -> list[Entry]:
        """All methods at a budget, without the full run."""
        return [entry for entry in self.entries if entry.budget == budget and entry.method != FULL]

    def within(self, budget: int) -> list[Entry]:
        """Those that met a budget, by themselves or between two settings: whoever needs more calls is shown, but
        does not compete.
        """
        return [entry for entry in self.at(budget) if entry.mean_calls <= budget + CLOSE]

    def latency(self, entry: Entry) -> float | None:
        """Seconds of an entry's denoising loop; of the full run in all the pairs that others were timed in."""
        if entry.method != FULL:
            return entry.latency
        timed = [each for one in self.entries if one.latency is not None for each in (one, one.second) if each]
        return median(seconds for each in timed for seconds in each.full_seconds) if timed else None

    def memory(self, entry: Entry) -> int | None:
        """The most that an entry's timed runs had in use; of the full run in all pairs that others were timed in."""
        rows = self.entries if entry.method == FULL else (entry,)
        both = [each for one in rows for each in (one, one.second) if each is not None]
        known = [each.full_memory if entry.method == FULL else each.memory for each in both]
        return max((size for size in known if size is not None), default=None)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the comparison as JSON; the file is replaced whole or not at all."""
        return write_json(path, self.model_dump(mode="json", exclude_none=True))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Comparison:
        """Read a comparison file."""
        data = read_json(path)
        if not isinstance(data, dict) or data.get("kind") != "comparison":
            raise PolicyError(f"{path} is not a comparison. Name the comparison.json that `budcache compare` wrote.")
        try:
            return cls.model_validate(data)
        except PolicyError as error:
            raise PolicyError(f"{path}: {error}") from None
