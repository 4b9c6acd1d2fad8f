"""The text side: two tokenizers with vocabularies of our own, two small encoders, ways to say a caption.

CLIP reads pieces of words (byte pairs) and gives one vector; T5 reads whole words and gives one vector each.
Both are trained together with the transformer.
"""

from __future__ import annotations

import json
import random

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTokenizer,
    PreTrainedTokenizerFast,
    T5Config,
    T5EncoderModel,
)

CLIP_LENGTH, T5_LENGTH, WIDTH = 24, 12, 96
TEMPLATES = [
    "a {}",
    "the {}",
    "{} emoji",
    "an emoji of {}",
    "an emoji of a {}",
    "a picture of a {}",
    "a small {}",
]


def spoken(names: list[str], rng: random.Random) -> str:
    """A name as somebody might type it: bare, in a phrase, in the plural, with a stray word."""
    caption = names[0] if rng.random() < 0.6 else rng.choice(names)
    if rng.random() < 0.4:
        caption = rng.choice(TEMPLATES).format(caption)
    if rng.random() < 0.03:
        caption += "s"
    if rng.random() < 0.03:
        stray = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, 6)))
        caption = f"{stray} {caption}"
    if rng.random() < 0.03:
        caption += rng.choice("!.,?")
    return caption


def clip_tokenizer(captions: list[list[str]]) -> CLIPTokenizer:
    """Byte pairs learned from the captions; CLIP's tokenizer ignores case by itself."""
    bpe = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    bpe.pre_tokenizer = pre_tokenizers.Split(Regex(r"[a-z]+|[0-9]"), behavior="removed", invert=True)
    trainer = trainers.BpeTrainer(vocab_size=1800, end_of_word_suffix="</w>", show_progress=False)
    bpe.train_from_iterator(texts(captions), trainer)
    vocabulary = dict(sorted(bpe.get_vocab().items(), key=lambda item: item[1]))
    merges = [tuple(pair) for pair in json.loads(bpe.to_str())["model"]["merges"]]
    # Letters and digits must exist alone and at the end of a word, or rare spellings could not be read.
    for letter in "abcdefghijklmnopqrstuvwxyz0123456789":
        for piece in (letter, letter + "</w>"):
            vocabulary.setdefault(piece, len(vocabulary))
    # CLIP's default stands "end" in for unknown pieces, which would end the caption at the first "!".
    for special in ("<|startoftext|>", "<|endoftext|>", "<|unknown|>"):
        vocabulary[special] = len(vocabulary)
    return CLIPTokenizer(vocab=vocabulary, merges=merges, unk_token="<|unknown|>", model_max_length=CLIP_LENGTH)


def t5_tokenizer(captions: list[list[str]]) -> PreTrainedTokenizerFast:
    """Whole words keep sequences at a dozen tokens, which FLUX pays for at every step."""
    return word_tokenizer({word for text in texts(captions) for word in text.split()}, T5_LENGTH)


def word_tokenizer(words: set[str], length: int) -> PreTrainedTokenizerFast:
    """One token per known word, case and punctuation ignored, a plural ending split off."""
    vocabulary = {token: i for i, token in enumerate(["<pad>", "</s>", "<unk>", "##s", "##es", *sorted(words)])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.NFKD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex("['\u2019]"), ""),
            normalizers.Replace(Regex("[^a-z0-9]+"), " "),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=length,
    )


def texts(captions: list[list[str]]) -> list[str]:
    return [name for names in captions for name in names] + [template.format("") for template in TEMPLATES]


def clip_encoder(tokenizer: CLIPTokenizer) -> CLIPTextModel:
    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(tokenizer),
            hidden_size=WIDTH,
            intermediate_size=2 * WIDTH,
            projection_dim=WIDTH,
            num_hidden_layers=2,
            num_attention_heads=3,
            max_position_embeddings=CLIP_LENGTH,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def t5_encoder(tokenizer: PreTrainedTokenizerFast) -> T5EncoderModel:
    return T5EncoderModel(
        T5Config(
            vocab_size=len(tokenizer),
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
