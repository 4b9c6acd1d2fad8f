"""tiny-wan and tiny-wan-large: Wan with other defaults, for their files and those that both share."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import diffusers
import torch
from transformers import UMT5EncoderModel

from budcache.models.tokenizer import CappedTokenizer

__all__ = ["DEFAULTS", "WanPipeline", "load"]

SHARED = "tiny-wan-shared"  # the folder of what both sizes use: autoencoder, text encoder, tokenizer, prompts
DEFAULTS = {"height": 64, "width": 64, "num_frames": 17, "max_sequence_length": 16}


def _with_defaults(call: Any, **others: Any) -> Any:
    """A pipeline's `__call__`, code and all, with other defaults in its signature."""
    inside = call.__wrapped__
    names = inside.__code__.co_varnames[: inside.__code__.co_argcount]
    known = dict(zip(names[-len(inside.__defaults__) :], inside.__defaults__, strict=True))
    twin = types.FunctionType(
        inside.__code__, inside.__globals__, inside.__name__, tuple((known | others).values()), inside.__closure__
    )
    twin.__doc__, twin.__annotations__, twin.__qualname__ = inside.__doc__, inside.__annotations__, inside.__qualname__
    return torch.no_grad()(twin)


class WanPipeline(diffusers.WanPipeline):  # type: ignore[misc]
    """Wan that makes clips of 17 frames and 64 x 64 pixels unless it is told otherwise, not 81 of 832 x 480.

    It has its parent's name, so that what `save_pretrained` writes is an index that diffusers can read.
    """

    __call__ = _with_defaults(diffusers.WanPipeline.__call__, **DEFAULTS)


def load(folder: Path, **from_pretrained: Any) -> WanPipeline:
    """The pipeline from the files in `folder` and the shared ones beside it; all name stock classes only."""
    shared = folder.parent / SHARED
    dtype = {name: from_pretrained[name] for name in ("dtype", "torch_dtype") if name in from_pretrained}
    readers = {"vae": (diffusers.AutoencoderKLWan, dtype), "text_encoder": (UMT5EncoderModel, dtype)}
    for name, (reader, settings) in (readers | {"tokenizer": (CappedTokenizer, {})}).items():
        if name not in from_pretrained:
            from_pretrained[name] = reader.from_pretrained(shared / name, local_files_only=True, **settings)
    pipe: WanPipeline = WanPipeline.from_pretrained(folder, **from_pretrained)
    return pipe
