"""The video pipelines of the zoo: functions which put real diffusers classes together at minimal sizes."""

from __future__ import annotations

from typing import Any

import diffusers as d
import zoo_text as text
from transformers import CLIPImageProcessor, CLIPVisionConfig, CLIPVisionModel
from zoo_entry import stub_ftfy
from zoo_image import AXES, flow


def unipc_flow() -> d.UniPCMultistepScheduler:
    """UniPC over the sigmas of flow matching, the scheduler of Wan."""
    return d.UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0)


def wan_vae() -> d.AutoencoderKLWan:
    """The autoencoder of Wan, which others have taken over."""
    return d.AutoencoderKLWan(base_dim=3, dim_mult=[1, 1, 1, 1], num_res_blocks=1).eval()


def wan_transformer(**kwargs: Any) -> d.WanTransformer3DModel:
    """The transformer of Wan."""
    sizes: dict[str, Any] = {
        "num_attention_heads": 2,
        "attention_head_dim": 12,
        "text_dim": text.TEXT_DIM,
        "freq_dim": 32,
        "ffn_dim": 32,
        "num_layers": 2,
        "rope_max_seq_len": 64,
    }
    return d.WanTransformer3DModel(**{**sizes, **kwargs})


def wan(scheduler: Any, cls: type = d.WanPipeline, **more: Any) -> d.DiffusionPipeline:
    """Wan 2.1 text to video; ``more`` adds modules or replaces the transformer."""
    return cls(
        tokenizer=text.t5_tokenizer(),
        text_encoder=text.t5_text(umt5=True),
        vae=wan_vae(),
        scheduler=scheduler,
        **{"transformer": wan_transformer(), **more},
    )


def wan_i2v() -> d.DiffusionPipeline:
    """Wan 2.1 image to video, with its CLIP image encoder."""
    stub_ftfy(d.WanImageToVideoPipeline)
    vision = CLIPVisionConfig(
        hidden_size=16,
        projection_dim=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=32,
        intermediate_size=16,
        patch_size=16,
    )
    return wan(
        unipc_flow(),
        d.WanImageToVideoPipeline,
        transformer=wan_transformer(in_channels=36, image_dim=16, added_kv_proj_dim=24),
        image_encoder=CLIPVisionModel(vision).eval(),
        image_processor=CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}),
    )


def wan22() -> d.DiffusionPipeline:
    """Wan 2.2: an expert for high noise (timesteps of 875 and more) and one for low noise."""
    return wan(unipc_flow(), transformer_2=wan_transformer(), boundary_ratio=0.875)


def hunyuan_video() -> d.DiffusionPipeline:
    """HunyuanVideo."""
    return d.HunyuanVideoPipeline(
        text_encoder=text.llama_text(),
        tokenizer=text.byte_tokenizer(),
        transformer=d.HunyuanVideoTransformer3DModel(
            in_channels=4,
            out_channels=4,
            num_attention_heads=2,
            attention_head_dim=16,
            num_layers=1,
            num_single_layers=1,
            num_refiner_layers=1,
            text_embed_dim=text.TEXT_DIM,
            pooled_projection_dim=text.CLIP_DIM,
            rope_axes_dim=AXES,
        ),
        vae=d.AutoencoderKLHunyuanVideo(
            latent_channels=4, block_out_channels=(4, 4, 4, 4), layers_per_block=1, norm_num_groups=2
        ).eval(),
        scheduler=flow(shift=7.0),
        text_encoder_2=text.clip_text(),
        tokenizer_2=text.clip_tokenizer(),
    )


def ltx() -> d.DiffusionPipeline:
    """LTX-Video."""
    return d.LTXPipeline(
        scheduler=flow(
            use_dynamic_shifting=True,
            base_shift=0.95,
            max_shift=2.05,
            base_image_seq_len=1024,
            shift_terminal=0.1,
        ),
        vae=d.AutoencoderKLLTXVideo(
            latent_channels=8,
            block_out_channels=(8, 8, 8, 8),
            decoder_block_out_channels=(8, 8, 8, 8),
            layers_per_block=(1, 1, 1, 1, 1),
            decoder_layers_per_block=(1, 1, 1, 1, 1),
            patch_size=1,
        ).eval(),
        text_encoder=text.t5_text(),
        tokenizer=text.t5_tokenizer(),
        transformer=d.LTXVideoTransformer3DModel(
            in_channels=8,
            out_channels=8,
            num_attention_heads=2,
            attention_head_dim=16,
            cross_attention_dim=32,
            num_layers=1,
            caption_channels=text.TEXT_DIM,
        ),
    )


def cogvideox(scheduler: type = d.CogVideoXDDIMScheduler) -> d.DiffusionPipeline:
    """CogVideoX, with its DDIM (2B) or DPM (5B) scheduler."""
    return d.CogVideoXPipeline(
        tokenizer=text.t5_tokenizer(),
        text_encoder=text.t5_text(),
        vae=d.AutoencoderKLCogVideoX(
            latent_channels=4, block_out_channels=(4, 4, 4, 4), layers_per_block=1, norm_num_groups=2
        ).eval(),
        transformer=d.CogVideoXTransformer3DModel(
            num_attention_heads=2,
            attention_head_dim=16,
            in_channels=4,
            out_channels=4,
            time_embed_dim=8,
            text_embed_dim=text.TEXT_DIM,
            num_layers=1,
            sample_width=8,
            sample_height=8,
            sample_frames=9,
            max_text_seq_length=16,
        ),
        scheduler=scheduler(
            prediction_type="v_prediction",
            rescale_betas_zero_snr=True,
            snr_shift_scale=3.0,
            timestep_spacing="trailing",
        ),
    )
