"""diffusers without budcache: a scheduler folder, or a whole pipeline; for residual reuse its own MagCache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

from budcache.errors import PipelineError, PolicyError
from budcache.exports.base import Made, Target, Task, filled
from budcache.exports.magcache import MADE_UP, snippet
from budcache.policy import Reuse

__all__ = ["Diffusers"]

MODULE, CLASS = "policy_scheduler", "PolicyScheduler"
LORA = "lora"  # the folder of a LoRA within a whole pipeline's


class Diffusers(Target):
    """A scheduler that wraps the pipeline's own, as ours does, in one file with the policy beside it."""

    name: ClassVar[str] = "diffusers"
    about: ClassVar[str] = "a scheduler folder, or with --pipeline a whole pipeline, for diffusers without budcache"
    reuses: ClassVar[tuple[Reuse, ...]] = ("output", "residual")
    needs_levels: ClassVar[bool] = False  # the wrapped scheduler makes them, for whatever size
    carries_solvers: ClassVar[bool] = True
    carries_experts: ClassVar[bool] = True  # it is the pipeline that changes between them
    takes_model: ClassVar[bool] = True

    def lost(self, task: Task) -> list[str]:
        """MagCache goes by the pipeline's own levels."""
        residual = task.policy.reuse == "residual" and task.policy.sigmas is not None
        return [*super().lost(task), *(["its own noise levels are left out"] if residual else [])]

    def make(self, task: Task) -> Made:
        """The folder."""
        steps = task.policy.steps
        if task.policy.reuse == "residual":
            run = f"import magcache; {loading(task) if task.model else ''}magcache.apply(pipe); "
            run = f"With {{out}} on PYTHONPATH: {run}pipe(prompt, num_inference_steps={steps}{task.call}). {MADE_UP}"
            return Made({"magcache.py": snippet(task)}, run, task.model, along(task))
        files = {
            f"{MODULE}.py": filled("diffusers.py.txt", header=task.header),
            "scheduler_config.json": json.dumps(self._config(task), indent=1) + "\n",
        }
        if not task.model:
            run = (
                f"With {{out}} on PYTHONPATH: from {MODULE} import {CLASS}; pipe.scheduler = "
                f'{CLASS}.from_pretrained("{{out}}"); pipe(prompt, num_inference_steps={steps})'
            )
            return Made(files, run)
        index = json.loads((task.model[-1] / "model_index.json").read_text(encoding="utf-8"))
        files = {f"scheduler/{name}": text for name, text in files.items()}
        files["model_index.json"] = json.dumps({**index, "scheduler": [MODULE, CLASS]}, indent=2) + "\n"
        run = f"{loading(task, ', trust_remote_code=True')}pipe(prompt, num_inference_steps={steps}{task.call})"
        return Made(files, run, task.model, along(task))

    def _config(self, task: Task) -> dict[str, Any]:
        policy = task.whole.model_dump(mode="json", exclude_none=True)
        return {"_class_name": CLASS, "inner": _inner(task), "policy": policy}


def loading(task: Task, trusted: str = "") -> str:
    """The statements that load the whole pipeline that was written, with its LoRA."""
    load = f'pipe = DiffusionPipeline.from_pretrained("{{out}}"{trusted}{task.loaded}); '
    lora = task.lora
    if lora is None:
        return load
    load += f'pipe.load_lora_weights("{{out}}/{LORA}", weight_name="{lora.name}.safetensors", '
    load += f'adapter_name="{lora.name}"); '
    return load if lora.scale == 1 else f'{load}pipe.set_adapters(["{lora.name}"], [{lora.scale:g}]); '


def along(task: Task) -> dict[str, Path]:
    """The LoRA's file, as `loading` looks for it."""
    return {} if task.lora is None else {f"{LORA}/{task.lora.name}.safetensors": task.lora.path()}


def _inner(task: Task) -> dict[str, Any]:
    """The settings of the scheduler to stand in for: the pipeline's, or those that the policy was made with."""
    if task.model:
        return _settings(task.model[-1])
    origin = task.policy.origin
    if origin is None or origin.scheduler is None:
        raise PolicyError(
            "this policy does not say which scheduler it is for. Name the model with --pipeline (pipeline= in Python)."
        )
    return {"_class_name": origin.scheduler, **origin.scheduler_settings}


def _settings(model: Path) -> dict[str, Any]:
    try:
        found = json.loads((model / "scheduler" / "scheduler_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PipelineError(
            f"the scheduler's settings in {model} cannot be read: {error}. Name another model."
        ) from None
    if not isinstance(found, dict) or not isinstance(found.get("_class_name"), str):
        raise PipelineError(f"the scheduler's settings in {model} name no class. Name another model.")
    return found
