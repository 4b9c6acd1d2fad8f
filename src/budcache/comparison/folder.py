"""The folder of a comparison: all that is finished is written down at once, so that a killed comparison goes on.

A new metric draws nothing, and a new method or budget measures only what is new. Samples lie in `samples/` as numbers,
which metrics are computed from, and in `pictures/` for people. `kept.py` has the lines that say what is there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from budcache.comparison.entry import Entry
from budcache.comparison.kept import DRAWN, MEASURED, Drawn, Kept, check_format, header, not_finite, picture, place
from budcache.comparison.result import VERSION, Conditions, LeftOut
from budcache.errors import FileError
from budcache.metrics.base import Frame
from budcache.storage import media
from budcache.storage.files import replacing
from budcache.storage.journal import Journal

__all__ = ["Folder", "unusable"]


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
                undo.enter_context(
                    closing(Journal(self.path / name, work, kind="record", of="comparison", folder=self.path))
                )
                for name in (DRAWN, MEASURED)
            )
            self._take(DRAWN, self._drawn.entries)
            self._take(MEASURED, self._measured.entries)
            self._close = undo.pop_all().close

    @classmethod
    def reopened(cls, path: str | os.PathLike[str]) -> Folder:
        """The folder of a comparison that has begun, to measure more in it."""
        check_format(Path(path))
        return cls(path, header(Path(path)))

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
        for kind in ("samples", "pictures"):
            shutil.rmtree(place(self.path / kind, method, budget), ignore_errors=True)

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
        failed = not_finite(values)
        if failed is not None and self.failures(drawn).get(metric) == failed:
            return  # tried again, with the same outcome
        line |= {"values": list(values)} if failed is None else {"failed": failed}
        self._measured.write(line)
        self._take_measured(line)


def unusable(sample: Path) -> FileError:
    """The error for a sample that is needed and cannot be read."""
    return FileError(
        f"{sample} is missing or damaged, so nothing more can be measured on it. Compare in another place, or leave "
        "the new metrics out."
    )


def _check_protocol(path: Path, work: Mapping[str, Any]) -> None:
    """Refuse to go on with what was drawn by other rules: its rows would stand beside new ones as if they were fair."""
    if not (path / DRAWN).exists() or work["format"] != VERSION:
        return
    try:
        old = header(path)["format"]
    except FileError:
        return  # the journal says what is wrong with it
    if old != VERSION:
        raise FileError(
            f"{path} holds a comparison of format {old}, in which other methods' settings were chosen by other rules. "
            "It can still be shown (--show-only); to compare by the rules of now, choose another place."
        )
