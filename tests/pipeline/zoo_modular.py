"""Modular pipelines: blocks of diffusers over the modules of the stock pipelines, and their entries.

Guidance is a component of most of them, so it is given when a pipeline is put together and not when it is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffusers as d
from zoo_entry import Entry, guided, kind, picture, prompted, stub_ftfy
from zoo_image import flux, flux2, qwen_image, sdxl, z_image
from zoo_video import unipc_flow, wan, wan22


def modular(blocks: str, stock: Callable[[], d.DiffusionPipeline], **more: Any) -> Callable[[], d.ModularPipeline]:
    """A builder of the blocks of that name, with the modules of a stock pipeline and ``more``."""

    def make() -> d.ModularPipeline:
        pipe = getattr(d, blocks)().init_pipeline()
        given = {name: part for name, part in stock().components.items() if name in pipe.component_names}
        pipe.update_components(**given, **{name: part() for name, part in more.items()})
        _prepare(pipe._blocks)
        return pipe

    return make


def _prepare(block: Any) -> None:
    """Silence a block and those in it; the pipeline's own switch does not reach all of them."""
    stub_ftfy(type(block))
    if hasattr(block, "set_progress_bar_config"):
        block.set_progress_bar_config(disable=True)
    for part in block.sub_blocks.values():
        _prepare(part)


def cfg(scale: float, **more: Any) -> Callable[[], d.ClassifierFreeGuidance]:
    """A guider with that scale."""
    return lambda: d.ClassifierFreeGuidance(guidance_scale=scale, **more)


ENTRIES: tuple[Entry, ...] = (
    kind("modular-flux", modular("FluxAutoBlocks", flux), prompted(guidance_scale=3.5), residual=True),
    kind(
        "modular-flux-img2img",
        modular("FluxAutoBlocks", flux),
        prompted(image=picture(), strength=0.6, guidance_scale=3.5),
        residual=True,
        strength=True,
    ),
    kind(
        "modular-flux2-klein",
        modular("Flux2KleinBaseAutoBlocks", lambda: flux2(klein=True), guider=cfg(4.0)),
        prompted(tokens=64, text_encoder_out_layers=(1, 2, 3)),
        branches=2,
    ),
    kind(
        "modular-qwen-image",
        modular("QwenImageAutoBlocks", qwen_image, guider=cfg(4.0)),
        guided(64, 256),
        branches=2,
        residual=True,
    ),
    kind(
        "modular-sdxl",
        modular("StableDiffusionXLAutoBlocks", sdxl, guider=cfg(5.0)),
        guided(tokens=None),
        branches=2,
        denoisers=("unet",),
    ),
    kind(
        "modular-wan",
        modular("WanBlocks", lambda: wan(unipc_flow()), guider=cfg(5.0)),
        guided(64, num_frames=5),
        branches=2,
        residual=True,
    ),
    kind(
        "modular-wan22",
        modular("Wan22Blocks", wan22, guider=cfg(4.0), guider_2=cfg(3.0)),
        guided(64, num_frames=5),
        branches=2,
        denoisers=("transformer", "transformer_2"),
        residual=True,
    ),
    kind(
        "modular-z-image",
        modular("ZImageAutoBlocks", z_image, guider=cfg(4.0)),
        guided(tokens=64),
        branches=2,
        residual=True,
    ),
)
