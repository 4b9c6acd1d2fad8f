"""Video pipelines of recent families: functions which put real diffusers classes together, and their entries."""

from __future__ import annotations

import diffusers as d
import zoo_text as text
from PIL import Image
from zoo_entry import Entry, Kwargs, guided, kind, picture, stub_ftfy
from zoo_image import AXES, flow
from zoo_recent import HEADS, kandinsky5_transformer
from zoo_video import unipc_flow, wan, wan_vae


def hunyuan_video15() -> d.DiffusionPipeline:
    """HunyuanVideo 1.5, whose guidance is a guider's."""
    pipe = d.HunyuanVideo15Pipeline(
        text_encoder=text.qwen_vl_text(layers=3, language=True),
        tokenizer=text.byte_tokenizer(),
        transformer=d.HunyuanVideo15Transformer3DModel(
            **HEADS,
            in_channels=9,
            out_channels=4,
            num_layers=1,
            num_refiner_layers=1,
            mlp_ratio=2.0,
            text_embed_dim=text.TEXT_DIM,
            text_embed_2_dim=text.TEXT_DIM,
            image_embed_dim=16,
            rope_axes_dim=AXES,
            target_size=64,
            task_type="t2v",
        ),
        vae=d.AutoencoderKLHunyuanVideo15(
            latent_channels=4,
            block_out_channels=(8, 8),
            layers_per_block=1,
            spatial_compression_ratio=4,
            temporal_compression_ratio=2,
            downsample_match_channel=False,
            upsample_match_channel=False,
        ).eval(),
        scheduler=flow(shift=7.0),
        text_encoder_2=text.t5_text(),
        tokenizer_2=text.byt5_tokenizer(),
        guider=d.ClassifierFreeGuidance(guidance_scale=6.0),
    )
    pipe.tokenizer_max_length, pipe.tokenizer_2_max_length, pipe.vision_num_semantic_tokens = 16, 16, 4
    pipe.system_message, pipe.prompt_template_encode_start_idx = "Draw", 20
    return pipe


def kandinsky5() -> d.DiffusionPipeline:
    """Kandinsky 5 text to video, which writes each step's sample into the latents of the step before."""
    stub_ftfy(d.Kandinsky5T2VPipeline)
    pipe = d.Kandinsky5T2VPipeline(
        transformer=kandinsky5_transformer(),
        vae=d.AutoencoderKLHunyuanVideo(
            latent_channels=4, block_out_channels=(4, 4, 4, 4), layers_per_block=1, norm_num_groups=2
        ).eval(),
        text_encoder=text.qwen_vl_text(),
        tokenizer=text.qwen_vl_processor(),
        text_encoder_2=text.clip_text(),
        tokenizer_2=text.clip_tokenizer(),
        scheduler=flow(shift=5.0),
    )
    pipe.prompt_template, pipe.prompt_template_encode_start_idx = "Draw {}", 5
    return pipe


def ltx2() -> d.DiffusionPipeline:
    """LTX-2: video and sound together, each with a scheduler of its own."""
    encoder = text.gemma3_text()
    return d.LTX2Pipeline(
        scheduler=flow(),
        vae=d.AutoencoderKLLTX2Video(
            latent_channels=4,
            block_out_channels=(8,),
            decoder_block_out_channels=(8,),
            layers_per_block=(1,),
            decoder_layers_per_block=(1, 1),
            spatio_temporal_scaling=(True,),
            decoder_spatio_temporal_scaling=(True,),
            decoder_inject_noise=(False, False),
            downsample_type=("spatial",),
            upsample_residual=(False,),
            upsample_factor=(1,),
            patch_size=1,
            patch_size_t=1,
        ).eval(),
        audio_vae=d.AutoencoderKLLTX2Audio(
            base_channels=4,
            ch_mult=(1,),
            num_res_blocks=1,
            resolution=32,
            latent_channels=2,
            mel_bins=8,
        ).eval(),
        text_encoder=encoder,
        tokenizer=text.byte_tokenizer(),
        connectors=d.pipelines.ltx2.LTX2TextConnectors(
            caption_channels=text.TEXT_DIM,
            text_proj_in_factor=3,
            video_connector_num_attention_heads=2,
            video_connector_attention_head_dim=16,
            video_connector_num_layers=1,
            video_connector_num_learnable_registers=None,
            audio_connector_num_attention_heads=2,
            audio_connector_attention_head_dim=16,
            audio_connector_num_layers=1,
            audio_connector_num_learnable_registers=None,
            connector_rope_base_seq_len=32,
            rope_double_precision=False,
        ).eval(),
        transformer=d.LTX2VideoTransformer3DModel(
            **HEADS,
            in_channels=4,
            out_channels=4,
            cross_attention_dim=32,
            audio_in_channels=4,
            audio_out_channels=4,
            audio_num_attention_heads=2,
            audio_attention_head_dim=8,
            audio_cross_attention_dim=16,
            num_layers=1,
            caption_channels=text.TEXT_DIM,
            rope_double_precision=False,
        ),
        vocoder=d.pipelines.ltx2.LTX2Vocoder(
            in_channels=16,
            hidden_channels=8,
            upsample_kernel_sizes=[4, 4],
            upsample_factors=[2, 2],
            resnet_kernel_sizes=[3],
            resnet_dilations=[[1]],
        ).eval(),
    )


