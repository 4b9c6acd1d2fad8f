"""Pipelines by name: an embedded model, a folder on this machine, or an id on the hub."""

from __future__ import annotations

import importlib
import json
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from budcache.errors import BudcacheError, PipelineError
from budcache.models.loras import Lora

if TYPE_CHECKING:
    import torch
    from diffusers import DiffusionPipeline

__all__ = [
    "EMBEDDED",
    "SPLITS",
    "check",
    "defaults",
    "dtype_argument",
    "folder",
    "folders",
    "load",
    "pipeline_class",
    "prompts",
]


class Embedded(NamedTuple):
    """Where an embedded model is, beside the folder of its name.

    Attributes:
        module: the module with its pipeline's class and `load`.
        shared: the folder with its prompts, and with what it shares with other models, if it does.
        about: what it makes and what it is not, for those who take it for the large model that its name reminds of.
    """

    module: str
    shared: str
    about: str


_TRIAL = "that ships with budcache for trying it out"
_CLIPS = f"a small model of 64 × 64 pixel clips of emoji {_TRIAL}; it is not Wan2.1"
EMBEDDED = {
    "tiny-flux": Embedded("tiny_flux", "tiny-flux", f"a small model of 64 × 64 pixel emoji {_TRIAL}; it is not FLUX.1"),
    "tiny-wan": Embedded("tiny_wan", "tiny-wan-shared", _CLIPS),
    "tiny-wan-large": Embedded("tiny_wan", "tiny-wan-shared", _CLIPS),
}
SPLITS = ("calibration", "evaluation")

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def load(
    name: str | os.PathLike[str],
    *,
    dtype: torch.dtype | None = None,
    lora: str | os.PathLike[str] | None = None,
    lora_scale: float = 1.0,
    **from_pretrained: Any,
) -> DiffusionPipeline:
    """A pipeline ready to call: `load("tiny-flux")`, `load("./my-model")` or `load("owner/name")`.

    Embedded names come first; write `./tiny-flux` for a folder of that name. `dtype` defaults to float32 for
    embedded models and to diffusers' own choice otherwise. Further arguments go to the pipeline's `from_pretrained`.
    `lora` is the name of an embedded LoRA (`load("tiny-flux", lora="turbo")`), a file, a folder or a hub id; it works
    with the strength `lora_scale`.
    """
    text = check(name, lora, lora_scale)
    folder = Path(text).expanduser()
    if text in EMBEDDED:
        pipe = _embedded(text, dtype, **from_pretrained)
    elif folder.is_dir():
        pipe = _read(folder, dtype, **from_pretrained)
    else:
        pipe = _download(text, dtype, **from_pretrained)
    if lora is not None:
        Lora.find(text, lora, lora_scale).load(pipe)
    return pipe


def check(name: str | os.PathLike[str], lora: str | os.PathLike[str] | None = None, lora_scale: float = 1.0) -> str:
    """The name as text; one that is no embedded model, no pipeline's folder and no hub id is refused.

    So is a LoRA that is not there, as far as can be told without the network.
    """
    text = _check_model(name)
    if lora is not None:
        Lora.find(text, lora, lora_scale)
    elif lora_scale != 1:
        raise PipelineError(f"a LoRA's scale of {lora_scale:g} was given, but no LoRA. Name one, or leave it out.")
    return text


def _check_model(name: str | os.PathLike[str]) -> str:
    text = os.fspath(name)
    if text in EMBEDDED:
        return text
    folder = Path(text).expanduser()
    if folder.is_dir() and not (folder / "model_index.json").is_file():
        raise PipelineError(
            f"The folder {text} is not a pipeline, it has no model_index.json: "
            "give the folder that `save_pretrained` wrote."
        )
    if not folder.is_dir() and (not _HUB_ID.fullmatch(text) or text.startswith("./")):
        meant = get_close_matches(text, EMBEDDED, 1)
        raise PipelineError(
            f"there is no model {text!r}{f'; did you mean {meant[0]}?' if meant else ':'} "
            f"{'G' if meant else 'g'}ive an embedded name ({', '.join(EMBEDDED)}), an existing folder, or a hub id of "
            "the form owner/name."
        )
    return text


def located(name: str | os.PathLike[str], known: Collection[str] = EMBEDDED) -> str:
    """A name that means the same to a process in another folder: of what is on this disk, the whole path.

    Args:
        name: of a model or a LoRA.
        known: the embedded ones, which come first.
    """
    text = os.fspath(name)
    path = Path(text).expanduser()
    return text if text in known or not path.exists() else str(path.absolute())


def folder(name: str | os.PathLike[str]) -> Path:
    """The folder with a pipeline's files; a hub id is downloaded."""
    text = check(name)
    if text in EMBEDDED:
        return _folder(text)
    if Path(text).expanduser().is_dir():
        return Path(text).expanduser()
    from diffusers import DiffusionPipeline

    try:
        return Path(DiffusionPipeline.download(text))
    except (OSError, ValueError) as error:
        raise _unavailable(text, error) from error


