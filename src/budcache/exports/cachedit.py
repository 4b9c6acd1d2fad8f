"""cache-dit: a static mask, for cache-dit itself, SGLang and xDiT."""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any, ClassVar

from budcache.errors import PolicyError
from budcache.exports.base import Made, Target, Task
from budcache.policy import Reuse

__all__ = ["CacheDiT", "bins"]


class CacheDiT(Target):
    """The mask, carried out to the letter; the first block runs at every step, which is the least that it allows."""

    name: ClassVar[str] = "cache-dit"
    about: ClassVar[str] = "a static mask for cache-dit, SGLang or xDiT (residual reuse behind the first block)"
    runtimes: ClassVar[tuple[str, ...]] = ("cache-dit", "sglang", "xdit")
    reuses: ClassVar[tuple[Reuse, ...]] = ("residual",)
    needs_levels: ClassVar[bool] = False
    carries_levels: ClassVar[bool] = False
    carries_rows: ClassVar[bool] = False

    def lost(self, task: Task) -> list[str]:
        """The first block is not reused, whatever the policy says."""
        return [*super().lost(task), "the first block runs at every step, so reuse is close to the policy's, not equal"]

    def make(self, task: Task) -> Made:
        """A file of settings, or SGLang's environment and request."""
        runtime, steps = self.runtime(task), task.policy.steps
        if runtime == "sglang":
            return _sglang(task)
        settings: dict[str, Any] = {"Fn_compute_blocks": 1, "Bn_compute_blocks": 0, "max_warmup_steps": 0}
        settings |= {"num_inference_steps": steps, "steps_computation_mask": task.bits}
        settings |= {"steps_computation_policy": "static"}
        branches = task.policy.guided is not None
        if runtime == "xdit":
            settings |= {"enable_taylorseer": False} | ({"enable_separate_cfg": True} if branches else {})
            flags = f"--cache_method dbcache --cache_config '{json.dumps(settings)}'\n"
            run = f"eval torchrun EXAMPLE_SCRIPT_OF_XDIT.py $(grep -v '^#' {{out}}) --num_inference_steps {steps}"
            return Made({"": f"# {task.header}\n{flags}"}, run)
        lines = [f"  {name}: {json.dumps(value).strip(chr(34))}" for name, value in settings.items()]
        lines.append(
            f"  {'' if branches else '# '}enable_separate_cfg: true  # for two calls of the transformer a step"
        )
        run = f'cache_dit.enable_cache(pipe, **cache_dit.load_configs("{{out}}")), then num_inference_steps={steps}'
        return Made({"": f"# {task.header}\ncache_config:\n" + "\n".join(lines) + "\n"}, run)


def bins(bits: list[int]) -> tuple[list[int], list[int]]:
    """The lengths of runs of computed steps, and of reused ones."""
    runs = [(bit, len(list(run))) for bit, run in groupby(bits)]
    return [length for bit, length in runs if bit], [length for bit, length in runs if not bit]


def _sglang(task: Task) -> Made:
    compute, cache = bins(task.bits)
    if not cache:
        raise PolicyError("this policy computes every step, and SGLang has no way to say that. Switch its cache off.")
    text = {name: ",".join(map(str, values)) for name, values in (("COMPUTE", compute), ("CACHE", cache))}
    environment = {"ENABLED": "true", "FN": 1, "BN": 0, "WARMUP": 0, "SCM_POLICY": "static"}
    environment |= {f"SCM_{name}_BINS": values for name, values in text.items()}
    lines = [f"SGLANG_CACHE_DIT_{name}={value}" for name, value in environment.items()]
    request = {
        "num_inference_steps": task.policy.steps,
        "enable_cache_dit": True,
        "cache_dit_params": {
            "Fn_compute_blocks": 1,
            "Bn_compute_blocks": 0,
            "max_warmup_steps": 0,
            "scm_policy": "static",
            "scm_compute_bins": compute,
            "scm_cache_bins": cache,
        },
    }
    files = {
        "cache-dit.env": f"# {task.header}\n" + "\n".join(lines) + "\n",
        "request.json": json.dumps(request, indent=1) + "\n",
    }
    run = (
        "env $(grep -v '^#' {out}/cache-dit.env) sglang serve --model-path MODEL, or add the fields of "
        f"{{out}}/request.json to a request; num_inference_steps={task.policy.steps} in each"
    )
    return Made(files, run)
