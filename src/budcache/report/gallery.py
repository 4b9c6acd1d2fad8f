"""Pictures side by side: every method's, and what differs from the full run's, small enough for one page."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageChops

from budcache.comparison.entry import FULL, Entry, Measure
from budcache.comparison.kept import picture
from budcache.comparison.result import Comparison
from budcache.comparison.verdict import main_budget
from budcache.report.frames import frames, length, strip_of
from budcache.storage.media import FPS, to_webp

__all__ = ["AMPLIFIED", "Gallery", "Original", "Shot", "difference", "gallery", "ours_first", "ranked"]

AMPLIFIED = 5
TINY = 128  # pixels a side: such pictures are seen magnified, so nothing of them may be lost
TEXT = 4 / 3 * 1.1  # letters for a byte of a picture, and some more, for the need is judged by a few pictures


class Fidelity(NamedTuple):
    """How much of the pictures is shown: prompts, pixels a side, and frames of a video."""

    prompts: int
    side: int
    frames: int


# Best first; the first that keeps the page light is taken.
FIDELITIES = (
    *(Fidelity(6, 512, 24), Fidelity(6, 384, 16), Fidelity(4, 384, 16), Fidelity(4, 256, 12)),
    *(Fidelity(3, 192, 12), Fidelity(2, 160, 8), Fidelity(2, 96, 6), Fidelity(1, 64, 4)),
)


class Original(NamedTuple):
    """The full run's picture of a prompt, which the others are compared with."""

    number: int  # of the sample
    prompt: str
    picture: str  # an address that holds its data; of a video, the frames beside each other


class Shot(NamedTuple):
    """A method's picture of a prompt, and its difference from the full run's."""

    entry: Entry
    note: str
    alt: str
    picture: str
    difference: str
    ours: bool


class Gallery(NamedTuple):
    """The same prompts by every method at every budget.

    Attributes:
        originals: the full run's, from the prompt that ours is worst at to its best.
        shots: by budget, then in the order of the originals.
        size: pixels to the right and down.
        frames: of a video that are shown; a picture has one.
        seconds: how long the video is.
    """

    originals: list[Original]
    shots: dict[int, list[list[Shot]]]
    size: tuple[int, int]
    frames: int
    seconds: float

    @property
    def pace(self) -> int:
        """Milliseconds for which each of the shown frames stays, so that videos play as fast as they are."""
        return round(1000 * self.seconds / self.frames)

    @property
    def tiny(self) -> bool:
        """Whether pictures are so small that their pixels should be seen as squares."""
        return max(self.size) <= TINY


def ours_first(comparison: Comparison, budget: int) -> list[Entry]:
    """The methods at a budget: the one that is put forward, then the others from the best mean to the worst.

    Where some are out of sight, they are not the strongest.
    """
    entries = comparison.at(budget)
    measure = next((one for each in entries if (one := compared(comparison, each))), None)

    def place(entry: Entry) -> tuple[bool, bool, float]:
        found = entry.summed(measure) if measure is not None else None
        value = found.mean if found is not None else 0.0
        rank = -value if measure is not None and measure.higher else value
        return entry.method != comparison.ours, found is None, rank

    return sorted(entries, key=place)


def compared(comparison: Comparison, entry: Entry) -> Measure | None:
    """The first metric that compares an entry with the full run."""
    return next((one for one in comparison.measures if one.reference and entry.quality(one.name)), None)


def ranked(comparison: Comparison, budget: int) -> list[int]:
    """The samples from the worst to the best of what is put forward, or of the first method there is."""
    entries = ours_first(comparison, budget)
    measure = compared(comparison, entries[0]) if entries else None
    if measure is None:
        return list(range(len(comparison.prompts)))
    values, sign = entries[0].quality(measure.name) or (), 1 if measure.higher else -1
    return sorted(range(len(values)), key=lambda number: sign * values[number])


def gallery(comparison: Comparison, folder: Path, room: int) -> Gallery:
    """Pictures for a page that has room for so many more letters."""
    pages = (_Pictures(comparison, folder, fidelity) for fidelity in FIDELITIES)
    chosen = next((page for page in pages if page.letters <= room), None)
    return (chosen or _Pictures(comparison, folder, FIDELITIES[-1])).drawn()


