"""What the folder of a comparison holds, read: also while the comparison is running, and without its pipeline.

`drawn.jsonl` has a line for each method at a budget that was drawn, or left out and why; `measured.jsonl` a line for
each metric of such an entry. Both lines have the drawing's id, so that lines can be removed by hand without values
coming to stand beside other drawings. `folder.py` writes them.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any

from budcache.aggregate import Care
from budcache.comparison.entry import BESIDE, FULL, Entry
from budcache.comparison.result import READABLE, VERSION, Conditions, LeftOut
from budcache.errors import BudcacheWarning, FileError, PolicyError
from budcache.metrics import METRICS
from budcache.storage.journal import whole_lines
from budcache.wording import quote

__all__ = [
    "DRAWN",
    "MEASURED",
    "Drawn",
    "Kept",
    "Key",
    "aside_of",
    "check_format",
    "compares",
    "drawn_in",
    "header",
    "not_finite",
    "of_the_folder",
    "picture",
    "place",
    "put_aside",
]

DRAWN, MEASURED, OLD = "drawn.jsonl", "measured.jsonl", "comparison.jsonl"
Key = tuple[str, int]  # a method and a budget


@dataclass(frozen=True)
class Drawn:
    """An entry whose samples are in the folder."""

    entry: Entry  # without values
    made_of: str  # a fingerprint of the policy, where one was given
    id: str  # it tells this drawing from another one of the same method and budget

    @property
    def key(self) -> Key:
        """The method and the budget."""
        return self.entry.method, self.entry.budget


class Kept:
    """What a comparison's folder holds.

    Attributes:
        conditions: on what is compared; None if nothing has begun.
        methods: what the last comparison in this folder was asked for, in order.
        metrics: likewise.
        drawn: by method and budget.
        left_out: likewise, with the reason.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.conditions: Conditions | None = None
        self.methods, self.metrics = tuple[str, ...](), tuple[str, ...]()
        self.drawn: dict[Key, Drawn] = {}
        self.left_out: dict[Key, LeftOut] = {}
        # By id of the drawing, and metric: the values, or why there are none.
        self._measurements: dict[tuple[str, str], tuple[float, ...] | str] = {}
        self._lines: list[Drawn | None] = []  # what each line has drawn, which may not be there any more
        check_format(self.path)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Kept:
        """What is there now, also while a comparison is running."""
        kept = cls(path)
        kept._take(DRAWN, _lines(kept.path / DRAWN)[1:])
        if (kept.path / MEASURED).exists():
            kept._take(MEASURED, _lines(kept.path / MEASURED)[1:])
        return kept

    @property
    def wanted(self) -> list[Key]:
        """What was last asked for: the full run, then every method at every budget, and its second setting if drawn."""
        if self.conditions is None:
            return []
        methods = ((method, budget) for method in self.methods for budget in self.conditions.budgets)
        found = [(FULL, self.conditions.steps)]
        for method, budget in methods:
            found += [(method, budget), *[(BESIDE + method, budget)] * ((BESIDE + method, budget) in self.drawn)]
        return found

    def values(self, drawn: Drawn) -> dict[str, tuple[float, ...]]:
        """What was measured on an entry, by metric."""
        return {metric: row for metric, row in self._of(drawn) if isinstance(row, tuple)}

    def failures(self, drawn: Drawn) -> dict[str, str]:
        """Why metrics have no values on an entry although they were asked for, by metric, as a clause."""
        return {metric: why for metric, why in self._of(drawn) if isinstance(why, str)}

    def missing(self, drawn: Drawn) -> list[str]:
        """The metrics that were asked for and are not measured on an entry."""
        known = set(self.values(drawn))
        if self.lost(drawn) is not None:
            known |= set(self.failures(drawn))  # to be tried again only where that can be
        # The full run is what others are compared with, so it is not compared with itself.
        return [name for name in self.metrics if name not in known and not (drawn.key[0] == FULL and compares(name))]

    def lost(self, drawn: Drawn) -> Path | None:
        """The first of an entry's samples that is not there: they may be removed once they are measured."""
        samples = (self._sample(*drawn.key, number) for number in range(len(drawn.entry.calls)))
        return next((sample for sample in samples if not sample.exists()), None)

    def _sample(self, method: str, budget: int, number: int) -> Path:
        return place(self.path / "samples", method, budget) / f"{number:03d}.npy"

    def _of(self, drawn: Drawn) -> list[tuple[str, tuple[float, ...] | str]]:
        return [(metric, found) for (drawing, metric), found in self._measurements.items() if drawing == drawn.id]

    def _take(self, name: str, lines: Iterable[Mapping[str, Any]]) -> None:
        for line in lines:
            try:
                (self._take_drawn if name == DRAWN else self._take_measured)(line)
            except (ValueError, TypeError, KeyError, OverflowError, AttributeError, RecursionError):
                raise FileError(
                    f"{self.path / name} has a line that cannot be used: {quote(line)}. Remove the line or the folder."
                ) from None

    def _take_drawn(self, line: Mapping[str, Any]) -> None:
        drawn = None
        if "conditions" in line:
            self.conditions = Conditions.model_validate(line["conditions"])
            self.methods, self.metrics = _names(line["methods"]), _names(line["metrics"])
        elif "left out" in line:
            out = LeftOut.model_validate(line["left out"])
            for budget in out.budgets:
                self.left_out[out.method, budget] = out
                self.drawn.pop((out.method, budget), None)
        elif "removed" in line:
            self.drawn.pop(tuple(line["removed"]), None)
        else:
            entry = Entry.model_validate(line["entry"])
            drawn = Drawn(entry, str(line["made of"]), str(line.get("id") or _digest(line)))
            self.drawn[entry.method, entry.budget] = drawn
            self.left_out.pop((entry.method, entry.budget), None)
        self._lines.append(drawn)

    def _take_measured(self, line: Mapping[str, Any]) -> None:
        drawn = self._measured_on(line)
        if drawn is None:
            return
        found = str(line["failed"]) if "failed" in line else tuple(map(float, line["values"]))
        if isinstance(found, tuple):
            found = not_finite(found) or found  # folders used to hold nan as a value
        self._measurements[drawn.id, str(line["metric"])] = found

    def _measured_on(self, line: Mapping[str, Any]) -> Drawn | None:
        """The drawing that a line of values is about; None if that was removed."""
        key = str(line["method"]), int(line["budget"])
        if "id" not in line:
            # Values used to be tied to a line's number, which is another one where lines before it were removed.
            number = int(line["line"])
            there = self._lines[number - 1] if 0 < number <= len(self._lines) else None
            return there if there is not None and there.key == key else None
        found = next((drawn for drawn in self._lines if drawn is not None and drawn.id == line["id"]), None)
        if found is not None and found.key != key:
            raise ValueError("the id is that of another method or budget")
        return found


