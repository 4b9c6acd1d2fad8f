"""CLIP score (Hessel et al. 2021): how well a picture fits its prompt, no reference needed."""

from __future__ import annotations

from typing import Any, ClassVar

from budcache.metrics.base import Frame, Metric, absent
from budcache.storage.media import to_levels

__all__ = ["ClipB", "ClipL"]


class _Clip(Metric):
    """100 times the cosine between picture and prompt, never below 0."""

    digits, reference = 2, False
    source: ClassVar[str]  # a hub id, or a folder

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.model: Any = None
        self.processor: Any = None

    def prepare(self) -> None:
        """Load the model, from the hub's cache or from the hub."""
        if self.model is not None:
            return
        from transformers import CLIPModel, CLIPProcessor

        try:
            self.processor = CLIPProcessor.from_pretrained(self.source)
            self.model = CLIPModel.from_pretrained(self.source).eval().to(self.device)
        except (OSError, ValueError) as error:
            raise absent(
                self.title,
                f"the weights of {self.source}, which could not be downloaded ({type(error).__name__})",
                f"Connect once, or run `hf download {self.source}` where there is a network, "
                f"or leave {self.name} out of --metrics.",
            ) from None

    def frame(self, picture: Frame, reference: Frame, prompt: str) -> float:
        """Measure one frame."""
        import torch

        self.prepare()
        inputs = self.processor(
            text=[prompt],
            images=[to_levels(picture)],
            return_tensors="pt",
            padding=True,
            truncation=True,
            input_data_format="channels_last",
        )
        with torch.inference_mode():
            found = self.model(**inputs.to(self.device))
            cosine = torch.nn.functional.cosine_similarity(found.image_embeds, found.text_embeds)
        return max(0.0, 100 * float(cosine))


class ClipB(_Clip):
    """CLIP score of the small model, the paper's CLIP (B)."""

    name, title, source = "clip-b", "CLIP (B)", "openai/clip-vit-base-patch32"


class ClipL(_Clip):
    """CLIP score of the large model, the paper's CLIP (L)."""

    name, title, source = "clip-l", "CLIP (L)", "openai/clip-vit-large-patch14"
