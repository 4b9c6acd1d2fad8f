"""Kept samples as pages show them: a picture, or some of a video's frames, no larger than they will be seen."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from PIL import Image, ImageSequence

from budcache.errors import FileError
from budcache.storage import media

__all__ = ["clip_of", "frames", "length", "strip_of"]

CLIPS = (".webp", ".gif")  # videos for people, beside a picture of the middle frame; once these were GIFs
WIDEST = 16_383  # pixels that a WebP file may have to the right


def clip_of(path: Path) -> Path | None:
    """The video of a sample by its picture's path; None where the sample is a picture."""
    return next((clip for ending in CLIPS if (clip := path.with_suffix(ending)).exists()), None)


def length(path: Path) -> int:
    """How many frames a sample has; a picture has one."""
    clip, numbers = clip_of(path), _numbers(path)
    if clip is None:
        return 1
    if numbers.exists():
        with suppress(FileError):
            return len(media.numbers(numbers, mapped=True))
    try:
        with Image.open(clip) as video:
            return getattr(video, "n_frames", 1)
    except Exception:  # as below
        return 1


def frames(path: Path, side: int, most: int) -> list[Image.Image]:
    """A sample by its picture's path: the picture, or so many frames of a video, evenly spread.

    Where it was removed there is a grey field, so that a page can still be written.
    """
    try:
        found = [Image.open(path).convert("RGB")] if (clip := clip_of(path)) is None else _video(path, clip, most)
    except Exception:  # what a damaged picture raises is up to the picture
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


def _numbers(path: Path) -> Path:
    return path.parents[2] / "samples" / path.parent.name / f"{path.stem}.npy"


def _video(path: Path, clip: Path, most: int) -> list[Image.Image]:
    """Frames from the numbers of the sample, if they are still there: the video has lost some of them."""
    numbers = _numbers(path)
    if numbers.exists():
        kept = media.numbers(numbers, mapped=True)  # a long video need not fit into memory
        return [media.to_picture(kept[place]) for place in _spread(len(kept), most)]
    with Image.open(clip) as video:
        all_of_them = [frame.convert("RGB") for frame in ImageSequence.Iterator(video)]
    return [all_of_them[place] for place in _spread(len(all_of_them), most)]


def _spread(count: int, most: int) -> list[int]:
    some = min(count, most)
    return [round(place * (count - 1) / max(1, some - 1)) for place in range(some)]
