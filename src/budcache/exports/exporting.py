"""`budcache.export`: a policy in the form that another runtime reads."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from budcache.chosen import PolicyLike, choose
from budcache.errors import FileError, PolicyError
from budcache.exports import TARGETS
from budcache.exports.base import Made, Target, Task
from budcache.exports.levels import levels_for
from budcache.options import known_options_of_serving
from budcache.policy import Policy
from budcache.storage.files import write_text
from budcache.wording import nearest, quote

__all__ = ["Exported", "export"]


@dataclass(frozen=True)
class Exported:
    """What was written.

    Args:
        path: the file or folder.
        run: a line that says how to run it.
        lost: what the runtime cannot carry of the policy, each a clause.
    """

    path: Path
    run: str
    lost: tuple[str, ...] = ()


@known_options_of_serving
def export(
    policy: PolicyLike,
    to: str,
    out: str | os.PathLike[str],
    *,
    budget: int | None = None,
    size: tuple[int, int] | None = None,
    approximate: bool = False,
    pipeline: str | os.PathLike[str] | None = None,
    runtime: str | None = None,
    force: bool = False,
) -> Exported:
    """Write a policy in the form that another runtime reads, without budcache.

    Args:
        policy: a policy, a ladder (with `budget`), or the path of either.
        to: the target, such as "comfyui" or "diffusers"; `budcache.exports.TARGETS` has all of them.
        out: the file or folder to write.
        budget: which rung of a ladder to take, in model calls per sample.
        size: height and width, where noise levels depend on them; None is the size that the policy was made at.
        approximate: go on even if the runtime cannot carry all of the policy.
        pipeline: a model by name, folder or hub id: to write a whole pipeline of it, or to take noise levels from it.
        runtime: which of several runtimes a target serves, such as "sglang" of "cache-dit".
        force: write into a folder that has files already.
    """
    target, chosen, path = _target(to), choose(policy, budget), Path(out)
    if runtime is not None and runtime not in target.runtimes:
        has = f"it serves {', '.join(target.runtimes)}" if target.runtimes else "it serves one only"
        raise PolicyError(f"{target.name} is not for {quote(runtime)}: {has}. Choose one of these, or leave it out.")
    task = _task(target, chosen, path, size, pipeline, runtime)
    lost = target.lost(task)
    if lost and not approximate:
        raise PolicyError(
            f"{target.name} cannot carry all of this policy: {'; '.join(lost)}. "
            "Agree with --approximate (approximate=True in Python), or choose another target."
        )
    made = target.make(task)
    _write(made, path, force)
    return Exported(path, made.run.replace("{out}", str(path)).replace("{folder}", str(path.parent)), tuple(lost))


def _target(name: str) -> Target:
    if name not in TARGETS:
        raise PolicyError(f"there is no target {quote(name)}. {nearest(str(name), TARGETS)}")
    return TARGETS[name]


def _task(
    target: Target,
    policy: Policy,
    path: Path,
    size: tuple[int, int] | None,
    pipeline: str | os.PathLike[str] | None,
    runtime: str | None,
) -> Task:
    model = None if pipeline is None else os.fspath(pipeline)
    levels = policy.sigmas or ()
    if target.needs_levels:
        _check_flow(target, policy)
        levels = levels_for(policy, size, model)
    elif size is not None:
        raise PolicyError(f"what is exported to {target.name} holds for every size. Leave the size out.")
    folder = None
    if model is not None and target.takes_model:
        from budcache import models

        folder = models.folder(model)
    return Task(policy, levels, runtime, folder, _module_name(path) if target.is_module else "policy")


def _module_name(path: Path) -> str:
    """The name by which a file is imported, which must not be that of the library that imports it."""
    if path.suffix != ".py" or not re.fullmatch(r"[A-Za-z_]\w*", path.stem) or path.stem in TARGETS:
        raise PolicyError(f"{path.name} is to be imported as a module, which cannot have that name. Call it policy.py.")
    return path.stem


def _check_flow(target: Target, policy: Policy) -> None:
    """Refuse policies whose levels mean something else elsewhere."""
    origin = policy.origin
    scheduler = origin.scheduler if origin is not None else None
    settings = origin.scheduler_settings if origin is not None else {}
    flow = settings.get("use_flow_sigmas") or settings.get("prediction_type") == "flow_prediction"
    if scheduler is not None and not flow and "FlowMatch" not in scheduler:
        raise PolicyError(
            f"this policy is for {scheduler}, and {target.name} takes policies of flow models (FLUX, Wan, SD3 and so "
            "on) only. Export it to diffusers."
        )


def _write(made: Made, path: Path, force: bool) -> None:
    try:
        if list(made.files) == [""]:
            write_text(path, made.files[""])
            return
        if path.exists() and not path.is_dir():
            raise FileError(f"{path} is a file, but a folder is to be written. Choose another --out.")
        if path.is_dir() and any(path.iterdir()) and not force:
            raise FileError(f"the folder {path} is not empty. Choose another --out, or write into it with --force.")
        if made.copied is not None:
            shutil.copytree(made.copied, path, dirs_exist_ok=True)
        for name, text in made.files.items():
            write_text(path / name, text)
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror or error}. Choose another --out.") from None
