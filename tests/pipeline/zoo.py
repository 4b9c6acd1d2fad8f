"""Tiny random pipelines of diffusers: the real classes, built offline in well under a second each.

The weights are random, the sizes minimal and the text encoders real; ``pipe(prompt="a cat", ...)`` works.
The caller adds the number of steps, the generator and the output type:

    e = entry("flux")
    pipe = e.build()
    generator = torch.Generator().manual_seed(0)
    latents = pipe(num_inference_steps=6, generator=generator, output_type="latent", **e.kwargs())[0]

The prompt of every entry is short; longer prompts are cut at ``max_sequence_length`` (one token is one
character).  The builders are in ``zoo_image`` and ``zoo_video``, the text encoders in ``zoo_text``.  The families of
2025 and later are in ``zoo_recent`` and ``zoo_recent_video``, modular pipelines in ``zoo_modular``, with their entries.
"""

from __future__ import annotations

import diffusers as d
import torch
import zoo_image as im
import zoo_modular
import zoo_recent
import zoo_recent_video
import zoo_video as vi
from zoo_entry import Entry, Kwargs, guided, kind, picture, prompted

__all__ = ["ENTRIES", "Entry", "entry", "picture"]


def _sd3_control() -> Kwargs:
    """The pipeline samples the control latents from torch's global generator, hence the seed."""
    torch.manual_seed(0)
    return guided(control_image=picture(), guidance_scale=5.0)()


_TEMPLATE = {"template": "<|im_start|>Describe: {}<|im_end|>", "crop_start": 11}  # for HunyuanVideo

ENTRIES: tuple[Entry, ...] = (
    kind("flux", im.flux, prompted(guidance_scale=3.5), residual=True),
    kind("flux-true-cfg", im.flux, guided(true_cfg_scale=4.0), branches=2, residual=True),
    kind(
        "flux-dpm",
        lambda: im.flux(scheduler=im.dpm_flow(use_dynamic_shifting=True)),
        prompted(guidance_scale=3.5),
        residual=True,
    ),
    kind(
        "flux-img2img",
        lambda: im.flux(d.FluxImg2ImgPipeline),
        prompted(image=picture(), strength=0.6, guidance_scale=3.5),
        residual=True,
        strength=True,
    ),
    kind(
        "flux-controlnet",
        im.flux_controlnet,
        prompted(control_image=picture(), controlnet_conditioning_scale=0.7, guidance_scale=3.5),
        residual=True,
    ),
    kind(
        "flux-kontext",
        lambda: im.flux(d.FluxKontextPipeline),
        prompted(image=picture(), max_area=32 * 32, _auto_resize=False, guidance_scale=3.5),
        residual=True,
    ),
    kind("flux2", im.flux2, prompted(tokens=256, text_encoder_out_layers=(1, 2, 3))),
    kind(
        "flux2-klein",
        lambda: im.flux2(klein=True),
        prompted(tokens=64, text_encoder_out_layers=(1, 2, 3), guidance_scale=4.0),
        branches=2,
    ),
    kind(
        "wan-t2v",
        lambda: vi.wan(vi.unipc_flow()),
        guided(64, num_frames=5, guidance_scale=5.0),
        branches=2,
        residual=True,
    ),
    kind(
        "wan-t2v-euler",
        lambda: vi.wan(im.flow(shift=3.0)),
        guided(64, num_frames=5, guidance_scale=5.0),
        branches=2,
        residual=True,
    ),
    kind(
        "wan-i2v",
        vi.wan_i2v,
        guided(64, image=picture(64), num_frames=5, guidance_scale=5.0),
        branches=2,
        residual=True,
    ),
    kind(
        "wan22",
        vi.wan22,
        guided(64, num_frames=5, guidance_scale=4.0, guidance_scale_2=3.0),
        branches=2,
        denoisers=("transformer", "transformer_2"),
        residual=True,
    ),
    kind("z-image", im.z_image, prompted(tokens=64, guidance_scale=0.0), residual=True),
    kind("z-image-cfg", im.z_image, guided(tokens=64, guidance_scale=4.0), residual=True),
    kind(
        "qwen-image",
        im.qwen_image,
        guided(64, tokens=256, true_cfg_scale=4.0),
        branches=2,
        residual=True,
    ),
    kind("sd3", im.sd3, guided(guidance_scale=5.0), residual=True),
    kind("sd3-controlnet", im.sd3_controlnet, _sd3_control, residual=True),
    kind(
        "hunyuan-video",
        vi.hunyuan_video,
        prompted(64, num_frames=5, guidance_scale=6.0, prompt_template=_TEMPLATE),
    ),
    kind("ltx", vi.ltx, guided(64, num_frames=9, guidance_scale=3.0)),
    kind(
        "sana",
        im.sana,
        guided(guidance_scale=4.5, use_resolution_binning=False, complex_human_instruction=None),
    ),
    kind("cogvideox", vi.cogvideox, guided(64, num_frames=9, guidance_scale=6.0)),
    kind(
        "cogvideox-dpm",
        lambda: vi.cogvideox(d.CogVideoXDPMScheduler),
        guided(64, num_frames=9, guidance_scale=6.0),
    ),
    kind("sdxl", im.sdxl, guided(tokens=None, guidance_scale=5.0), denoisers=("unet",)),
    kind("sd15-ddim", im.sd15, guided(tokens=None, guidance_scale=7.5), denoisers=("unet",)),
    kind(
        "lumina2",
        im.lumina2,
        guided(64, tokens=48, system_prompt="", guidance_scale=4.0),
        branches=2,
    ),
    kind("chroma", im.chroma, guided(guidance_scale=5.0), branches=2),
    kind("auraflow", im.auraflow, guided(guidance_scale=3.5)),
    *zoo_recent.ENTRIES,
    *zoo_recent_video.ENTRIES,
    *zoo_modular.ENTRIES,
)


def entry(name: str) -> Entry:
    """The entry of that name."""
    return {e.name: e for e in ENTRIES}[name]
