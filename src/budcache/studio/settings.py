"""Settings that can be tried out: size, frames and guidance, as the arguments of the pipeline that they are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from budcache.errors import SearchError
from budcache.studio.fields import Refusals, whole
from budcache.wording import quote

if TYPE_CHECKING:
    from budcache.studio.studio import Studio

__all__ = ["NAMES", "call_of", "grain", "text_of", "usual"]

NAMES = {"height": "height", "width": "width", "frames": "num_frames", "guidance": "guidance_scale"}  # in the pipeline
SIDE, FRAMES = 8192, 4096  # a slip of the finger beyond them would take all memory there is


def call_of(studio: Studio, refused: Refusals, *values: Any) -> dict[str, Any]:
    """The arguments that the fields stand for, in the order of `NAMES`. What is empty is left to the model."""
    found: dict[str, Any] = {}
    for (field, name), value in zip(NAMES.items(), values, strict=True):
        if value not in (None, ""):
            found[name] = refused.take("settings", partial(_value, studio, field, name, value))
    return found


def _value(studio: Studio, field: str, name: str, value: Any) -> int | float:
    if studio.takes is not None and name not in studio.takes:
        raise SearchError(f"{studio.model} takes no {name}. Leave the {field} empty.")
    if field == "guidance":
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise SearchError(f"the guidance is {quote(value)}. Give a number, or leave it empty.")
        return float(value)
    number = whole(value, f"the {field}" if field != "frames" else "the number of frames", 1, _most(field))
    if field != "frames" and number % studio.grain:
        near = max(1, round(number / studio.grain)) * studio.grain
        raise SearchError(f"the {field} is {number}, but {studio.model} draws multiples of {studio.grain}. Try {near}.")
    return number


def _most(field: str) -> int:
    return FRAMES if field == "frames" else SIDE


def text_of(call: Mapping[str, Any]) -> str:
    """Settings in a few words: `height 96, width 64, guidance 2`; nothing where all are the model's own."""
    shown = {field: call[name] for field, name in NAMES.items() if name in call}
    return ", ".join(f"{value} frames" if field == "frames" else f"{field} {value:g}" for field, value in shown.items())


def grain(pipe: Any) -> int:
    """What sizes have to be multiples of, as far as a pipeline says so before it runs."""
    parts = (getattr(pipe, name, None) for name in ("image_processor", "video_processor"))
    scales = [getattr(getattr(part, "config", None), "vae_scale_factor", 1) for part in parts]
    return max((scale for scale in scales if isinstance(scale, int)), default=1)


def usual(pipe: Any, call: Mapping[str, Any]) -> dict[str, Any]:
    """What fields that are left empty stand for, as far as that is known."""
    from budcache.pipeline.arguments import usual_frames, usual_size
    from budcache.pipeline.origin import usual_guidance

    height, width = usual_size(pipe) or (None, None)
    own = {"height": height, "width": width, "frames": usual_frames(pipe), "guidance": usual_guidance(pipe)}
    return {field: call.get(NAMES[field], value) for field, value in own.items()}
