"""What a pipeline returned as pictures, and pictures as files: PNG, for videos MP4 or GIF."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from budcache.errors import PipelineError

__all__ = ["check_format", "pictures", "read", "save", "to_levels", "to_picture", "to_webp"]

Picture = Image.Image


def pictures(output: Any) -> list[Picture | list[Picture]]:
    """The samples in a pipeline's output: one picture each, or one list of frames each."""
    for name in ("images", "frames"):
        found = getattr(output, name, None)
        if found is not None:
            return [_sample(sample) for sample in found]
    raise PipelineError(
        f"the pipeline returned {type(output).__name__}, which has neither images nor frames. "
        "Only image and video pipelines can be written to files."
    )


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


def to_webp(picture: Picture, quality: int = 84) -> bytes:
    """A picture as a small file in memory, for pages."""
    memory = io.BytesIO()
    picture.save(memory, "WEBP", quality=quality, method=4)
    return memory.getvalue()


def read(path: Path) -> Picture:
    """A picture from a file."""
    try:
        return Image.open(path).convert("RGB")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not a picture"
        raise PipelineError(f"{path} cannot be read: {reason}. Give a PNG or JPEG file.") from None


def check_format(path: Path) -> None:
    """Refuse an ending that can be neither a picture nor a video, before any work is done."""
    Image.init()
    ending = path.suffix.lower()
    if ending and ending != ".mp4" and Image.registered_extensions().get(ending) not in Image.SAVE:
        raise PipelineError(
            f"{path} ends in {ending}, which cannot be written. Use .png for pictures, .mp4 for videos."
        )


def save(sample: Picture | Sequence[Picture], path: Path, fps: int = 16) -> Path:
    """Write one sample; a video goes to .mp4 where imageio is installed, else to .gif."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(sample, Picture):
            path = path.with_suffix(".png") if path.suffix.lower() in ("", ".mp4") else path
            sample.save(path)
            return path
        return _save_video(list(sample), path, fps)
    except OSError as error:
        raise PipelineError(f"{path} cannot be written: {error.strerror or error}. Choose another place.") from None


def _save_video(frames: list[Picture], path: Path, fps: int) -> Path:
    if path.suffix.lower() == ".mp4":
        try:
            import imageio
        except ImportError:
            raise PipelineError(
                f"{path} needs imageio to be written. Install budcache[video], or choose a name that ends in .gif."
            ) from None
        with imageio.get_writer(path, fps=fps, macro_block_size=1) as writer:
            for frame in frames:
                writer.append_data(np.asarray(frame.convert("RGB")))
        return path
    path = path.with_suffix(".gif")
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=1000 // fps, loop=0)
    return path
