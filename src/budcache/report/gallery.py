"""Pictures side by side: every method's, and what differs from the full run's, small enough for one page."""

from __future__ import annotations

import base64
from functools import partial
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageChops

from budcache.comparison.folder import picture
from budcache.comparison.result import FULL, Comparison, Entry
from budcache.storage.media import to_webp

__all__ = ["AMPLIFIED", "Card", "gallery", "ours_first"]

AMPLIFIED = 5
# Prompts shown and pixels a side, best first; the first that keeps the file light is taken.
SHOWN = ((4, 256), (4, 160), (3, 128), (2, 96), (1, 64))
PICTURE_BYTES = 2_600_000  # of all pictures, before they are written as text


class Card(NamedTuple):
    """A picture with its difference from the full run, as addresses that hold their data."""

    title: str
    note: str
    alt: str
    picture: str
    difference: str | None = None  # the full run has none
    ours: bool = False


def ours_first(comparison: Comparison, budget: int) -> list[Entry]:
    """The methods at a budget, the one that is put forward before the others."""
    return sorted(comparison.at(budget), key=lambda entry: entry.method != comparison.ours)


def gallery(comparison: Comparison, folder: Path) -> dict[int, list[tuple[str, list[Card]]]]:
    """For each budget the same prompts by every method."""
    count, side = _affordable(comparison, folder)
    look = partial(_look, folder, side)
    full = [look(FULL, comparison.steps, number) for number in range(count)]
    originals = [_uri(to_webp(original)) for original in full]
    shown: dict[int, list[tuple[str, list[Card]]]] = {}
    for budget in comparison.budgets:
        shown[budget] = []
        for number, prompt in enumerate(comparison.prompts[:count]):
            calls = f"{comparison.full.calls[number]} calls"
            cards = [Card("full run", calls, f"{prompt}, full run", originals[number])]
            for entry in ours_first(comparison, budget):
                drawn, difference = _pair(look(entry.method, budget, number), full[number])
                alt = f"{prompt}, {entry.title} with {entry.calls[number]} calls"
                note, ours = _value(comparison, entry, number), entry.method == comparison.ours
                cards.append(Card(entry.title, note, alt, _uri(drawn), _uri(difference), ours))
            shown[budget].append((prompt, cards))
    return shown


def _affordable(comparison: Comparison, folder: Path) -> tuple[int, int]:
    """How many prompts to show, and how large, so that the file stays light; judged by a few of the pictures."""
    others = [entry for entry in comparison.entries if entry.method != FULL]
    judged = others[:: max(1, len(others) // 4)]
    for most, side in SHOWN:
        count = min(most, len(comparison.prompts))
        look = partial(_look, folder, side)
        sizes = [
            len(part)
            for number, entry in enumerate(judged)
            for part in _pair(
                look(entry.method, entry.budget, number % count), look(FULL, comparison.steps, number % count)
            )
        ]
        if sum(sizes) / max(1, len(judged)) * len(others) * count <= PICTURE_BYTES:
            break
    return count, side


def _value(comparison: Comparison, entry: Entry, number: int) -> str:
    for measure in comparison.measures:
        if measure.reference and measure.name in entry.values:
            written = measure.written(entry.values[measure.name][number], min(measure.digits, 3))
            return f"{written} {measure.unit}".rstrip()
    return f"{entry.calls[number]} calls"


def _look(folder: Path, side: int, method: str, budget: int, number: int) -> Image.Image:
    """A kept picture, made no larger than it will be seen; a grey field where it was removed."""
    try:
        found = Image.open(picture(folder, method, budget, number)).convert("RGB")
    except OSError:
        return Image.new("RGB", (64, 64), "#888888")
    found.thumbnail((side, side), Image.Resampling.LANCZOS)
    return found


def _pair(picture: Image.Image, reference: Image.Image) -> tuple[bytes, bytes]:
    """A picture, and how far it is from another one: black where they are equal."""
    same = picture if picture.size == reference.size else picture.resize(reference.size)
    red, green, blue = ImageChops.difference(same, reference).split()
    largest = ImageChops.lighter(ImageChops.lighter(red, green), blue)
    return to_webp(picture), to_webp(largest.point([min(255, AMPLIFIED * level) for level in range(256)]))


def _uri(data: bytes) -> str:
    return f"data:image/webp;base64,{base64.b64encode(data).decode()}"
