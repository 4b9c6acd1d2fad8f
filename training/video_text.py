"""The text side of the video models: a tokenizer of whole words and a small UMT5 encoder.

It is trained with the large transformer; the small one learns to read what it writes.
"""

from __future__ import annotations

import torch
from text import word_tokenizer
from torch import nn
from transformers import PreTrainedTokenizerFast, UMT5Config, UMT5EncoderModel
from video_data import MOTIONS, names

LENGTH, WIDTH = 16, 96


def tokenizer() -> PreTrainedTokenizerFast:
    texts = [*names(), *(phrase for phrases, _ in MOTIONS.values() for phrase in phrases), "a an the two emoji of"]
    return word_tokenizer({word for text in texts for word in text.split()}, LENGTH)


def encoder(words: PreTrainedTokenizerFast) -> UMT5EncoderModel:
    return UMT5EncoderModel(
        UMT5Config(
            vocab_size=len(words),
            d_model=WIDTH,
            d_kv=32,
            d_ff=2 * WIDTH,
            num_layers=2,
            num_heads=3,
            relative_attention_max_distance=32,
            dropout_rate=0.0,
            feed_forward_proj="gated-gelu",
            pad_token_id=0,
            eos_token_id=1,
        )
    )


class Reader(nn.Module):
    """Captions to one vector a word, padded with zeros as WanPipeline does."""

    def __init__(self) -> None:
        super().__init__()
        self.tokenizer = tokenizer()
        self.encoder = encoder(self.tokenizer)

    def forward(self, captions: list[str]) -> torch.Tensor:
        tokens = self.tokenizer(captions, padding="max_length", truncation=True, max_length=LENGTH, return_tensors="pt")
        words = self.encoder(tokens.input_ids, tokens.attention_mask).last_hidden_state
        return words * tokens.attention_mask[..., None]
