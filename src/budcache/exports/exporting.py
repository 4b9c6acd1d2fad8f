"""`budcache.export`: a policy in the form that another runtime reads."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from budcache.chosen import PolicyLike, choose
from budcache.errors import FileError, PolicyError
from budcache.exports import TARGETS
from budcache.exports.base import Made, Target, Task
from budcache.exports.levels import Levels, levels_for
from budcache.exports.whole import Whole, is_loaded
from budcache.options import known_options_of_serving
from budcache.policy import Origin, Policy
from budcache.storage.files import write_text
from budcache.wording import nearest, quote

if TYPE_CHECKING:
    import torch
    from diffusers import DiffusionPipeline

__all__ = ["Exported", "export"]

FORCE = "with --force (force=True in Python)"


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
    pipeline: str | os.PathLike[str] | DiffusionPipeline | None = None,
    lora: str | os.PathLike[str] | None = None,
    lora_scale: float = 1.0,
    dtype: torch.dtype | None = None,
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
            One that is loaded already is asked for its levels and its scheduler.
        lora: with a whole pipeline, a LoRA that is written along, named as in `budcache.load`.
        lora_scale: how strongly it works.
        dtype: with a whole pipeline, the numbers that it is to be loaded in; said in the line that runs it.
        runtime: which of several runtimes a target serves, such as "sglang" of "cache-dit".
        force: replace a file, or write into a folder that has files already.
    """
    target, chosen, path = _target(to), _described(choose(policy, budget), pipeline), Path(out)
    if runtime is not None and runtime not in target.runtimes:
        has = f"it serves {', '.join(target.runtimes)}. Choose one of these, or leave" if target.runtimes else ""
        has = has or "it serves one runtime only. Leave"
        raise PolicyError(f"{target.name} is not for {quote(runtime)}: {has} --for (runtime= in Python) out.")
    lost = target.lost(Task(chosen))
    refusals = [
        f"{target.name} cannot carry all of this policy: {'; '.join(lost)}. "
        "Agree with --approximate (approximate=True in Python), or choose another target."
    ] * (bool(lost) and not approximate)
    whole = Whole.of(target, pipeline, lora, lora_scale, dtype)
    try:
        task = _task(target, chosen, path, size, pipeline, runtime, whole)
    except PolicyError as error:
        raise PolicyError(" Besides, ".join([*refusals, str(error)])) from None
    if refusals:
        raise PolicyError(refusals[0])
    made = target.make(task)
    _write(made, path, force)
    return Exported(path, made.run.replace("{out}", str(path)).replace("{folder}", str(path.parent)), tuple(lost))


def _described(policy: Policy, pipeline: Any) -> Policy:
    """The policy with an origin, where it has none and the pipeline that it is for is at hand."""
    if not is_loaded(pipeline) or policy.origin is not None:
        return policy
    from budcache.pipeline import describe

    return policy.model_copy(update={"origin": describe(pipeline)})


def _target(name: str) -> Target:
    if name not in TARGETS:
        raise PolicyError(f"there is no target {quote(name)}. {nearest(str(name), TARGETS)}")
    return TARGETS[name]


def _task(
    target: Target,
    policy: Policy,
    path: Path,
    size: tuple[int, int] | None,
    pipeline: Any,
    runtime: str | None,
    whole: Whole | None,
) -> Task:
    origin = policy.origin or Origin()
    if origin.switch is not None and ("output" not in target.reuses or policy.reuse == "residual"):
        raise PolicyError(
            f"this policy is for a model with two networks, the second from step {origin.switch} on, and {target.name} "
            "caches in one. Export a policy that reuses outputs to diffusers."
        )
    levels = Levels(policy.sigmas, origin.levels) if policy.sigmas is not None else Levels(())
    if target.needs_levels:
        _check_flow(target, "this policy is for", origin.scheduler, origin.scheduler_settings)
        levels = levels_for(policy, size, None if pipeline is None else _opened(target, policy, pipeline))
    elif size is not None:
        raise PolicyError(f"what is exported to {target.name} holds for every size. Leave the size out.")
    files = whole and whole.files(origin)
    name = _module_name(path) if target.writes_module(runtime) else "policy"
    if size is not None:  # what is written names the size that it is for
        update = {"height": size[0], "width": size[1]}
        policy = policy.model_copy(update={"origin": origin.model_copy(update=update)})
    return Task(policy, levels.own, levels.full, runtime, name=name, **(files or {}))


def _opened(target: Target, policy: Policy, pipeline: Any) -> Any:
    """The pipeline that is asked for levels, if they mean there what they mean elsewhere."""
    from budcache import models
    from budcache.pipeline.arguments import arguments
    from budcache.pipeline.suited import check_model, check_scheduler_of

    loaded = is_loaded(pipeline)
    pipe: Any = pipeline if loaded else models.load(pipeline)
    whose = f"{type(pipe).__name__ if loaded else os.fspath(pipeline)} has"
    _check_flow(target, whose, type(pipe.scheduler).__name__, pipe.scheduler.config)
    check_scheduler_of(policy, pipe.scheduler)
    check_model(policy, pipe)
    needed = target.needs_argument
    if needed is not None and needed not in arguments(pipe):
        raise PolicyError(f"{type(pipe).__name__} takes no {needed}=, so a list is of no use. Export it to diffusers.")
    return pipe


def _module_name(path: Path) -> str:
    """The name by which a file is imported, which must not be that of the library that imports it."""
    if path.suffix != ".py" or not re.fullmatch(r"[A-Za-z_]\w*", path.stem) or path.stem in TARGETS:
        raise PolicyError(f"{path.name} is to be imported as a module, which cannot have that name. Call it policy.py.")
    return path.stem


def _check_flow(target: Target, whose: str, scheduler: str | None, settings: Mapping[str, Any]) -> None:
    """Refuse a scheduler whose levels mean something else elsewhere."""
    flow = settings.get("use_flow_sigmas") or settings.get("prediction_type") == "flow_prediction"
    if scheduler is not None and not flow and "FlowMatch" not in scheduler:
        raise PolicyError(
            f"{whose} {scheduler}, and {target.name} takes policies of flow models (FLUX, Wan, SD3 and so "
            "on) only. Export it to diffusers."
        )


def _write(made: Made, path: Path, force: bool) -> None:
    try:
        if list(made.files) == [""]:
            if path.is_file() and not force:
                raise FileError(
                    f"{path} is there already. Choose another --out (out in Python), or replace it {FORCE}."
                )
            write_text(path, made.files[""])
            return
        if path.exists() and not path.is_dir():
            raise FileError(f"{path} is a file, but a folder is to be written. Choose another --out (out in Python).")
        if path.is_dir() and any(path.iterdir()) and not force:
            raise FileError(f"the folder {path} is not empty. Choose another --out, or write into it {FORCE}.")
        for folder in made.copied:
            shutil.copytree(folder, path, dirs_exist_ok=True)
        for name, text in made.files.items():
            write_text(path / name, text)
        for name, source in made.beside.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, path / name)
    except FileError:
        raise
    except OSError as error:
        raise FileError(
            f"{path} cannot be written: {error.strerror or error}. Choose another --out (out in Python)."
        ) from None
