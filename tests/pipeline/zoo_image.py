"""The image pipelines of the zoo: functions which put real diffusers classes together at minimal sizes."""

from __future__ import annotations

from typing import Any

import diffusers as d
import zoo_text as text

DIM = {"attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": text.TEXT_DIM}
AXES = (4, 4, 8)  # rotary dimensions of one head of 16
FLUX_SIZES: dict[str, Any] = {
    **DIM,
    "in_channels": 16,
    "num_layers": 1,
    "num_single_layers": 1,
    "pooled_projection_dim": text.CLIP_DIM,
    "guidance_embeds": True,
    "axes_dims_rope": AXES,
}
SD3_SIZES: dict[str, Any] = {
    **DIM,
    "sample_size": 16,
    "in_channels": 4,
    "out_channels": 4,
    "num_layers": 2,
    "caption_projection_dim": 32,
    "pooled_projection_dim": 2 * text.CLIP_DIM,
    "pos_embed_max_size": 16,
}


def flow(**kwargs: Any) -> d.FlowMatchEulerDiscreteScheduler:
    """The Euler scheduler of flow matching."""
    return d.FlowMatchEulerDiscreteScheduler(**kwargs)


def dpm_flow(**kwargs: Any) -> d.DPMSolverMultistepScheduler:
    """DPM-Solver++ over the sigmas of flow matching, as Sana uses it; FLUX needs dynamic shifting."""
    return d.DPMSolverMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0, **kwargs
    )


def vae(blocks: int = 2, cls: type = d.AutoencoderKL, channels: int = 4, **kwargs: Any) -> Any:
    """An image autoencoder with so many latent channels and compression 2 ** (blocks - 1)."""
    return cls(
        block_out_channels=(4,) * blocks,
        down_block_types=("DownEncoderBlock2D",) * blocks,
        up_block_types=("UpDecoderBlock2D",) * blocks,
        layers_per_block=1,
        latent_channels=channels,
        norm_num_groups=2,
        **kwargs,
    ).eval()


def flux(cls: type = d.FluxPipeline, scheduler: Any = None, **more: Any) -> d.DiffusionPipeline:
    """FLUX.1, or another pipeline class with the same modules and ``more``."""
    return cls(
        scheduler=scheduler or flow(shift=3.0, use_dynamic_shifting=True),
        vae=vae(shift_factor=0.1, use_quant_conv=False, use_post_quant_conv=False),
        text_encoder=text.clip_text(),
        tokenizer=text.clip_tokenizer(),
        text_encoder_2=text.t5_text(),
        tokenizer_2=text.t5_tokenizer(),
        **{"transformer": d.FluxTransformer2DModel(**FLUX_SIZES), **more},
    )


def flux_controlnet() -> d.DiffusionPipeline:
    """FLUX.1 with a ControlNet."""
    return flux(d.FluxControlNetPipeline, controlnet=d.FluxControlNetModel(**FLUX_SIZES))


def flux2(*, klein: bool = False) -> d.DiffusionPipeline:
    """FLUX.2 (Mistral 3, embedded guidance) or FLUX.2 klein (Qwen3, two-call guidance)."""
    modules = {
        "scheduler": flow(shift=3.0, use_dynamic_shifting=True),
        "vae": vae(cls=d.AutoencoderKLFlux2),
        "text_encoder": text.qwen3_text(causal=True) if klein else text.mistral3_text(),
        "tokenizer": text.byte_tokenizer(),
        "transformer": d.Flux2Transformer2DModel(
            **{**DIM, "joint_attention_dim": 3 * text.TEXT_DIM},
            in_channels=16,
            num_layers=1,
            num_single_layers=1,
            timestep_guidance_channels=32,
            axes_dims_rope=(4, 4, 4, 4),
            guidance_embeds=not klein,
        ),
    }
    return d.Flux2KleinPipeline(**modules, is_distilled=False) if klein else d.Flux2Pipeline(**modules)


def chroma() -> d.DiffusionPipeline:
    """Chroma."""
    return d.ChromaPipeline(
        scheduler=flow(shift=3.0, use_dynamic_shifting=True),
        vae=vae(shift_factor=0.1),
        text_encoder=text.t5_text(),
        tokenizer=text.t5_tokenizer(),
        transformer=d.ChromaTransformer2DModel(
            **DIM,
            in_channels=16,
            num_layers=1,
            num_single_layers=1,
            axes_dims_rope=AXES,
            approximator_num_channels=16,
            approximator_hidden_dim=32,
            approximator_layers=1,
        ),
    )


def z_image() -> d.DiffusionPipeline:
    """Z-Image."""
    return d.ZImagePipeline(
        scheduler=flow(shift=3.0),
        vae=vae(shift_factor=0.1),
        text_encoder=text.qwen3_text(),
        tokenizer=text.byte_tokenizer(),
        transformer=d.ZImageTransformer2DModel(
            in_channels=4,
            dim=32,
            n_layers=2,
            n_refiner_layers=1,
            n_heads=2,
            n_kv_heads=2,
            cap_feat_dim=text.TEXT_DIM,
            axes_dims=list(AXES),
            axes_lens=[256, 64, 64],
        ),
    )


