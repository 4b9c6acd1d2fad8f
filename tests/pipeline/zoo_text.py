"""Tiny random text encoders and byte-level tokenizers for the pipeline zoo, made in memory.

Every tokenizer is a real ``transformers`` class over the 256 byte symbols (T5: the printable ASCII
characters), one token per character, so that any prompt can be encoded and different prompts give
different tokens.  ``CHATML`` is a chat template which accepts string and list contents.
"""

from __future__ import annotations

from typing import Any

from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    ByT5Tokenizer,
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    Gemma2Config,
    Gemma2Model,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    GlmConfig,
    GlmModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLTextModel,
    Qwen2Tokenizer,
    Qwen2VLProcessor,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3Model,
    Qwen3VLConfig,
    Qwen3VLModel,
    T5Config,
    T5EncoderModel,
    T5GemmaConfig,
    T5Tokenizer,
    UMT5Config,
    UMT5EncoderModel,
)
from transformers.models.t5gemma.modeling_t5gemma import T5GemmaEncoder

BYTES = sorted(ByteLevel.alphabet())
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}{{ c.text }}{% endfor %}"
    "{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VISION = {"<|vision_start|>": 259, "<|vision_end|>": 260, "<|image_pad|>": 261, "<|video_pad|>": 262}
TEXT_DIM = 32  # hidden size of every text encoder but CLIP
CLIP_DIM = 16
_VOCAB = 320  # rows of the embeddings of the byte-level language models


def clip_tokenizer() -> CLIPTokenizer:
    """A CLIP tokenizer without merges."""
    tokens = ["<|startoftext|>", "<|endoftext|>", *BYTES, *(b + "</w>" for b in BYTES)]
    return CLIPTokenizer(vocab={t: i for i, t in enumerate(tokens)}, merges=[], model_max_length=77)


def t5_tokenizer() -> T5Tokenizer:
    """A unigram T5 tokenizer whose pieces are single characters."""
    pieces = ["<pad>", "</s>", "<unk>", "▁", *(chr(c) for c in range(33, 127))]
    vocab = [(p, 0.0 if i < 3 else -2.0) for i, p in enumerate(pieces)]
    return T5Tokenizer(vocab=vocab, extra_ids=0, model_max_length=128)


def byte_tokenizer() -> Qwen2Tokenizer:
    """A byte-level tokenizer with a chat template, for every decoder language model."""
    special = ["<|im_start|>", "<|im_end|>", *VISION]
    tokens = ["<|endoftext|>", *BYTES, *special]
    tokenizer = Qwen2Tokenizer(vocab={t: i for i, t in enumerate(tokens)}, merges=[], model_max_length=1024)
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    tokenizer.chat_template = CHATML
    return tokenizer


class _Processor(Qwen2VLProcessor):
    """The processor of Qwen-VL without its part for videos, which needs torchvision."""

    def check_argument_for_proper_class(self, *_: Any) -> None:
        """Its part for videos may be missing."""


def qwen_vl_processor() -> Qwen2VLProcessor:
    """A processor of texts and images (28 pixels a side at most) for Qwen2.5-VL."""
    from transformers import Qwen2VLImageProcessorPil  # not there in the lowest version that we allow

    images = Qwen2VLImageProcessorPil(size={"shortest_edge": 28 * 28, "longest_edge": 28 * 28})
    return _Processor(image_processor=images, tokenizer=byte_tokenizer(), video_processor=None, chat_template=CHATML)


def byt5_tokenizer() -> ByT5Tokenizer:
    """The tokenizer of ByT5, whose tokens are bytes already."""
    return ByT5Tokenizer(extra_ids=0)


def clip_text(*, projection: bool = False) -> PreTrainedModel:
    """A CLIP text encoder, with or without the text projection."""
    config = CLIPTextConfig(
        vocab_size=2 + 2 * len(BYTES),
        hidden_size=CLIP_DIM,
        projection_dim=CLIP_DIM,
        intermediate_size=CLIP_DIM,
        num_attention_heads=2,
        num_hidden_layers=2,
        max_position_embeddings=77,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
        initializer_factor=5.0,
    )
    return (CLIPTextModelWithProjection if projection else CLIPTextModel)(config).eval()


