"""The folder of a comparison: every finished method written down at once, so that a killed comparison goes on.

`comparison.jsonl` has a line a finished entry; its first line says of what comparison. Pictures lie beside it as PNG,
the full run's also as numbers, to measure against.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from budcache.comparison.result import VERSION, Entry
from budcache.errors import FileError, SearchError
from budcache.metrics.base import Frame
from budcache.storage import media
from budcache.storage.journal import Journal

__all__ = ["Folder", "FolderError", "picture", "rounded"]


class FolderError(SearchError):
    """A folder that cannot be used: the end of the comparison, not of one method."""


class Folder:
    """Where a comparison is kept while it grows; one process at a time writes to it.

    Args:
        path: the folder; made if it is not there.
        identity: what determines the results: model, prompts, steps, seeds. A folder of another comparison is refused.
    """

    def __init__(self, path: str | os.PathLike[str], identity: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self._journal = Journal(
            self.path / "comparison.jsonl",
            {"format": VERSION, **identity},
            kind="record",
            of="comparison",
            option="out",
            error=FolderError,
        )
        self._known: dict[tuple[str, int], tuple[str, Entry]] = {}
        for line in self._journal.entries:
            try:
                entry = Entry.model_validate(line["entry"])
                self._known[entry.method, entry.budget] = str(line["made of"]), entry
            except (ValueError, TypeError, KeyError):
                raise self._journal.spoilt(line) from None

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self._journal.close()

    def get(self, method: str, budget: int, made_of: str) -> Entry | None:
        """A finished entry, if it was made of the same thing."""
        known, entry = self._known.get((method, budget), ("", None))
        return entry if known == made_of else None

    def add(self, entry: Entry, made_of: str) -> None:
        """Write a finished entry down."""
        self._journal.write({"made of": made_of, "entry": entry.model_dump(mode="json", exclude_none=True)})
        self._known[entry.method, entry.budget] = made_of, entry

    def keep(self, entry: tuple[str, int], number: int, sample: Frame) -> None:
        """Write a picture, or the frames of a video and the one in its middle."""
        levels = (np.asarray(sample, np.float32).clip(0, 1) * 255).round().astype(np.uint8)
        frames = [Image.fromarray(frame) for frame in (levels[None] if levels.ndim == 3 else levels)]
        target = picture(self.path, *entry, number)
        try:
            media.save(frames[len(frames) // 2], target)
            if levels.ndim == 4:
                media.save(frames, target.with_suffix(".gif"))
        except FileError as error:
            raise FolderError(str(error)) from None

    def keep_reference(self, number: int, sample: Frame) -> None:
        """Keep the full run's picture as numbers; half precision is a hundred times finer than a picture's levels."""
        target = self._reference(number)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            np.save(target, rounded(sample))
        except OSError as error:
            raise self._trouble(error) from None

    def reference(self, number: int) -> Frame:
        """The full run's picture, from values 0 to 1."""
        try:
            return np.asarray(np.load(self._reference(number), allow_pickle=False), np.float32)
        except (OSError, ValueError):
            raise FolderError(
                f"{self._reference(number)} is missing or damaged. Remove {self._journal.path} to start afresh."
            ) from None

    def _reference(self, number: int) -> Path:
        return self.path / "pictures" / "full" / f"{number:03d}.npy"

    def _trouble(self, error: OSError) -> FolderError:
        return FolderError(
            f"the folder {self.path} cannot be used: {error.strerror or error}. What was finished is kept; "
            "choose another --out, or make room and run the same command again."
        )


def picture(folder: Path, method: str, budget: int, number: int) -> Path:
    """Where a method's picture of a prompt lies in a comparison's folder."""
    name = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in method)
    return folder / "pictures" / f"{name}-{budget}" / f"{number:03d}.png"


def rounded(sample: Frame) -> Frame:
    """Numbers as they are kept, so that what is measured does not depend on a kill in between."""
    return np.asarray(sample, np.float16)
