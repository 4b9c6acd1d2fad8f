"""Pipelines by name: the embedded tiny-flux, a folder on this machine, or an id on the hub."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from budcache.errors import PipelineError

if TYPE_CHECKING:
    import torch
    from diffusers import DiffusionPipeline
    from transformers import PreTrainedTokenizerFast

__all__ = ["EMBEDDED", "SPLITS", "load", "prompts"]

EMBEDDED = ("tiny-flux",)
SPLITS = ("calibration", "evaluation")

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def load(name: str | os.PathLike[str], *, dtype: torch.dtype | None = None, **kwargs: Any) -> DiffusionPipeline:
    """A pipeline ready to call: `load("tiny-flux")`, `load("./my-model")` or `load("owner/name")`.

    Embedded names come first; write `./tiny-flux` for a folder of that name. `dtype` defaults to float32 for
    embedded models and to diffusers' own choice otherwise. Further arguments go to `from_pretrained`.
    """
    text = os.fspath(name)
    if text in EMBEDDED:
        return _embedded(text, dtype, **kwargs)
    folder = Path(text).expanduser()
    if folder.is_dir():
        if not (folder / "model_index.json").is_file():
            raise PipelineError(
                f"The folder {text} is not a pipeline, it has no model_index.json: "
                "give the folder that `save_pretrained` wrote."
            )
        return _read(folder, dtype, **kwargs)
    if _HUB_ID.fullmatch(text) and not text.startswith("./"):
        return _download(text, dtype, **kwargs)
    raise PipelineError(
        f"there is no model {text!r}: give an embedded name ({', '.join(EMBEDDED)}), "
        "an existing folder, or a hub id of the form owner/name."
    )


def prompts(name: str, split: str) -> list[str]:
    """The captions an embedded model comes with, 64 for `"calibration"` and 64 others for `"evaluation"`."""
    if name not in EMBEDDED:
        raise PipelineError(
            f"There are no prompts for {name!r}, only for {', '.join(EMBEDDED)}: pass your own prompts."
        )
    if split not in SPLITS:
        raise PipelineError(f"There is no prompt set {split!r} for {name}: ask for {' or '.join(SPLITS)}.")
    return (_folder(name) / "prompts" / f"{split}.txt").read_text(encoding="utf-8").splitlines()


def _folder(name: str) -> Path:
    return Path(__file__).parent / name


def _embedded(name: str, dtype: torch.dtype | None, **kwargs: Any) -> DiffusionPipeline:
    import torch

    with _without_advice():
        from diffusers import FluxPipeline

    kwargs = {"local_files_only": True} | _dtype_argument(dtype or torch.float32) | kwargs
    pipe = FluxPipeline.from_pretrained(_folder(name), **kwargs)
    # FluxPipeline's own defaults are those of a big model: 1024 pixels and 512 text tokens.
    pipe.default_sample_size = pipe.vae.config.sample_size // pipe.vae_scale_factor
    if pipe.tokenizer_2 is not None:
        _pad_no_further(pipe.tokenizer_2)
    return pipe


def _pad_no_further(tokenizer: PreTrainedTokenizerFast) -> None:
    """Let `padding="max_length"` stop at the model's own length, whatever length the pipeline asks for.

    Done on the one object, so that its class stays a stock one and every pipeline that shares it profits.
    """
    stock = tokenizer.set_truncation_and_padding

    def capped(*, max_length: int | None, **settings: Any) -> None:
        stock(max_length=max_length and min(max_length, tokenizer.model_max_length), **settings)

    tokenizer.set_truncation_and_padding = capped


@contextmanager
def _without_advice() -> Iterator[None]:
    """Import without transformers' advice to install torchvision, which the embedded models have no use for."""
    from transformers.utils import logging

    usual = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(usual)


def _read(folder: Path, dtype: torch.dtype | None, **kwargs: Any) -> DiffusionPipeline:
    from diffusers import DiffusionPipeline

    try:
        kwargs = {"local_files_only": True} | _dtype_argument(dtype) | kwargs
        return DiffusionPipeline.from_pretrained(folder, **kwargs)
    except (OSError, ValueError) as error:
        raise PipelineError(
            f"The pipeline in {folder} cannot be read ({_reason(error)}): "
            "check that all its files are there, or download it again."
        ) from error


def _download(hub_id: str, dtype: torch.dtype | None, **kwargs: Any) -> DiffusionPipeline:
    from diffusers import DiffusionPipeline

    try:
        return DiffusionPipeline.from_pretrained(hub_id, **_dtype_argument(dtype), **kwargs)
    except (OSError, ValueError) as error:
        raise PipelineError(
            f"the model {hub_id} cannot be had ({_reason(error)}): check the spelling, the network and "
            f"your access, or try an embedded one ({', '.join(EMBEDDED)})."
        ) from error


def _dtype_argument(dtype: torch.dtype | None) -> dict[str, Any]:
    """The argument of `from_pretrained`, which diffusers renamed in 0.40."""
    import diffusers

    if dtype is None:
        return {}
    major, minor = diffusers.__version__.split(".")[:2]
    return {"dtype" if (int(major), int(minor)) >= (0, 40) else "torch_dtype": dtype}


def _reason(error: BaseException) -> str:
    """What an error says before it goes into detail, fit for the inside of a sentence."""
    return re.split(r"\n| \(|\. ", str(error).strip(), maxsplit=1)[0].rstrip(".:") or type(error).__name__