class _Pictures:
    """The pictures of a folder, at a fidelity."""

    def __init__(self, comparison: Comparison, folder: Path, fidelity: Fidelity) -> None:
        self.comparison, self.folder, self.fidelity = comparison, folder, fidelity

    @cached_property
    def samples(self) -> list[int]:
        """Those to show: spread evenly from the worst of ours to its best, so that nobody has picked them."""
        order = ranked(self.comparison, main_budget(self.comparison))
        count = min(self.fidelity.prompts, len(order))
        return [order[round(place * (len(order) - 1) / max(1, count - 1))] for place in range(count)]

    @cached_property
    def full(self) -> dict[int, list[Image.Image]]:
        return {number: self._frames(FULL, self.comparison.steps, number) for number in self.samples}

    @property
    def letters(self) -> float:
        """How long the pictures are as text, judged by a few of them."""
        others = [entry for entry in self.comparison.entries if entry.method != FULL]
        judged = others[:: max(1, len(others) // 4)]
        sizes = [
            len(part)
            for place, entry in enumerate(judged)
            for part in self._pair(entry, self.samples[place % len(self.samples)])
        ]
        return TEXT * sum(sizes) / max(1, len(judged)) * (len(others) + 1) * len(self.samples)

    def drawn(self) -> Gallery:
        prompts = self.comparison.prompts
        originals = [Original(number, prompts[number], _uri(_file(self.full[number]))) for number in self.samples]
        shots = {
            budget: [
                [self._shot(entry, number) for entry in ours_first(self.comparison, budget)] for number in self.samples
            ]
            for budget in self.comparison.budgets
        }
        first = self.full[self.samples[0]]
        whole = length(picture(self.folder, FULL, self.comparison.steps, self.samples[0]))
        return Gallery(originals, shots, first[0].size, len(first), whole / (self.comparison.fps or FPS))

    def _shot(self, entry: Entry, number: int) -> Shot:
        picture, difference = map(_uri, self._pair(entry, number))
        alt = f"{self.comparison.prompts[number]}, {entry.title} with {entry.counting[0].calls[number]} calls"
        ours = entry.method == self.comparison.ours
        return Shot(entry, self._note(entry, number), alt, picture, difference, ours)

    def _note(self, entry: Entry, number: int) -> str:
        """The picture's own value; where its calls are not the budget's, or it is one of two settings, these too."""
        shown, *others = entry.counting
        measure, calls = compared(self.comparison, entry), f"{shown.calls[number]} calls"
        if measure is None:
            return calls
        value = measure.spoken(shown.values[measure.name][number])
        if others:  # tables have what lies between the two at the budget
            return f"{value}, {calls}, one of two settings"
        return value if shown.calls[number] == entry.budget else f"{value}, {calls}"

    def _pair(self, entry: Entry, number: int) -> tuple[bytes, bytes]:
        """A picture, and how far it is from the full run's: black where they are equal."""
        drawn, reference = self._frames(entry.counting[0].method, entry.budget, number), self.full[number]
        return _file(drawn), _file([difference(one, other) for one, other in zip(drawn, reference, strict=False)])

    def _frames(self, method: str, budget: int, number: int) -> list[Image.Image]:
        return frames(picture(self.folder, method, budget, number), self.fidelity.side, self.fidelity.frames)


def difference(picture: Image.Image, reference: Image.Image) -> Image.Image:
    """How far a picture is from another, amplified: black where they are equal."""
    same = picture if picture.size == reference.size else picture.resize(reference.size)
    red, green, blue = ImageChops.difference(same, reference).split()
    largest = ImageChops.lighter(ImageChops.lighter(red, green), blue)
    return largest.point([min(255, AMPLIFIED * level) for level in range(256)])


def _file(pictures: Sequence[Image.Image]) -> bytes:
    return to_webp(strip_of(pictures), lossless=max(pictures[0].size) <= TINY)


def _uri(data: bytes) -> str:
    return f"data:image/webp;base64,{base64.b64encode(data).decode()}"
