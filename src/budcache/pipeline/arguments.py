"""Which arguments a pipeline can be called with."""

from __future__ import annotations

import inspect
from typing import Any

__all__ = ["arguments", "is_modular", "makes_videos", "usual_frames", "usual_size"]

FRAMES = ("num_frames", "frames", "video_length")  # what pipelines call the number of frames
PICTURES = {"image", "control_image", "video"}  # that a size may come from


def arguments(pipe: Any) -> dict[str, Any]:
    """The keyword arguments that a pipeline takes, with their defaults; None stands for no default.

    A stock pipeline has them in the signature of its `__call__`. That of a modular pipeline only says `**kwargs`: what
    it takes are the inputs of its blocks that no block before provides.
    """
    if is_modular(pipe):
        # An input without a name stands for a group of them, which are given as a dictionary under the group's name.
        return {each.name or each.kwargs_type: each.default for each in pipe.blocks.inputs}
    _, *parameters = inspect.signature(type(pipe).__call__).parameters.values()  # the first one is `self`
    return {
        each.name: None if each.default is each.empty else each.default
        for each in parameters
        if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    }


def makes_videos(pipe: Any) -> bool:
    """Known before it has run: pipelines that make videos let one choose the number of frames."""
    return not set(FRAMES).isdisjoint(arguments(pipe))


def usual_frames(pipe: Any) -> int | None:
    """The number of frames that a pipeline makes if it is told none; None where it makes pictures or does not say."""
    known = arguments(pipe)
    return next((known[name] for name in FRAMES if isinstance(known.get(name), int)), None)


def usual_size(pipe: Any) -> tuple[int, int] | None:
    """The height and width that a pipeline makes if it is told none; None where that depends on what it is given."""
    known = arguments(pipe)
    if not {"height", "width"} <= set(known) or not PICTURES.isdisjoint(known):
        return None
    if isinstance(known["height"], int) and isinstance(known["width"], int):
        return known["height"], known["width"]
    side, scale = (getattr(pipe, name, None) for name in ("default_sample_size", "vae_scale_factor"))
    return (side * scale,) * 2 if isinstance(side, int) and isinstance(scale, int) else None


def is_modular(pipe: Any) -> bool:
    """Whether a pipeline is one of diffusers' modular ones, put together from blocks."""
    from diffusers import ModularPipeline

    return isinstance(pipe, ModularPipeline)