def qwen_image() -> d.DiffusionPipeline:
    """Qwen-Image."""
    return d.QwenImagePipeline(
        scheduler=flow(use_dynamic_shifting=True, max_shift=0.9, max_image_seq_len=8192, shift_terminal=0.02),
        vae=d.AutoencoderKLQwenImage(base_dim=3, dim_mult=[1, 1, 1, 1], num_res_blocks=1).eval(),
        text_encoder=text.qwen_vl_text(),
        tokenizer=text.byte_tokenizer(),
        transformer=d.QwenImageTransformer2DModel(**DIM, num_layers=2, axes_dims_rope=AXES),
    )


def sd3(cls: type = d.StableDiffusion3Pipeline, **more: Any) -> d.DiffusionPipeline:
    """Stable Diffusion 3, or another pipeline class with the same modules and ``more``."""
    return cls(
        scheduler=flow(shift=3.0),
        vae=vae(shift_factor=0.1, use_quant_conv=False, use_post_quant_conv=False),
        text_encoder=text.clip_text(projection=True),
        tokenizer=text.clip_tokenizer(),
        text_encoder_2=text.clip_text(projection=True),
        tokenizer_2=text.clip_tokenizer(),
        text_encoder_3=text.t5_text(),
        tokenizer_3=text.t5_tokenizer(),
        transformer=d.SD3Transformer2DModel(**SD3_SIZES),
        **more,
    )


def sd3_controlnet() -> d.DiffusionPipeline:
    """Stable Diffusion 3 with a ControlNet."""
    controlnet = d.SD3ControlNetModel(**{**SD3_SIZES, "num_layers": 1})
    return sd3(d.StableDiffusion3ControlNetPipeline, controlnet=controlnet)


def sana() -> d.DiffusionPipeline:
    """Sana, with its DPM-Solver++ scheduler."""
    blocks = {
        f"{part}_{key}": value
        for part in ("encoder", "decoder")
        for key, value in {
            "block_types": "ResBlock",
            "block_out_channels": (8, 8),
            "layers_per_block": (1, 1),
            "qkv_multiscales": ((), ()),
        }.items()
    }
    return d.SanaPipeline(
        tokenizer=text.byte_tokenizer(),
        text_encoder=text.gemma_text(),
        vae=d.AutoencoderDC(latent_channels=4, attention_head_dim=2, **blocks).eval(),
        transformer=d.SanaTransformer2DModel(
            in_channels=4,
            out_channels=4,
            num_layers=1,
            num_attention_heads=2,
            attention_head_dim=16,
            num_cross_attention_heads=2,
            cross_attention_head_dim=16,
            cross_attention_dim=32,
            caption_channels=text.TEXT_DIM,
            sample_size=16,
        ),
        scheduler=dpm_flow(),
    )


def lumina2() -> d.DiffusionPipeline:
    """Lumina Image 2.0 (its compression is 8, whatever the autoencoder)."""
    return d.Lumina2Pipeline(
        transformer=d.Lumina2Transformer2DModel(
            sample_size=8,
            in_channels=4,
            hidden_size=32,
            num_layers=1,
            num_refiner_layers=1,
            num_attention_heads=2,
            num_kv_heads=1,
            multiple_of=16,
            axes_dim_rope=AXES,
            axes_lens=(256, 64, 64),
            cap_feat_dim=text.TEXT_DIM,
        ),
        scheduler=flow(shift=6.0),
        vae=vae(blocks=4, shift_factor=0.1),
        text_encoder=text.gemma_text(),
        tokenizer=text.byte_tokenizer(),
    )


def auraflow() -> d.DiffusionPipeline:
    """AuraFlow."""
    return d.AuraFlowPipeline(
        tokenizer=text.t5_tokenizer(),
        text_encoder=text.t5_text(umt5=True),
        vae=vae(),
        transformer=d.AuraFlowTransformer2DModel(
            **DIM,
            sample_size=16,
            num_mmdit_layers=1,
            num_single_dit_layers=1,
            caption_projection_dim=32,
            pos_embed_max_size=256,
        ),
        scheduler=flow(shift=1.73),
    )


def _unet(cross: int, **kwargs: Any) -> d.UNet2DConditionModel:
    return d.UNet2DConditionModel(
        block_out_channels=(4, 8),
        layers_per_block=1,
        sample_size=16,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=2,
        cross_attention_dim=cross,
        norm_num_groups=2,
        **kwargs,
    )


BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1}


def sdxl() -> d.DiffusionPipeline:
    """Stable Diffusion XL."""
    return d.StableDiffusionXLPipeline(
        vae=vae(),
        text_encoder=text.clip_text(),
        text_encoder_2=text.clip_text(projection=True),
        tokenizer=text.clip_tokenizer(),
        tokenizer_2=text.clip_tokenizer(),
        unet=_unet(
            2 * text.CLIP_DIM,
            addition_embed_type="text_time",
            addition_time_embed_dim=8,
            projection_class_embeddings_input_dim=6 * 8 + text.CLIP_DIM,
        ),
        scheduler=d.EulerDiscreteScheduler(**BETAS, timestep_spacing="leading"),
        add_watermarker=False,
    )


def sd15() -> d.DiffusionPipeline:
    """Stable Diffusion 1.5 with DDIM, without safety checker."""
    return d.StableDiffusionPipeline(
        vae=vae(),
        text_encoder=text.clip_text(),
        tokenizer=text.clip_tokenizer(),
        unet=_unet(text.CLIP_DIM),
        scheduler=d.DDIMScheduler(**BETAS, clip_sample=False, set_alpha_to_one=False),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