def drawn_in(
    path: str | os.PathLike[str],
    steps: int,
    prompts: Sequence[str],
    seed: int,
    calibration: int,
    care: Care,
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> dict[Key, Drawn]:
    """The rows that a folder has drawn for a comparison with the same of these; `settings` are size and guidance.

    Of the prompts to learn on only the number is known here. A folder that would be refused for what else a comparison
    depends on (the pipeline's weights, the batch) is still counted.
    """
    path = Path(path)
    if not (path / DRAWN).exists() or header(path)["format"] != VERSION:
        return {}
    kept = Kept.read(path)
    its = kept.conditions
    wanted = (steps, tuple(prompts), seed, calibration, care)
    if its is None or (its.steps, its.prompts, its.seed, its.calibration, its.care) != wanted:
        return {}
    if any(value is not None and getattr(its.origin, name) != value for name, value in settings.items()):
        return {}
    return kept.drawn


@contextmanager
def of_the_folder() -> Iterator[None]:
    """A file of the folder that cannot be used ends the comparison: it is no reason to leave a method out."""
    try:
        yield
    except PolicyError as error:
        fact = str(error).split(". ")[0]
        raise FileError(f"{fact}. Remove it, and what it held is made again; or choose another place.") from None


def aside_of(file: Path) -> Path:
    """A name beside a file that nothing has yet."""
    names = (file.with_name(f"{file.stem}.other{number}{file.suffix}") for number in ("", *range(2, 1000)))
    return next(name for name in names if not name.exists())


def put_aside(file: Path, fact: str, then: str) -> None:
    """Rename a file that is not of this comparison and may have cost much, and say so."""
    aside = aside_of(file)
    file.replace(aside)
    warnings.warn(f"{file} {fact}. It is now {aside.name}, and {then}.", BudcacheWarning, stacklevel=2)


def compares(metric: str) -> bool:
    """Whether a metric compares with the full run; one that this budcache does not know counts as if it did."""
    return metric not in METRICS or METRICS[metric].reference


def header(path: Path) -> dict[str, Any]:
    """What a folder's comparison is of: its format, model, samples, steps and seeds."""
    found: dict[str, Any] = _lines(path / DRAWN)[0]["comparison"]
    return found


def picture(folder: Path, method: str, budget: int, number: int) -> Path:
    """Where a method's picture of a sample lies in a comparison's folder."""
    return place(folder / "pictures", method, budget) / f"{number:03d}.png"


def place(folder: Path, method: str, budget: int) -> Path:
    """A folder of its own for each method and budget."""
    name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in method)
    if name != method:  # two names may look alike without their odd letters
        name += f"-{hashlib.sha256(method.encode()).hexdigest()[:6]}"
    return folder / f"{name}-{budget}"


def check_format(path: Path) -> None:
    """Refuse a folder of the first format."""
    if (path / OLD).exists():
        raise FileError(
            f"{path} holds a comparison of format 1, which kept no samples to measure again; this budcache writes "
            f"format {VERSION}. Choose another place, or remove that folder."
        )


def _names(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
        raise ValueError("names are a list of texts")
    return tuple(values)


def not_finite(values: Sequence[float]) -> str | None:
    """Which of the values cannot be used, as a clause; None if all can."""
    return next((f"sample {i} measures {value}" for i, value in enumerate(values) if not isfinite(value)), None)


def _digest(line: Mapping[str, Any]) -> str:
    """An id for a drawing that was written down without one: the same wherever its line stands."""
    return hashlib.sha256(json.dumps(line, sort_keys=True).encode()).hexdigest()[:32]


def _lines(path: Path) -> list[dict[str, Any]]:
    """What a journal of a comparison holds, without taking it over."""
    try:
        lines = [json.loads(line) for line in whole_lines(path)]
        if dict(lines[0]["comparison"])["format"] not in READABLE:
            raise ValueError
        return [dict(line) for line in lines]
    except FileNotFoundError:
        raise FileError(f"there is no comparison in {path.parent}. Name the folder of one.") from None
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}. Name the folder of a comparison.") from None
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        raise FileError(f"{path} is not the record of a comparison. Name the folder of one.") from None
