"""Image pipelines of recent families: functions which put real diffusers classes together, and their entries."""

from __future__ import annotations

import sys
from typing import Any

import diffusers as d
import zoo_text as text
from zoo_entry import Entry, guided, kind, picture, prompted, stub_ftfy
from zoo_image import AXES, DIM, FLUX_SIZES, flow, flux, qwen_image, vae
from zoo_video import unipc_flow

HEADS = {"attention_head_dim": 16, "num_attention_heads": 2}


def bria() -> d.DiffusionPipeline:
    """Bria 3.2, which shifts noise levels by the size of the picture if its scheduler is the one that it knows."""
    return d.BriaPipeline(
        transformer=d.BriaTransformer2DModel(
            **DIM, in_channels=16, num_layers=1, num_single_layers=1, pooled_projection_dim=None, axes_dims_rope=AXES
        ),
        scheduler=flow(shift=3.0, use_dynamic_shifting=True),
        vae=vae(shift_factor=0.0),
        text_encoder=text.t5_text(),
        tokenizer=text.t5_tokenizer(),
    )


def cogview4() -> d.DiffusionPipeline:
    """CogView4."""
    return d.CogView4Pipeline(
        tokenizer=text.byte_tokenizer(),
        text_encoder=text.glm_text(),
        vae=vae(),
        transformer=d.CogView4Transformer2DModel(
            **HEADS,
            in_channels=4,
            out_channels=4,
            num_layers=1,
            text_embed_dim=text.TEXT_DIM,
            time_embed_dim=8,
            condition_dim=4,
        ),
        scheduler=flow(base_shift=0.25, max_shift=0.75, use_dynamic_shifting=True, time_shift_type="linear"),
    )


def flux_fill() -> d.DiffusionPipeline:
    """FLUX.1 Fill: the transformer sees the noise, the picture and the mask side by side."""
    sizes = {**FLUX_SIZES, "in_channels": 48, "out_channels": 16}
    return flux(d.FluxFillPipeline, transformer=d.FluxTransformer2DModel(**sizes))


def hidream() -> d.DiffusionPipeline:
    """HiDream-I1 with its UniPC scheduler, four text encoders and a mixture of experts."""
    pipe = d.HiDreamImagePipeline(
        scheduler=unipc_flow(),
        vae=vae(shift_factor=0.1),
        text_encoder=text.clip_text(projection=True),
        tokenizer=text.clip_tokenizer(),
        text_encoder_2=text.clip_text(projection=True),
        tokenizer_2=text.clip_tokenizer(),
        text_encoder_3=text.t5_text(),
        tokenizer_3=text.t5_tokenizer(),
        text_encoder_4=text.llama_text(causal=True),
        tokenizer_4=text.byte_tokenizer(),
        transformer=d.HiDreamImageTransformer2DModel(
            **HEADS,
            patch_size=2,
            in_channels=4,
            out_channels=4,
            num_layers=1,
            num_single_layers=1,
            caption_channels=[text.TEXT_DIM, text.TEXT_DIM],
            text_emb_dim=2 * text.CLIP_DIM,
            num_routed_experts=2,
            num_activated_experts=1,
            axes_dims_rope=AXES,
            max_resolution=(32, 32),
            llama_layers=(0, 1),
        ),
    )
    pipe.default_sample_size = 16  # it always draws as many pixels as that makes
    return pipe


def hunyuan_image(*, guider: Any = None) -> d.DiffusionPipeline:
    """HunyuanImage 2.1, with a guider, or distilled."""
    pipe = d.HunyuanImagePipeline(
        scheduler=flow(shift=5.0),
        vae=d.AutoencoderKLHunyuanImage(
            in_channels=3,
            out_channels=3,
            latent_channels=4,
            block_out_channels=(32, 32, 32, 32),
            layers_per_block=1,
            spatial_compression_ratio=8,
            sample_size=64,
            scaling_factor=0.5,
        ).eval(),
        text_encoder=text.qwen_vl_text(layers=3),
        tokenizer=text.byte_tokenizer(),
        text_encoder_2=text.t5_text(),
        tokenizer_2=text.byt5_tokenizer(),
        transformer=d.HunyuanImageTransformer2DModel(
            **HEADS,
            in_channels=4,
            out_channels=4,
            num_layers=1,
            num_single_layers=1,
            num_refiner_layers=1,
            patch_size=(1, 1),
            guidance_embeds=guider is None,
            text_embed_dim=text.TEXT_DIM,
            text_embed_2_dim=text.TEXT_DIM,
            rope_axes_dim=(8, 8),
        ),
        guider=guider,
        ocr_guider=None if guider is None else guider.new(),
    )
    pipe.tokenizer_max_length, pipe.tokenizer_2_max_length = 16, 16
    pipe.prompt_template_encode, pipe.prompt_template_encode_start_idx = "Draw {}", 5
    return pipe


