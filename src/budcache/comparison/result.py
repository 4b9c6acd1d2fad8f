"""A comparison as a value: what was measured, of which method, at which budget, and how. A versioned JSON file."""

from __future__ import annotations

import os
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, Strict, field_validator

from budcache.comparison.methods import OURS
from budcache.comparison.timing import Speed, speed
from budcache.errors import PolicyError
from budcache.mask import Mask
from budcache.metrics.base import Summary, summary
from budcache.policy import Origin
from budcache.storage.files import read_json, write_json
from budcache.storage.schema import Count, MaskField, Number, Numbers, Seed, Text, Value
from budcache.wording import quote

if TYPE_CHECKING:
    from budcache.metrics import Metric

__all__ = ["FULL", "VERSION", "Comparison", "Conditions", "Entry", "LeftOut", "Measure", "Tried"]

VERSION = 2
FULL = "full"
MAX_SAMPLES = 100_000
SLACK = 0.25  # calls that a threshold may be off on average: it was set on other prompts


class Measure(Value):
    """What a reader has to know of a metric."""

    name: Text
    title: Text
    unit: Text = ""
    digits: Annotated[int, Strict(), Field(ge=0, le=12)] = 3
    higher: Annotated[bool, Strict()] = True  # is better
    reference: Annotated[bool, Strict()] = True  # compares with the full run

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


class Entry(Value):
    """One method at one budget: everything per sample, in the order of the prompts."""

    method: Text
    title: Text
    budget: Count  # that was asked for; a method with a threshold may make more calls or fewer
    calls: Annotated[tuple[Annotated[Count, Field(ge=1)], ...], Samples]
    seconds: Annotated[tuple[Annotated[Number, Field(gt=0)], ...], Samples]
    full_seconds: Annotated[tuple[Annotated[Number, Field(gt=0)], ...], Samples]  # of full runs timed in between
    full_calls: Annotated[tuple[Annotated[Count, Field(ge=1)], ...], Samples]  # of these full runs
    masks: Annotated[tuple[MaskField, ...], Samples]  # of the steps that ran: image-to-image may start midway
    values: dict[str, Numbers] = Field(default_factory=dict)  # by metric, once measured
    knob: Text | None = None  # what it was tuned to
    learned_on: Count | None = None  # samples that it was searched, fitted or tuned on, where that is known

    def _check(self) -> None:
        for name, row in {"seconds": self.seconds, "masks": self.masks, **self.values}.items():
            if len(row) != len(self.calls):
                raise ValueError(f"{self.method} has calls of {len(self.calls)} samples but {name} of {len(row)}")
        if len(self.full_seconds) != len(self.full_calls) or len(self.full_seconds) > len(self.calls):
            raise ValueError(
                f"{self.method} has {len(self.full_seconds)} times and {len(self.full_calls)} calls of full runs; "
                "give as many of both, and not more than there are samples"
            )

    @property
    def mean_calls(self) -> float:
        """Model calls per sample, on average."""
        return sum(self.calls) / len(self.calls)

    @property
    def calls_text(self) -> str:
        """The calls as people read them: one number, or the mean and the range."""
        low, high = min(self.calls), max(self.calls)
        return str(low) if low == high else f"{self.mean_calls:.1f} ({low}-{high})"

    @property
    def latency(self) -> float:
        """Seconds per sample: the median."""
        return median(self.seconds)

    @property
    def full_latency(self) -> float:
        """Seconds of the full runs that were timed in between: the median."""
        return median(self.full_seconds)

    @property
    def speed(self) -> Speed:
        """How many times faster than these full runs, and how sure that is; the full run itself is the measure."""
        if self.method == FULL:
            return Speed(1.0, 1.0, 1.0, noisy=False)
        return speed(self.seconds, self.calls, self.full_seconds, self.full_calls)

    @property
    def speedup(self) -> float:
        """How many times faster than the full run, typically."""
        return self.speed.median

    @property
    def usual_mask(self) -> Mask:
        """The mask that most samples had."""
        return max(self.masks, key=self.masks.count)

    def summed(self, measure: Measure) -> Summary | None:
        """Mean, standard error, bad tail and worst of a metric; None where it was not measured or does not apply."""
        found = self.values.get(measure.name)
        return summary(found, measure.higher) if found else None


class LeftOut(Value):
    """A method that could not take part, and why."""

    method: Text
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
    budgets: Annotated[tuple[Count, ...], Field(min_length=1)]
    prompts: Annotated[tuple[str, ...], Samples]  # a title for each sample: its prompt, if it has one
    seed: Seed | None = None  # of the first sample's noise, the next ones count up; None: samples bring their own
    calibration: Count  # samples that were there to search and tune on
    policies: tuple[Text, ...] = ()  # methods that are ladders which the user brought
    device: Text
    threads: Count
    dtype: Text


class Comparison(Conditions):
    """Methods side by side at the same budgets, on prompts and seeds that none of them was made on."""

    kind: Literal["comparison"] = "comparison"
    version: Annotated[int, Strict()] = VERSION
    measures: tuple[Measure, ...]
    entries: Annotated[tuple[Entry, ...], Field(min_length=1)]
    left_out: tuple[LeftOut, ...] = ()
    warnings: tuple[Text, ...] = ()  # sentences on values that are missing
    history: tuple[Tried, ...] = ()  # of our search, where there was one

    @field_validator("version")
    @classmethod
    def _known_version(cls, version: int) -> int:
        if version != VERSION:
            raise ValueError(
                f"this is a comparison of version {quote(version)}, but this budcache reads version {VERSION}; "
                "compare again"
            )
        return version

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
        """Those at a budget that kept to it: a method that makes more calls is shown, but does not compete."""
        return [entry for entry in self.at(budget) if entry.mean_calls <= budget + SLACK]

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
