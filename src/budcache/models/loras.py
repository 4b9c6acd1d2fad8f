"""LoRAs by name: those that an embedded model brings, a file, a folder, or an id on the hub."""

from __future__ import annotations

import importlib.util
import math
import os
import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from budcache.errors import PipelineError

__all__ = ["Lora", "embedded"]

_HUB_FILE = re.compile(r"(?P<id>[\w-][\w.-]*/[\w-][\w.-]*)(/(?P<file>[^\s]+\.safetensors))?")
HOME = Path(__file__).parent  # of the embedded models
_USUAL = "pytorch_lora_weights.safetensors"  # what `save_lora_weights` writes


def embedded(model: str) -> tuple[str, ...]:
    """The names of the LoRAs that an embedded model brings."""
    return tuple(sorted(file.stem for file in (HOME / model / "loras").glob("*.safetensors")))


@dataclass(frozen=True)
class Lora:
    """A LoRA that is there, as far as can be told without loading it.

    Args:
        source: a file on this machine, or an id on the hub.
        name: what the adapter will be called.
        scale: how strongly it is to work; 1 is as it was trained.
        file: which file of the hub's repository; None where it has only one.
    """

    source: str
    name: str
    scale: float = 1.0
    file: str | None = None

    @classmethod
    def find(cls, model: str, lora: str | os.PathLike[str], scale: float = 1.0) -> Lora:
        """The LoRA of that name for a model; one that cannot be is refused.

        Args:
            model: the model's name; an embedded one has LoRAs of its own.
            lora: the name of one of these, a file, a folder with one, or a hub id: `owner/name`, or
                `owner/name/file.safetensors` where a repository has several.
            scale: how strongly it is to work.
        """
        text = os.fspath(lora)
        if not isinstance(scale, int | float) or isinstance(scale, bool) or not math.isfinite(scale):
            raise PipelineError(f"a LoRA's scale is a finite number, got {scale!r}. 1 is as it was trained.")
        if importlib.util.find_spec("peft") is None:
            raise PipelineError("a LoRA needs peft, which is not installed. Install it: pip install 'budcache[lora]'.")
        own = embedded(model)
        if text in own:
            return cls(str(HOME / model / "loras" / f"{text}.safetensors"), text, scale)
        path = Path(text).expanduser()
        if path.is_dir():
            path = _file_in(path)
        if path.is_file():
            name = path.parent.name if path.name == _USUAL else path.stem
            return cls(str(path), _adapter_name(name), scale)
        on_hub = None if text.startswith((".", "/", "~")) else _HUB_FILE.fullmatch(text)
        if on_hub is None:
            meant, listed = get_close_matches(text, own, 1), ", ".join(own)
            raise PipelineError(
                f"there is no LoRA {text!r}{f'; did you mean {meant[0]}?' if meant else '.'} "
                f"{f'{model} has {listed}. ' if own else ''}Give a file, a folder, or a hub id of the form owner/name "
                "or owner/name/file.safetensors."
            )
        name = Path(on_hub["file"]).stem if on_hub["file"] else on_hub["id"].partition("/")[2]
        return cls(on_hub["id"], _adapter_name(name), scale, on_hub["file"])

    def load(self, pipe: Any) -> None:
        """Put it on a pipeline."""
        if not hasattr(pipe, "load_lora_weights"):
            raise PipelineError(f"{type(pipe).__name__} takes no LoRAs. Leave the LoRA out.")
        where = {"weight_name": self.file} if self.file else {}
        try:
            pipe.load_lora_weights(self.source, adapter_name=self.name, use_safetensors=True, **where)
        except Exception as error:  # of files, of the hub, of shapes: each library has its own
            said = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".:")
            raise PipelineError(
                f"the LoRA {self} cannot be loaded ({said}): check that it is all there and made for this model."
            ) from error
        if not any(self.name in names for names in pipe.get_list_adapters().values()):
            raise PipelineError(f"the LoRA {self} has no weights for {type(pipe).__name__}: it is for another model.")
        if self.scale != 1:
            pipe.set_adapters([self.name], [self.scale])

    def path(self) -> Path:
        """Its file on this machine; one on the hub is downloaded."""
        if Path(self.source).is_file():
            return Path(self.source)
        from huggingface_hub import hf_hub_download, snapshot_download

        try:
            if self.file is not None:
                return Path(hf_hub_download(self.source, self.file))
            return _file_in(Path(snapshot_download(self.source, allow_patterns="*.safetensors")))
        except (OSError, ValueError) as error:
            said = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".:")
            raise PipelineError(
                f"the LoRA {self} could not be downloaded ({said}): check the spelling, the network and your access."
            ) from error

    def __str__(self) -> str:
        return f"{self.source}/{self.file}" if self.file else self.source


def _file_in(folder: Path) -> Path:
    """The one LoRA in a folder."""
    files = sorted(folder.glob("*.safetensors"))
    usual = [file for file in files if file.name == _USUAL]
    if len(files) != 1 and not usual:
        there = ", ".join(file.name for file in files) or "none"
        raise PipelineError(
            f"the folder {folder} should have one LoRA, a .safetensors file, and has {there}. Name the file."
        )
    return (usual or files)[0]


def _adapter_name(text: str) -> str:
    """A name as peft can have it: no dots."""
    return re.sub(r"\W+", "_", text).strip("_") or "lora"