def mochi() -> d.DiffusionPipeline:
    """Mochi 1."""
    return d.MochiPipeline(
        scheduler=flow(),
        vae=d.AutoencoderKLMochi(
            latent_channels=12,
            out_channels=3,
            encoder_block_out_channels=(32, 32, 32, 32),
            decoder_block_out_channels=(32, 32, 32, 32),
            layers_per_block=(1, 1, 1, 1, 1),
        ).eval(),
        text_encoder=text.t5_text(),
        tokenizer=text.t5_tokenizer(),
        transformer=d.MochiTransformer3DModel(
            **HEADS,
            num_layers=2,
            pooled_projection_dim=16,
            in_channels=12,
            text_embed_dim=text.TEXT_DIM,
            time_embed_dim=8,
            max_sequence_length=16,
        ),
    )


def sana_video() -> d.DiffusionPipeline:
    """Sana-Video, with its DPM-Solver++ scheduler."""
    return d.SanaVideoPipeline(
        tokenizer=text.byte_tokenizer(),
        text_encoder=text.gemma_text(),
        vae=wan_vae(),
        transformer=d.SanaVideoTransformer3DModel(
            **HEADS,
            in_channels=16,
            out_channels=16,
            num_layers=1,
            num_cross_attention_heads=2,
            cross_attention_head_dim=16,
            cross_attention_dim=32,
            caption_channels=text.TEXT_DIM,
            mlp_ratio=2.0,
            sample_size=8,
            rope_max_seq_len=32,
        ),
        scheduler=d.DPMSolverMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=8.0
        ),
    )


def skyreels2() -> d.DiffusionPipeline:
    """SkyReels V2."""
    stub_ftfy(d.SkyReelsV2Pipeline)
    return wan(
        unipc_flow(),
        d.SkyReelsV2Pipeline,
        transformer=d.SkyReelsV2Transformer3DModel(
            num_attention_heads=2,
            attention_head_dim=12,
            text_dim=text.TEXT_DIM,
            freq_dim=32,
            ffn_dim=32,
            num_layers=1,
            rope_max_seq_len=64,
        ),
    )


def wan_vace() -> d.DiffusionPipeline:
    """Wan VACE: a video, a mask and a prompt to a video."""
    stub_ftfy(d.WanVACEPipeline)
    return wan(
        flow(shift=3.0),
        d.WanVACEPipeline,
        transformer=d.WanVACETransformer3DModel(
            num_attention_heads=2,
            attention_head_dim=12,
            text_dim=text.TEXT_DIM,
            freq_dim=32,
            ffn_dim=32,
            num_layers=2,
            rope_max_seq_len=64,
            vace_layers=[0],
            vace_in_channels=96,
        ),
    )


def _vace_call() -> Kwargs:
    video, mask = [picture()] * 5, [Image.new("L", (32, 32), 255)] * 5
    return guided(video=video, mask=mask, num_frames=5, guidance_scale=5.0)()


# LTX-2 as LTX-2.0 was: guided by the negative prompt alone.
LTX2 = {
    "stg_scale": 0.0,
    "modality_scale": 1.0,
    "guidance_rescale": 0.0,
    "audio_guidance_scale": 3.0,
    "audio_stg_scale": 0.0,
    "audio_modality_scale": 1.0,
    "audio_guidance_rescale": 0.0,
    "spatio_temporal_guidance_blocks": None,
    "use_cross_timestep": False,
}

ENTRIES: tuple[Entry, ...] = (
    kind("hunyuan-video-1.5", hunyuan_video15, guided(32, tokens=None, num_frames=5), branches=2),
    kind("kandinsky5-t2v", kandinsky5, guided(64, num_frames=5, guidance_scale=5.0), branches=2),
    kind("ltx2", ltx2, guided(num_frames=5, guidance_scale=3.0, **LTX2)),
    kind("mochi", mochi, guided(64, num_frames=7, guidance_scale=4.5)),
    kind(
        "sana-video",
        sana_video,
        guided(64, frames=5, guidance_scale=6.0, complex_human_instruction=None, use_resolution_binning=False),
    ),
    kind("skyreels-v2", skyreels2, guided(64, num_frames=5, guidance_scale=6.0), branches=2),
    kind("wan-vace", wan_vace, _vace_call, branches=2),
)
