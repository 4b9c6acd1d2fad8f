"""What a pipeline returned as pictures, and pictures as files: PNG, for videos MP4, animated WebP or GIF."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from budcache.errors import FileError, PipelineError
from budcache.storage.files import replacing
from budcache.wording import several

__all__ = [
    "FPS",
    "check_format",
    "ending",
    "numbers",
    "pictures",
    "read",
    "samples",
    "save",
    "spoken",
    "to_levels",
    "to_picture",
    "to_webp",
]

Picture = Image.Image
NAMES = ("images", "frames", "videos")  # of what pipelines return; modular ones say videos
FPS = 16  # frames a second, as Wan's
SMALL = 128  # pixels a side: what is that small is kept without loss


def samples(output: Any) -> Sequence[Any]:
    """The samples in a pipeline's output, in whatever form it was asked for."""
    for name in NAMES:
        found: Sequence[Any] | None = getattr(output, name, None)
        if found is not None:
            return found
    raise PipelineError(
        f"the pipeline returned {type(output).__name__}, which has no {', '.join(NAMES[:-1])} or {NAMES[-1]}. "
        "Use an image or video pipeline."
    )


def pictures(output: Any) -> list[Picture | list[Picture]]:
    """The samples in a pipeline's output: one picture each, or one list of frames each."""
    return [_sample(sample) for sample in samples(output)]


def _sample(sample: Any) -> Picture | list[Picture]:
    if isinstance(sample, Picture):
        return sample
    return [frame if isinstance(frame, Picture) else to_picture(frame) for frame in sample]


def to_levels(frame: Any) -> NDArray[np.uint8]:
    """Values from 0 to 1 as the 256 levels of a picture, whatever the shape; levels stay as they are."""
    array = np.asarray(frame)
    if array.dtype != np.uint8:
        array = (array.astype(np.float32).clip(0, 1) * 255).round().astype(np.uint8)
    levels: NDArray[np.uint8] = array
    return levels


def to_picture(frame: Any) -> Picture:
    """An array [height, width, 3] as a picture."""
    return Image.fromarray(to_levels(frame))


def to_webp(picture: Picture, quality: int = 84, *, lossless: bool = False) -> bytes:
    """A picture as a small file in memory, for pages."""
    memory = io.BytesIO()
    picture.save(memory, "WEBP", quality=quality, method=4, lossless=lossless)
    return memory.getvalue()


def read(path: Path) -> Picture:
    """A picture from a file."""
    try:
        return Image.open(path).convert("RGB")
    except Exception as error:  # what a damaged picture raises is up to the picture
        reason = getattr(error, "strerror", None) or "it is not a picture"
        raise FileError(f"{path} cannot be read: {reason}. Give a PNG or JPEG file.") from None


def numbers(path: Path, *, mapped: bool = False) -> NDArray[Any]:
    """The numbers of a sample, from a file that NumPy wrote; nothing in it is executed.

    Args:
        path: the file.
        mapped: leave them in the file until they are looked at.
    """
    try:
        found = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
        if not isinstance(found, np.ndarray) or found.dtype.kind != "f" or found.ndim not in (3, 4):
            raise ValueError
    except Exception as error:  # what a damaged file raises is up to the file
        reason = getattr(error, "strerror", None) or "it holds no sample"
        raise FileError(f"{path} cannot be read: {reason}. Draw it again.") from None
    return found


def ending(video: bool) -> str:
    """What the name of a file ends in where nothing else was asked for."""
    if not video:
        return ".png"
    return ".mp4" if _can_write_mp4() else ".webp"


def spoken(frames: int, fps: int) -> str:
    """How long a video is, for a person to read."""
    return f"{several(frames, 'frame')} at {fps} a second"


def check_format(path: Path, video: bool) -> None:
    """Refuse an ending that cannot hold what will be made; no ending at all stands for the usual one."""
    chosen = path.suffix.lower()
    if not chosen or _fits(chosen, video):
        return
    if _fits(chosen, not video):
        kind, other = ("a video", "a picture") if video else ("a picture", "a video")
        raise FileError(f"{path} is a name for {other}, but the pipeline makes {kind}. Use {_endings(video)}.")
    if video and chosen == ".mp4":
        raise FileError(f"{path} needs imageio to be written. Install budcache[video], or use .webp or .gif.")
    raise FileError(f"{path} ends in {chosen}, which cannot be written. Use {_endings(video)}.")


def save(sample: Picture | Sequence[Picture], path: Path, fps: int = FPS) -> Path:
    """Write one sample, whole or not at all; a name without an ending gets the usual one.

    What does not fit its name is not lost: it is written beside it, and the error says where.
    """
    video = not isinstance(sample, Picture)
    chosen = path.suffix.lower()
    target = path if _fits(chosen, video) else path.with_name(path.name + ending(video))
    with replacing(target) as temporary:
        if isinstance(sample, Picture):
            sample.save(temporary)
        elif target.suffix.lower() == ".mp4":
            _write_mp4(sample, temporary, fps)
        else:
            _write_animated(sample, temporary, fps)
    if chosen and target != path:
        kind = "video" if video else "picture"
        raise FileError(f"{path} cannot hold the {kind} that was made, it is in {target}. Use {_endings(video)}.")
    return target


def _fits(chosen: str, video: bool) -> bool:
    if video:
        return chosen in (".webp", ".gif") or (chosen == ".mp4" and _can_write_mp4())
    Image.init()
    return Image.registered_extensions().get(chosen) in Image.SAVE


def _endings(video: bool) -> str:
    if not video:
        return ending(video)
    return ".mp4, .webp or .gif" if _can_write_mp4() else ".webp or .gif"


def _can_write_mp4() -> bool:
    return all(importlib.util.find_spec(name) for name in ("imageio", "imageio_ffmpeg"))


def _write_animated(frames: Sequence[Picture], path: Path, fps: int) -> None:
    """A file that browsers and mail programs play by themselves; a GIF has only 256 colours of each frame."""
    options: dict[str, Any] = {}
    if path.suffix.lower() == ".webp":
        options = {"quality": 90, "method": 4, "lossless": max(frames[0].size) <= SMALL}
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=round(1000 / fps), loop=0, **options)


def _write_mp4(frames: Sequence[Picture], path: Path, fps: int) -> None:
    import imageio

    with imageio.get_writer(path, fps=fps, macro_block_size=1) as writer:
        for frame in frames:
            writer.append_data(np.asarray(frame.convert("RGB")))
