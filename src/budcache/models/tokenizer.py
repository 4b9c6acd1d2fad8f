"""A tokenizer for models that were trained on short texts."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerFast

__all__ = ["CappedTokenizer"]


class CappedTokenizer(PreTrainedTokenizerFast):  # type: ignore[misc]
    """Pads and cuts texts to the model's own length, whatever greater length a pipeline asks for.

    FLUX asks for 512 tokens, and padding that the embedded models never saw would spoil their pictures.
    Being a class, it goes wherever the tokenizer goes: into copies, other pipelines and saved folders.
    """

    # As it stands in the index of a saved pipeline.
    __module__ = "budcache"

    def set_truncation_and_padding(self, *, max_length: int | None, **settings: Any) -> None:
        """Set both in the tokenizer below, with the length bounded."""
        super().set_truncation_and_padding(max_length=max_length and min(max_length, self.model_max_length), **settings)
