"""What can be taken away of a ladder: its file, a line of Python, an export to another runtime, a place on the hub."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from budcache.errors import BudcacheError, PolicyError
from budcache.exports import TARGETS
from budcache.exports.exporting import Exported, export
from budcache.studio.project import safe
from budcache.studio.studio import UNIFORM, Studio

__all__ = ["exported", "file_of", "pushed", "python", "runtimes", "targets"]

# Of what is one file; what is a folder has none.
ENDINGS = {
    ("cache-dit", ""): ".yaml",
    ("magcache", "lightx2v"): ".json",
    ("sdcpp", ""): ".txt",
    ("sigmas", ""): ".json",
}


def targets() -> list[str]:
    """The runtimes that a policy can be exported to."""
    return list(TARGETS)


def runtimes(target: str) -> list[str]:
    """Which of several runtimes a target serves; none where it serves one."""
    return list(TARGETS[target].runtimes) if target in TARGETS else []


def file_of(studio: Studio, name: str) -> Path:
    """The file of a ladder; the uniform one is written where it is asked for."""
    known = studio.project.ladders.get(name)
    if known is not None:
        return known
    return studio.ladder(name).save(studio.project.path / "taken" / f"{safe(UNIFORM)}.json")


def python(studio: Studio, name: str, budget: int) -> str:
    """The lines that use a rung in Python, with the settings that it was found at."""
    job = studio.runner.job(name)
    call = {**studio.call, **(job.options.get("call", {}) if job is not None else {})}
    said = ", ".join(["prompt", *(f"{argument}={value!r}" for argument, value in call.items())])
    result = f"video = pipe({said}).frames[0]" if studio.videos else f"image = pipe({said}).images[0]"
    return f'with budcache.applied(pipe, "{file_of(studio, name).name}", budget={budget}):\n    {result}'


def exported(
    studio: Studio, name: str, budget: int, target: str, runtime: str | None, approximate: bool, whole: bool
) -> tuple[Path, Exported]:
    """Export a rung, and pack a folder so that it can be downloaded as one file."""
    if target not in TARGETS:
        raise PolicyError("there is no target. Choose one.")
    home = studio.project.path / "taken" / f"{safe(name)}-{budget}-{target}"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    with _pipeline(studio, name, budget, target, whole) as options:
        made = export(
            file_of(studio, name),
            target,
            home / written(target, runtime),
            budget=budget,
            approximate=approximate,
            runtime=runtime or None,
            **options,
        )
    # It is run where it is taken to.
    made = replace(made, run=made.run.replace(f"{home}{os.sep}", "").replace(str(home), "."))
    if made.path.is_file():
        return made.path, made
    return Path(shutil.make_archive(str(made.path), "zip", home, made.path.name)), made


@contextmanager
def _pipeline(studio: Studio, name: str, budget: int, target: str, whole: bool) -> Iterator[dict[str, Any]]:
    """What an export is told of the model: how it was loaded, to write it whole; or itself, where it has to be asked.

    Only what was not found by a search does not know the model's scheduler and noise levels.
    """
    runtime = TARGETS[target]
    if whole and runtime.takes_model:
        options = {"pipeline": studio.model, "lora": studio.lora, "lora_scale": studio.lora_scale}
        yield {**options, "dtype": None if str(studio.dtype) == "torch.float32" else studio.dtype}
    elif studio.ladder(name)[budget].origin is None and (runtime.needs_levels or runtime.takes_model):
        with studio.runner.lent() as pipe:
            yield {"pipeline": pipe}
    else:
        yield {}


def written(target: str, runtime: str | None) -> str:
    """A name for what a target writes, with the ending that it should have."""
    if TARGETS[target].writes_module(runtime or None):
        return "policy.py"
    return "policy" + ENDINGS.get((target, runtime or ""), "")


def pushed(studio: Studio, name: str, repository: str, private: bool, message: str | None) -> str:
    """Publish a ladder on the hub, and where it is then."""
    ladder = studio.project.ladder(name)
    if ladder is None:
        raise PolicyError("uniform masks need no hub. Choose a ladder that was found.")
    return ladder.push_to_hub(repository.strip(), private=private or None, commit_message=message or None)


def tried(action: Any) -> tuple[Any, str]:
    """What an action gave, and why it was refused."""
    try:
        return action(), ""
    except BudcacheError as error:
        return None, str(error)
