"""A comparison as a value: what was measured, of which method, at which budget, and how. A versioned JSON file."""

from __future__ import annotations

import os
from pathlib import Path
from statistics import median
from typing import Annotated, Literal

from pydantic import Field, Strict, field_validator

from budcache.aggregate import Care
from budcache.comparison.entry import CLOSE, FULL, Entry, Measure, Name, Number, Samples
from budcache.comparison.methods import OURS
from budcache.errors import PolicyError
from budcache.policy import Origin
from budcache.storage.files import read_json, write_json
from budcache.storage.schema import Count, Seed, Text, Value
from budcache.wording import listed, quote

__all__ = ["READABLE", "VERSION", "Comparison", "Conditions", "LeftOut", "Tried"]

VERSION = 4
READABLE = (2, 3, 4)
MOST = 2_000  # rows, metrics and budgets: more than anybody compares, and read within a second


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
    care: Care = "typical"  # what our searches and the choice of others' settings went by
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
                f"{listed([*map(str, READABLE)])}; compare again"
            )
        # Version 2 lacks call-equivalents, second settings and timed pairs, which may all be missing; version 3 differs
        # in how L2P's settings were chosen.
        return VERSION

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
        """Seconds of an entry's denoising loop: those of a full run, in all pairs, divided by the entry's speed-up.

        Rows were timed at different times, and their own seconds tell how fast the machine was then. None where nobody
        was timed, or the speed-up is not known.
        """
        told = any(each.timed and each.speed.known for each in self.entries) if entry.method == FULL else entry.timed
        full = [each for one in self.entries for each in (one, one.second) if each is not None and each.timed_seconds]
        if not full or not told or not entry.speed.known:
            return None
        return median(seconds for each in full for seconds in each.full_seconds) / entry.speedup

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