def hunyuan_image_guided() -> d.DiffusionPipeline:
    """HunyuanImage 2.1 with its guider, which guides in another way from step 2 on; without momentum."""
    guider = d.AdaptiveProjectedMixGuidance(
        guidance_scale=3.5, adaptive_projected_guidance_momentum=None, adaptive_projected_guidance_start_step=1
    )
    return hunyuan_image(guider=guider)


def kandinsky5_image() -> d.DiffusionPipeline:
    """Kandinsky 5 text to image."""
    pipe = d.Kandinsky5T2IPipeline(
        transformer=kandinsky5_transformer(),
        vae=vae(blocks=4, shift_factor=0.1),
        text_encoder=text.qwen_vl_text(),
        tokenizer=text.qwen_vl_processor(),
        text_encoder_2=text.clip_text(),
        tokenizer_2=text.clip_tokenizer(),
        scheduler=flow(shift=5.0),
    )
    pipe.prompt_template, pipe.prompt_template_encode_start_idx = "Draw {}", 5
    pipe.resolutions = [(64, 64)]
    return pipe


def kandinsky5_transformer(**kwargs: Any) -> d.Kandinsky5Transformer3DModel:
    """The transformer of Kandinsky 5, for images and videos."""
    return d.Kandinsky5Transformer3DModel(
        in_visual_dim=4,
        in_text_dim=text.TEXT_DIM,
        in_text_dim2=text.CLIP_DIM,
        time_dim=16,
        out_visual_dim=4,
        model_dim=32,
        ff_dim=32,
        num_text_blocks=1,
        num_visual_blocks=1,
        axes_dims=AXES,
        **kwargs,
    )


def krea2() -> d.DiffusionPipeline:
    """Krea 2."""
    pipe = d.Krea2Pipeline(
        scheduler=flow(use_dynamic_shifting=True, max_image_seq_len=6400),
        vae=d.AutoencoderKLQwenImage(base_dim=3, dim_mult=[1, 1, 1, 1], num_res_blocks=1).eval(),
        text_encoder=text.qwen3_vl_text(),
        tokenizer=text.byte_tokenizer(),
        transformer=d.Krea2Transformer2DModel(
            **HEADS,
            in_channels=64,
            num_layers=1,
            num_key_value_heads=1,
            intermediate_size=32,
            timestep_embed_dim=8,
            text_hidden_dim=text.TEXT_DIM,
            num_text_layers=2,
            text_num_attention_heads=2,
            text_num_key_value_heads=1,
            text_intermediate_size=32,
            num_layerwise_text_blocks=1,
            num_refiner_text_blocks=1,
            axes_dims_rope=AXES,
        ),
        text_encoder_select_layers=(1, 2),
    )
    pipe.prompt_template_encode_prefix, pipe.prompt_template_encode_start_idx = "Draw ", 5
    return pipe


def longcat() -> d.DiffusionPipeline:
    """LongCat-Image."""
    pipe = d.LongCatImagePipeline(
        scheduler=flow(use_dynamic_shifting=True),
        vae=vae(channels=16, shift_factor=0.1),
        text_encoder=text.qwen_vl_text(),
        tokenizer=text.byte_tokenizer(),
        text_processor=text.qwen_vl_processor(),
        transformer=d.LongCatImageTransformer2DModel(
            **DIM,
            in_channels=64,
            num_layers=1,
            num_single_layers=1,
            pooled_projection_dim=text.TEXT_DIM,
            axes_dims_rope=AXES,
        ),
    )
    pipe.tokenizer_max_length, pipe.prompt_template_encode_prefix = 16, "Draw "
    return pipe


