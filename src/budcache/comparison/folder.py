"""The folder of a comparison: all that is finished is written down at once, so that a killed comparison goes on.

`drawn.jsonl` has a line for each method at a budget that was drawn, or left out and why; `measured.jsonl` a line for
each metric of such an entry. So a new metric draws nothing, and a new method or budget measures only what is new. Both
lines have the drawing's id, so that lines can be removed by hand without values coming to stand beside other drawings.
Samples lie in `samples/` as numbers, which metrics are computed from, and in `pictures/` for people.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from budcache.comparison.result import BESIDE, FULL, READABLE, VERSION, Conditions, Entry, LeftOut
from budcache.errors import FileError
from budcache.metrics import METRICS
from budcache.metrics.base import Frame
from budcache.storage import media
from budcache.storage.files import replacing
from budcache.storage.journal import Journal, whole_lines
from budcache.wording import quote

__all__ = ["Drawn", "Folder", "Kept", "compares", "drawn_in", "picture", "unusable"]

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
        _check_format(self.path)

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
        return _place(self.path / "samples", method, budget) / f"{number:03d}.npy"

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
            found = _not_finite(found) or found  # folders used to hold nan as a value
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


class Folder(Kept):
    """A comparison's folder while it grows; one process at a time writes to it.

    Args:
        path: the folder; made if it is not there.
        identity: what determines the pictures: model, samples, steps, seeds. A folder of another comparison is refused.
    """

    def __init__(self, path: str | os.PathLike[str], identity: Mapping[str, Any]) -> None:
        super().__init__(path)
        work = {"format": VERSION, **identity}
        _check_protocol(self.path, work)
        with ExitStack() as undo:
            self._drawn, self._measured = (
                undo.enter_context(closing(Journal(self.path / name, work, kind="record", of="comparison")))
                for name in (DRAWN, MEASURED)
            )
            self._take(DRAWN, self._drawn.entries)
            self._take(MEASURED, self._measured.entries)
            self._close = undo.pop_all().close

    @classmethod
    def reopened(cls, path: str | os.PathLike[str]) -> Folder:
        """The folder of a comparison that has begun, to measure more in it."""
        _check_format(Path(path))
        header = _lines(Path(path) / DRAWN)[0]["comparison"]
        return cls(path, header)

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    # Drawing

    def begin(self, conditions: Conditions, methods: Sequence[str], metrics: Sequence[str]) -> None:
        """Write down what is asked for now, where that is news."""
        if (conditions, tuple(methods), tuple(metrics)) != (self.conditions, self.methods, self.metrics):
            facts = conditions.model_dump(mode="json", exclude_none=True)
            self._note_drawn({"conditions": facts, "methods": list(methods), "metrics": list(metrics)})

    def find(self, method: str, budget: int, made_of: str) -> Drawn | None:
        """A finished entry, if it was made of the same thing."""
        found = self.drawn.get((method, budget))
        return found if found is not None and found.made_of == made_of else None

    def remove(self, method: str, budget: int) -> None:
        """Forget an entry before its samples are drawn over."""
        if (method, budget) in self.drawn:
            self._note_drawn({"removed": [method, budget]})

    def add(self, entry: Entry, made_of: str, drawing: str | None = None) -> None:
        """Write a finished entry down; with the id of its drawing, what was measured on that stays."""
        facts = entry.model_dump(mode="json", exclude_none=True)
        self._note_drawn({"id": drawing or uuid4().hex, "made of": made_of, "entry": facts})

    def leave_out(self, method: str, title: str, budget: int, reason: str) -> None:
        """Write down that a method could not take part, and why."""
        out = LeftOut(method=method, title=title, budgets=(budget,), reason=reason)
        if self.left_out.get((method, budget)) != out:
            self._note_drawn({"left out": out.model_dump(mode="json")})

    def _note_drawn(self, line: dict[str, Any]) -> None:
        self._drawn.write(line)
        self._take_drawn(line)

    # Samples

    def keep(self, method: str, budget: int, number: int, sample: Frame) -> None:
        """Write a sample: its numbers, a picture, and of a video the middle frame and all of them.

        Half precision is off by at most 2.4e-4, an eighth of what a picture's 256 levels are off by.
        """
        target, shown = self._sample(method, budget, number), picture(self.path, method, budget, number)
        try:
            with replacing(target) as temporary:  # on the disk before the line that says so
                np.save(temporary, np.asarray(sample, np.float16))
            frames = [media.to_picture(frame) for frame in (sample[None] if sample.ndim == 3 else sample)]
            media.save(frames[len(frames) // 2], shown)
            if sample.ndim == 4:
                media.save(frames, shown.with_suffix(".webp"), (self.conditions and self.conditions.fps) or media.FPS)
        except FileError as error:
            fact = str(error).removesuffix(" Choose another place.")
            raise FileError(
                f"{fact} What was finished is kept; make room and compare again, or choose another place."
            ) from None

    def discard(self, method: str, budget: int) -> None:
        """Remove samples that nothing is to be measured on."""
        for place in ("samples", "pictures"):
            shutil.rmtree(_place(self.path / place, method, budget), ignore_errors=True)

    def sample(self, method: str, budget: int, number: int) -> Frame:
        """A sample as it was kept, with values from 0 to 1."""
        source = self._sample(method, budget, number)
        try:
            return np.asarray(media.numbers(source), np.float32)
        except FileError:
            raise unusable(source) from None

    # Measuring

    def note(self, drawn: Drawn, metric: str, values: Sequence[float]) -> None:
        """Write down what a metric measured on an entry, or that it measured something that is not a number."""
        method, budget = drawn.key
        line: dict[str, Any] = {"id": drawn.id, "method": method, "budget": budget, "metric": metric}
        failed = _not_finite(values)
        if failed is not None and self.failures(drawn).get(metric) == failed:
            return  # tried again, with the same outcome
        line |= {"values": list(values)} if failed is None else {"failed": failed}
        self._measured.write(line)
        self._take_measured(line)


def drawn_in(
    path: str | os.PathLike[str], steps: int, prompts: Sequence[str], seed: int, calibration: int
) -> dict[Key, Drawn]:
    """The rows that a folder has drawn for a comparison with these steps, prompts, first seed and prompts to learn on.

    Of the last only the number is known here. A folder that would be refused for what else a comparison depends on (the
    pipeline's weights and size, the batch) is still counted.
    """
    path = Path(path)
    if not (path / DRAWN).exists() or _lines(path / DRAWN)[0]["comparison"]["format"] != VERSION:
        return {}
    kept = Kept.read(path)
    its = kept.conditions
    if its is None or (its.steps, its.prompts, its.seed, its.calibration) != (
        *(steps, tuple(prompts), seed, calibration),
    ):
        return {}
    return kept.drawn


def compares(metric: str) -> bool:
    """Whether a metric compares with the full run; one that this budcache does not know counts as if it did."""
    return metric not in METRICS or METRICS[metric].reference


def unusable(sample: Path) -> FileError:
    """The error for a sample that is needed and cannot be read."""
    return FileError(
        f"{sample} is missing or damaged, so nothing more can be measured on it. Compare in another place, or leave "
        "the new metrics out."
    )


def _check_format(path: Path) -> None:
    if (path / OLD).exists():
        raise FileError(
            f"{path} holds a comparison of format 1, which kept no samples to measure again; this budcache writes "
            f"format {VERSION}. Choose another place, or remove that folder."
        )


def _check_protocol(path: Path, work: Mapping[str, Any]) -> None:
    """Refuse to go on with what was drawn by other rules: its rows would stand beside new ones as if they were fair."""
    if not (path / DRAWN).exists() or work["format"] != VERSION:
        return
    try:
        old = _lines(path / DRAWN)[0]["comparison"]["format"]
    except FileError:
        return  # the journal says what is wrong with it
    if old != VERSION:
        raise FileError(
            f"{path} holds a comparison of format {old}, in which other methods had fewer of their settings chosen. It "
            "can still be shown (--show-only); to compare by the rules of now, choose another place."
        )


def picture(folder: Path, method: str, budget: int, number: int) -> Path:
    """Where a method's picture of a sample lies in a comparison's folder."""
    return _place(folder / "pictures", method, budget) / f"{number:03d}.png"


def _place(folder: Path, method: str, budget: int) -> Path:
    """A folder of its own for each method and budget."""
    name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in method)
    if name != method:  # two names may look alike without their odd letters
        name += f"-{hashlib.sha256(method.encode()).hexdigest()[:6]}"
    return folder / f"{name}-{budget}"


def _names(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
        raise ValueError("names are a list of texts")
    return tuple(values)


def _not_finite(values: Sequence[float]) -> str | None:
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
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}. Name the folder of a comparison.") from None
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        raise FileError(f"{path} is not the record of a comparison. Name the folder of one.") from None
