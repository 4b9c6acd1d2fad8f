"""What an entry of the zoo is, and the arguments that most pipelines take."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import diffusers as d
import torch
from alignment import BUILT, placed
from PIL import Image

Kwargs = dict[str, Any]
PROMPT, NEGATIVE = "a cat", "blurry"


@dataclass(frozen=True)
class Entry:
    """One pipeline of the zoo and how to call it."""

    name: str
    build: Callable[[], d.DiffusionPipeline]  # seeds torch with 0; float32; without progress bar
    kwargs: Callable[[], Kwargs]  # all but num_inference_steps, generator and output_type
    branches: int  # calls of the root denoisers per step, in total
    denoisers: tuple[str, ...]  # their attribute names
    residual: bool  # a transformer of FLUX.1, Wan, Z-Image, Qwen-Image or SD3
    strength: bool = False  # image to image, with a strength


def picture(size: int = 32) -> Image.Image:
    """A fixed grey gradient."""
    return Image.linear_gradient("L").resize((size, size)).convert("RGB")


def stub_ftfy(cls: type) -> None:
    """Let a class that calls ftfy without asking whether it is there clean its prompts all the same."""
    module: Any = sys.modules[cls.__module__]
    if not hasattr(module, "ftfy"):
        module.ftfy = SimpleNamespace(fix_text=str)


def seeded(make: Callable[[], d.DiffusionPipeline]) -> Callable[[], d.DiffusionPipeline]:
    """The builder with fixed weights, where zero-initialised ones (zero convolutions...) get values."""

    def build() -> d.DiffusionPipeline:
        torch.manual_seed(0)
        pipe = make()
        for name in ("transformer", "transformer_2", "unet", "controlnet"):
            if isinstance(module := getattr(pipe, name, None), torch.nn.Module):
                for p in module.eval().parameters():
                    if not p.any():
                        torch.nn.init.normal_(p, std=0.1)
        pipe.set_progress_bar_config(disable=True)
        return placed(pipe, BUILT)

    return build


def kind(
    name: str,
    make: Callable[[], Any],
    kwargs: Callable[[], Kwargs],
    *,
    branches: int = 1,
    denoisers: tuple[str, ...] = ("transformer",),
    residual: bool = False,
    strength: bool = False,
) -> Entry:
    """An entry; ``make`` puts the pipeline together."""
    return Entry(name, seeded(make), kwargs, branches, denoisers, residual, strength)


def prompted(size: int = 32, tokens: int | None = 16, **more: Any) -> Callable[[], Kwargs]:
    """Keyword arguments of a pipeline: the prompt, the size, the length of the prompt if it has one, and ``more``."""
    length = {} if tokens is None else {"max_sequence_length": tokens}
    return lambda: {"prompt": PROMPT, "height": size, "width": size, **length, **more}


def guided(size: int = 32, tokens: int | None = 16, **more: Any) -> Callable[[], Kwargs]:
    """The same with a negative prompt."""
    return prompted(size, tokens, negative_prompt=NEGATIVE, **more)
