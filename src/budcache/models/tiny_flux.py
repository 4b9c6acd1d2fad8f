"""tiny-flux: FLUX with other defaults, for its files in the folder `tiny-flux`."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import diffusers

from budcache.models.tokenizer import CappedTokenizer

__all__ = ["DEFAULTS", "FluxPipeline", "load"]

DEFAULTS = {"height": 64, "width": 64, "max_sequence_length": 12}


class FluxPipeline(diffusers.FluxPipeline):  # type: ignore[misc]
    """FLUX that draws pictures of its autoencoder's size unless it is told another, not of 1024 pixels.

    It has its parent's name, so that what `save_pretrained` writes is an index that diffusers can read.
    """

    # Wrapped, for diffusers reads the signature.
    @functools.wraps(diffusers.FluxPipeline.__init__)  # type: ignore[misc]
    def __init__(self, *args: Any, **components: Any) -> None:
        super().__init__(*args, **components)
        if self.vae is not None:
            self.default_sample_size = self.vae.config.sample_size // self.vae_scale_factor


def load(folder: Path, **from_pretrained: Any) -> FluxPipeline:
    """The pipeline from the files in `folder`, which name stock classes only, so that other tools can read them."""
    if "tokenizer_2" not in from_pretrained:
        from_pretrained["tokenizer_2"] = CappedTokenizer.from_pretrained(folder / "tokenizer_2", local_files_only=True)
    pipe: FluxPipeline = FluxPipeline.from_pretrained(folder, **from_pretrained)
    return pipe