def folders(name: str | os.PathLike[str]) -> tuple[Path, ...]:
    """The folders whose files together are a whole pipeline; the last is its own, with the index."""
    text, own = os.fspath(name), folder(name)
    shared = {_folder(EMBEDDED[text].shared)} if text in EMBEDDED else set()
    return (*(shared - {own}), own)


def defaults(name: str | os.PathLike[str]) -> dict[str, Any]:
    """What an embedded model is called with if it is told nothing; who loads its files without us has to say it."""
    text = os.fspath(name)
    return dict(_home(text).DEFAULTS) if text in EMBEDDED else {}


def pipeline_class(name: str | os.PathLike[str]) -> str:
    """The class of a model's pipeline, from its files; a hub id, which need not be here, is named like its family."""
    if str(name) not in EMBEDDED and not Path(name).is_dir():
        return str(name).rpartition("/")[2].replace("-", "")
    index = json.loads((folder(name) / "model_index.json").read_text(encoding="utf-8"))
    return str(index.get("_class_name", "")) if isinstance(index, dict) else ""


def prompts(name: str, split: str) -> list[str]:
    """The captions an embedded model comes with, some for `"calibration"` and as many others for `"evaluation"`."""
    if name not in EMBEDDED:
        raise PipelineError(
            f"There are no prompts for {name!r}, only for {', '.join(EMBEDDED)}: pass your own prompts."
        )
    if split not in SPLITS:
        raise PipelineError(f"There is no prompt set {split!r} for {name}: ask for {' or '.join(SPLITS)}.")
    return (_folder(EMBEDDED[name].shared) / "prompts" / f"{split}.txt").read_text(encoding="utf-8").splitlines()


def _folder(name: str) -> Path:
    return Path(__file__).parent / name


def _embedded(name: str, dtype: torch.dtype | None, **kwargs: Any) -> DiffusionPipeline:
    import torch

    kwargs = {"local_files_only": True} | dtype_argument(dtype or torch.float32) | kwargs
    with _without_bars():  # it takes less than a second
        return _home(name).load(_folder(name), **kwargs)


def _home(name: str) -> ModuleType:
    """The module of an embedded model."""
    return importlib.import_module(f"budcache.models.{EMBEDDED[name].module}")


@contextmanager
def _without_bars() -> Iterator[None]:
    """Load without the progress bars of the libraries below, where they are on."""
    from diffusers.utils import logging as of_diffusers
    from transformers.utils import logging as of_transformers

    shown = [log for log in (of_diffusers, of_transformers) if log.is_progress_bar_enabled()]
    for log in shown:
        log.disable_progress_bar()
    try:
        yield
    finally:
        for log in shown:
            log.enable_progress_bar()


def _read(folder: Path, dtype: torch.dtype | None, **kwargs: Any) -> DiffusionPipeline:
    try:
        kwargs = {"local_files_only": True} | dtype_argument(dtype) | kwargs
        return _reader(folder).from_pretrained(folder, **kwargs)
    except BudcacheError:
        raise
    except (OSError, ValueError) as error:
        raise PipelineError(
            f"The pipeline in {folder} cannot be read ({_reason(error)}): "
            "check that all its files are there, or download it again."
        ) from error


def _reader(folder: Path) -> Any:
    """The class to read a folder with: its embedded model's own if it was saved from one, else whatever it names."""
    from diffusers import DiffusionPipeline

    index = json.loads((folder / "model_index.json").read_text(encoding="utf-8"))
    if isinstance(index, dict) and ["budcache", "CappedTokenizer"] in index.values():
        ours = [getattr(_home(name), str(index.get("_class_name")), None) for name in EMBEDDED]
        return next(filter(None, ours), DiffusionPipeline)
    return DiffusionPipeline


def _download(hub_id: str, dtype: torch.dtype | None, **kwargs: Any) -> DiffusionPipeline:
    from diffusers import DiffusionPipeline

    try:
        return DiffusionPipeline.from_pretrained(hub_id, **dtype_argument(dtype), **kwargs)
    except BudcacheError:
        raise
    except (OSError, ValueError) as error:
        raise _unavailable(hub_id, error) from error


def _unavailable(hub_id: str, error: BaseException) -> PipelineError:
    return PipelineError(
        f"the model {hub_id} could not be downloaded ({_reason(error)}): check the spelling, the network and "
        f"your access, or try an embedded one ({', '.join(EMBEDDED)})."
    )


def dtype_argument(dtype: torch.dtype | None) -> dict[str, Any]:
    """The argument of `from_pretrained`, which diffusers renamed in 0.40."""
    import diffusers

    if dtype is None:
        return {}
    major, minor = diffusers.__version__.split(".")[:2]
    return {"dtype" if (int(major), int(minor)) >= (0, 40) else "torch_dtype": dtype}


def _reason(error: BaseException) -> str:
    """What an error says before it goes into detail, fit for the inside of a sentence."""
    return re.split(r"\n| \(|\. ", str(error).strip(), maxsplit=1)[0].rstrip(".:") or type(error).__name__