def ovis() -> d.DiffusionPipeline:
    """Ovis-Image."""
    pipe = d.OvisImagePipeline(
        scheduler=flow(use_dynamic_shifting=True),
        vae=vae(shift_factor=0.1),
        text_encoder=text.qwen3_text(),
        tokenizer=text.byte_tokenizer(),
        transformer=d.OvisImageTransformer2DModel(
            **DIM, in_channels=16, out_channels=16, num_layers=1, num_single_layers=1, axes_dims_rope=AXES
        ),
    )
    pipe.system_prompt, pipe.user_prompt_begin_id = "", 6
    return pipe


def pixart_sigma() -> d.DiffusionPipeline:
    """PixArt-Sigma, with its DPM-Solver++ scheduler."""
    return d.PixArtSigmaPipeline(
        tokenizer=text.t5_tokenizer(),
        text_encoder=text.t5_text(),
        vae=vae(),
        transformer=d.PixArtTransformer2DModel(
            **HEADS,
            sample_size=16,
            num_layers=1,
            caption_channels=text.TEXT_DIM,
            in_channels=4,
            out_channels=8,
            cross_attention_dim=32,
        ),
        scheduler=d.DPMSolverMultistepScheduler(),
    )


def prx() -> d.DiffusionPipeline:
    """PRX."""
    stub_ftfy(d.PRXPipeline)
    return d.PRXPipeline(
        transformer=d.PRXTransformer2DModel(
            in_channels=4,
            context_in_dim=text.TEXT_DIM,
            hidden_size=32,
            mlp_ratio=2.0,
            num_heads=2,
            depth=1,
            axes_dim=[8, 8],
        ),
        scheduler=flow(shift=3.0),
        text_encoder=text.t5gemma_text(),
        tokenizer=text.byte_tokenizer(),
        vae=vae(shift_factor=0.1),
    )


def qwen_edit() -> d.DiffusionPipeline:
    """Qwen-Image-Edit (2509 and later), whose text encoder sees the picture, too."""
    module: Any = sys.modules[d.QwenImageEditPlusPipeline.__module__]
    module.VAE_IMAGE_SIZE = 64 * 64  # it brings every picture to that many pixels, a million of them
    pipe = d.QwenImageEditPlusPipeline(**qwen_image().components, processor=text.qwen_vl_processor())
    pipe.prompt_template_encode, pipe.prompt_template_encode_start_idx = "Draw {}", 5
    return pipe


ENTRIES: tuple[Entry, ...] = (
    kind("bria", bria, guided(guidance_scale=5.0)),
    kind("cogview4", cogview4, guided(guidance_scale=5.0), branches=2),
    kind(
        "flux-fill",
        flux_fill,
        prompted(image=picture(), mask_image=picture(), guidance_scale=30.0),
        residual=True,
    ),
    kind("hidream", hidream, guided(guidance_scale=5.0)),
    kind("hunyuan-image", hunyuan_image, prompted(tokens=None)),
    kind("hunyuan-image-guided", hunyuan_image_guided, guided(tokens=None), branches=2),
    kind("kandinsky5-t2i", kandinsky5_image, guided(64, guidance_scale=3.5), branches=2),
    kind("krea2", krea2, guided(64, guidance_scale=4.5), branches=2),
    kind(
        "longcat-image",
        longcat,
        guided(tokens=None, guidance_scale=4.5, enable_prompt_rewrite=False),
        branches=2,
    ),
    kind("ovis-image", ovis, guided(guidance_scale=5.0), branches=2),
    kind("pixart-sigma", pixart_sigma, guided(guidance_scale=4.5, use_resolution_binning=False, clean_caption=False)),
    kind("prx", prx, guided(tokens=None, tokenizer_max_length=16, guidance_scale=4.0, use_resolution_binning=False)),
    kind("qwen-image-edit", qwen_edit, guided(64, image=picture(64), true_cfg_scale=4.0), branches=2, residual=True),
)
