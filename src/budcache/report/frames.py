"""Kept samples as pages show them: a picture, or some of a video's frames, no larger than they will be seen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageSequence

from budcache.storage.media import to_picture

__all__ = ["frames", "strip_of"]

WIDEST = 16_383  # pixels that a WebP file may have to the right


def frames(path: Path, side: int, most: int) -> list[Image.Image]:
    """A sample by its picture's path: the picture, or so many frames of a video, evenly spread.

    Where it was removed there is a grey field, so that a page can still be written.
    """
    try:
        found = _video(path, most) if path.with_suffix(".gif").exists() else [Image.open(path).convert("RGB")]
    except (OSError, ValueError):
        found = [Image.new("RGB", (64, 64), "#888888")]
    for frame in found:
        frame.thumbnail((side, side), Image.Resampling.LANCZOS)
    return found[: WIDEST // found[0].width]


def strip_of(pictures: Sequence[Image.Image]) -> Image.Image:
    """Pictures of one size beside each other; a page moves this strip to play it."""
    if len(pictures) == 1:
        return pictures[0]
    width, height = pictures[0].size
    strip = Image.new(pictures[0].mode, (width * len(pictures), height))
    for place, picture in enumerate(pictures):
        strip.paste(picture, (place * width, 0))
    return strip


def _video(path: Path, most: int) -> list[Image.Image]:
    """Frames from the numbers of the sample, if they are still there; a GIF has only 256 colours of each."""
    numbers = path.parents[2] / "samples" / path.parent.name / f"{path.stem}.npy"
    if numbers.exists():
        kept = np.load(numbers, mmap_mode="r", allow_pickle=False)  # a long video need not fit into memory
        return [to_picture(kept[place]) for place in _spread(len(kept), most)]
    with Image.open(path.with_suffix(".gif")) as video:
        all_of_them = [frame.convert("RGB") for frame in ImageSequence.Iterator(video)]
    return [all_of_them[place] for place in _spread(len(all_of_them), most)]


def _spread(count: int, most: int) -> list[int]:
    some = min(count, most)
    return [round(place * (count - 1) / max(1, some - 1)) for place in range(some)]
