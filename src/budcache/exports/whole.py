"""A whole pipeline that is written along with a policy: its files, its LoRA, and how it has to be loaded and called."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from budcache.errors import PipelineError, PolicyError
from budcache.exports.base import Target
from budcache.policy import Origin
from budcache.wording import quote

if TYPE_CHECKING:
    import torch

    from budcache.models.loras import Lora

__all__ = ["Whole", "is_loaded"]


def is_loaded(pipeline: object) -> bool:
    """Whether it is a pipeline, and not the name of one."""
    if pipeline is None or isinstance(pipeline, str | os.PathLike):
        return False
    if not hasattr(pipeline, "scheduler"):
        raise PipelineError(
            f"pipeline is {quote(pipeline)}. Give a model's name, folder or hub id, or a pipeline of diffusers."
        )
    return True


@dataclass(frozen=True)
class Whole:
    """A model whose files are written.

    Args:
        model: its name, folder or hub id.
        lora: what works on it.
        dtype: the numbers that it is to be loaded in; None is diffusers' own choice.
    """

    model: str
    lora: Lora | None = None
    dtype: torch.dtype | None = None

    @classmethod
    def of(
        cls,
        target: Target,
        pipeline: Any,
        lora: str | os.PathLike[str] | None,
        lora_scale: float,
        dtype: torch.dtype | None,
    ) -> Whole | None:
        """What was asked for; None where no whole pipeline is written."""
        from budcache import models
        from budcache.models.loras import Lora

        if pipeline is None or is_loaded(pipeline) or not target.takes_model:
            if lora is not None or dtype is not None or lora_scale != 1:
                raise PolicyError(
                    f"a LoRA and a dtype belong to a whole pipeline, and none is written to {target.name} here. Leave "
                    "them out, or name the model with --pipeline (pipeline= in Python) for diffusers."
                )
            return None
        model = models.check(pipeline, lora, lora_scale)
        return cls(model, None if lora is None else Lora.find(model, lora, lora_scale), dtype)

    def files(self, origin: Origin) -> dict[str, Any]:
        """What an export's task has to know of it."""
        from budcache import models

        folders = models.folders(self.model)
        _check_denoiser(origin, self.model, folders[-1])
        return {
            "model": folders,
            "call": "".join(f", {name}={value!r}" for name, value in models.defaults(self.model).items()),
            "loaded": "".join(f", {name}={value}" for name, value in models.dtype_argument(self.dtype).items()),
            "lora": self.lora,
        }


def _check_denoiser(origin: Origin, model: str, folder: Path) -> None:
    """Refuse to write a policy into a pipeline of another kind."""
    index = json.loads((folder / "model_index.json").read_text(encoding="utf-8"))
    classes = {part[-1] for part in index.values() if isinstance(part, list) and part}
    if origin.denoiser is not None and not set(origin.denoiser.split(", ")) & classes:
        raise PolicyError(
            f"this policy was made on {origin.denoiser}, which {model} does not have. Name the model that it is for."
        )