def t5_text(*, umt5: bool = False) -> PreTrainedModel:
    """A T5 (or UMT5) encoder."""
    config = (UMT5Config if umt5 else T5Config)(
        vocab_size=272, d_model=TEXT_DIM, d_kv=8, d_ff=32, num_layers=1, num_heads=2, pad_token_id=0
    )
    return (UMT5EncoderModel if umt5 else T5EncoderModel)(config).eval()


def _decoder_sizes(layers: int) -> dict[str, Any]:
    return {
        "vocab_size": _VOCAB,
        "hidden_size": TEXT_DIM,
        "intermediate_size": 32,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 1024,
        "pad_token_id": 0,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "initializer_range": 0.2,
    }


def llama_text(*, causal: bool = False) -> PreTrainedModel:
    """A Llama model (HunyuanVideo reads its third-last hidden state) or causal language model (HiDream)."""
    return (LlamaForCausalLM if causal else LlamaModel)(LlamaConfig(**_decoder_sizes(3))).eval()


def glm_text() -> PreTrainedModel:
    """A GLM model."""
    return GlmModel(GlmConfig(**_decoder_sizes(2))).eval()


def gemma_text() -> PreTrainedModel:
    """A Gemma 2 model."""
    return Gemma2Model(Gemma2Config(**_decoder_sizes(2), query_pre_attn_scalar=16)).eval()


def qwen3_text(*, causal: bool = False) -> PreTrainedModel:
    """A Qwen3 model (Z-Image) or causal language model (FLUX.2 klein)."""
    config = Qwen3Config(**_decoder_sizes(3), tie_word_embeddings=True)
    return (Qwen3ForCausalLM if causal else Qwen3Model)(config).eval()


def t5gemma_text() -> PreTrainedModel:
    """The encoder of a T5Gemma model."""
    sizes = {**_decoder_sizes(1), "query_pre_attn_scalar": 16}
    return T5GemmaEncoder(T5GemmaConfig(encoder=sizes, decoder=sizes).encoder).eval()


def gemma3_text() -> PreTrainedModel:
    """A Gemma 3 model, of which LTX-2 uses the language part."""
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes = {**_decoder_sizes(2), "query_pre_attn_scalar": 16}
    config = Gemma3Config(text_config=sizes, vision_config={**vision, "image_size": 28, "patch_size": 14})
    return Gemma3ForConditionalGeneration(config).eval()


def qwen3_vl_text() -> PreTrainedModel:
    """A Qwen3-VL model, of which Krea 2 uses the language part."""
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": TEXT_DIM}
    sizes = {**_decoder_sizes(2), "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3]}}
    return Qwen3VLModel(Qwen3VLConfig(text_config=sizes, vision_config=vision)).eval()


def qwen_vl_text(*, layers: int = 1, language: bool = False) -> PreTrainedModel:
    """A Qwen2.5-VL model, of which Qwen-Image uses the language part; or that part alone (HunyuanVideo 1.5)."""
    sizes = _decoder_sizes(layers)
    del sizes["head_dim"]
    config = Qwen2_5_VLConfig(
        text_config={**sizes, "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3]}},
        vision_config={
            "depth": 1,
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_heads": 2,
            "out_hidden_size": TEXT_DIM,
            "fullatt_block_indexes": [0],
        },
        **{f"{name.strip('<|>').replace('_pad', '')}_token_id": number for name, number in VISION.items()},
    )
    return (Qwen2_5_VLTextModel(config.text_config) if language else Qwen2_5_VLForConditionalGeneration(config)).eval()


def mistral3_text() -> PreTrainedModel:
    """A Mistral 3 model with its vision tower, of which FLUX.2 uses the language part."""
    config = Mistral3Config(
        text_config={"model_type": "mistral", **_decoder_sizes(3)},
        vision_config={
            "model_type": "pixtral",
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "head_dim": 8,
            "image_size": 28,
            "patch_size": 14,
        },
        image_token_index=_VOCAB - 1,
    )
    return Mistral3ForConditionalGeneration(config).eval()
