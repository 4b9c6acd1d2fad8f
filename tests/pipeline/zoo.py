"""Tiny random pipelines of diffusers: the real classes, built offline in well under a second each.

The weights are random, the sizes minimal and the text encoders real; ``pipe(prompt="a cat", ...)`` works.
The caller adds the number of steps, the generator and the output type:

    e = entry("flux")
    pipe = e.build()
    generator = torch.Generator().manual_seed(0)
    latents = pipe(num_inference_steps=6, generator=generator, output_type="latent", **e.kwargs())[0]

The prompt of every entry is short; longer prompts are cut at ``max_sequence_length`` (one token is one
character).  The builders are in ``zoo_image`` and ``zoo_video``, the text encoders in ``zoo_text``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import diffusers as d
import torch
import zoo_image as im
import zoo_video as vi
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


def _seeded(make: Callable[[], d.DiffusionPipeline]) -> Callable[[], d.DiffusionPipeline]:
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


def _entry(
    name: str,
    make: Callable[[], d.DiffusionPipeline],
    kwargs: Callable[[], Kwargs],
    *,
    branches: int = 1,
    denoisers: tuple[str, ...] = ("transformer",),
    residual: bool = False,
    strength: bool = False,
) -> Entry:
    return Entry(name, _seeded(make), kwargs, branches, denoisers, residual, strength)


def _image(size: int = 32, **more: Any) -> Callable[[], Kwargs]:
    """Keyword arguments of an image pipeline: the prompt, the size, 16 tokens and ``more``."""
    return lambda: {"prompt": PROMPT, "height": size, "width": size, "max_sequence_length": 16, **more}


def _guided(size: int = 32, **more: Any) -> Callable[[], Kwargs]:
    """The same with a negative prompt."""
    return _image(size, negative_prompt=NEGATIVE, **more)


def _unet(**more: Any) -> Callable[[], Kwargs]:
    """The same for the pipelines whose text encoders have a fixed length."""
    return lambda: {k: v for k, v in _guided(**more)().items() if k != "max_sequence_length"}


def _sd3_control() -> Kwargs:
    """The pipeline samples the control latents from torch's global generator, hence the seed."""
    torch.manual_seed(0)
    return _guided(control_image=picture(), guidance_scale=5.0)()


_TEMPLATE = {"template": "<|im_start|>Describe: {}<|im_end|>", "crop_start": 11}  # for HunyuanVideo

ENTRIES: tuple[Entry, ...] = (
    _entry("flux", im.flux, _image(guidance_scale=3.5), residual=True),
    _entry("flux-true-cfg", im.flux, _guided(true_cfg_scale=4.0), branches=2, residual=True),
    _entry(
        "flux-dpm",
        lambda: im.flux(scheduler=im.dpm_flow(use_dynamic_shifting=True)),
        _image(guidance_scale=3.5),
        residual=True,
    ),
    _entry(
        "flux-img2img",
        lambda: im.flux(d.FluxImg2ImgPipeline),
        _image(image=picture(), strength=0.6, guidance_scale=3.5),
        residual=True,
        strength=True,
    ),
    _entry(
        "flux-controlnet",
        im.flux_controlnet,
        _image(control_image=picture(), controlnet_conditioning_scale=0.7, guidance_scale=3.5),
        residual=True,
    ),
    _entry(
        "flux-kontext",
        lambda: im.flux(d.FluxKontextPipeline),
        _image(image=picture(), max_area=32 * 32, _auto_resize=False, guidance_scale=3.5),
        residual=True,
    ),
    _entry("flux2", im.flux2, _image(max_sequence_length=256, text_encoder_out_layers=(1, 2, 3))),
    _entry(
        "flux2-klein",
        lambda: im.flux2(klein=True),
        _image(max_sequence_length=64, text_encoder_out_layers=(1, 2, 3), guidance_scale=4.0),
        branches=2,
    ),
    _entry(
        "wan-t2v",
        lambda: vi.wan(vi.unipc_flow()),
        _guided(64, num_frames=5, guidance_scale=5.0),
        branches=2,
        residual=True,
    ),
    _entry(
        "wan-t2v-euler",
        lambda: vi.wan(im.flow(shift=3.0)),
        _guided(64, num_frames=5, guidance_scale=5.0),
        branches=2,
        residual=True,
    ),
    _entry(
        "wan-i2v",
        vi.wan_i2v,
        _guided(64, image=picture(64), num_frames=5, guidance_scale=5.0),
        branches=2,
        residual=True,
    ),
    _entry(
        "wan22",
        vi.wan22,
        _guided(64, num_frames=5, guidance_scale=4.0, guidance_scale_2=3.0),
        branches=2,
        denoisers=("transformer", "transformer_2"),
        residual=True,
    ),
    _entry("z-image", im.z_image, _image(max_sequence_length=64, guidance_scale=0.0), residual=True),
    _entry("z-image-cfg", im.z_image, _guided(max_sequence_length=64, guidance_scale=4.0), residual=True),
    _entry(
        "qwen-image",
        im.qwen_image,
        _guided(64, max_sequence_length=256, true_cfg_scale=4.0),
        branches=2,
        residual=True,
    ),
    _entry("sd3", im.sd3, _guided(guidance_scale=5.0), residual=True),
    _entry("sd3-controlnet", im.sd3_controlnet, _sd3_control, residual=True),
    _entry(
        "hunyuan-video",
        vi.hunyuan_video,
        _image(64, num_frames=5, guidance_scale=6.0, prompt_template=_TEMPLATE),
    ),
    _entry("ltx", vi.ltx, _guided(64, num_frames=9, guidance_scale=3.0)),
    _entry(
        "sana",
        im.sana,
        _guided(guidance_scale=4.5, use_resolution_binning=False, complex_human_instruction=None),
    ),
    _entry("cogvideox", vi.cogvideox, _guided(64, num_frames=9, guidance_scale=6.0)),
    _entry(
        "cogvideox-dpm",
        lambda: vi.cogvideox(d.CogVideoXDPMScheduler),
        _guided(64, num_frames=9, guidance_scale=6.0),
    ),
    _entry("sdxl", im.sdxl, _unet(guidance_scale=5.0), denoisers=("unet",)),
    _entry("sd15-ddim", im.sd15, _unet(guidance_scale=7.5), denoisers=("unet",)),
    _entry(
        "lumina2",
        im.lumina2,
        _guided(64, max_sequence_length=48, system_prompt="", guidance_scale=4.0),
        branches=2,
    ),
    _entry("chroma", im.chroma, _guided(guidance_scale=5.0), branches=2),
    _entry("auraflow", im.auraflow, _guided(guidance_scale=3.5)),
)


def entry(name: str) -> Entry:
    """The entry of that name."""
    return {e.name: e for e in ENTRIES}[name]
