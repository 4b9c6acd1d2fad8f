"""MagCache: residual reuse as made-up ratios, for diffusers, vLLM-Omni and LightX2V.

MagCache skips a step while the product of measured ratios stays near one. With a ratio of ten where a policy computes
and of one where it reuses, at a threshold of one half, it does exactly what the policy says.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

from budcache.exports.base import Made, Target, Task
from budcache.policy import Reuse

__all__ = ["MagCache", "snippet"]

COMPUTED, REUSED, THRESHOLD = 10.0, 1.0, 0.5
MADE_UP = (
    "The ratios are made up so that MagCache computes at the policy's steps; they are no measurement of the model."
)

SNIPPET = '''"""Residual reuse by diffusers' own MagCache.

{header}
{made_up}
"""

from diffusers import MagCacheConfig

STEPS = {steps}
RATIOS = {ratios}


def apply(pipe):
    """Make a pipeline follow the policy when called with num_inference_steps={steps}."""
    config = MagCacheConfig(
        threshold={threshold},
        max_skip_steps=STEPS,
        retention_ratio=0.0,
        num_inference_steps=STEPS,
        mag_ratios=RATIOS,
    )
    pipe.transformer.enable_cache(config)
'''


class MagCache(Target):
    """Ratios, as each of the runtimes takes them."""

    name: ClassVar[str] = "magcache"
    about: ClassVar[str] = "ratios for the MagCache of diffusers, vLLM-Omni and LightX2V (residual reuse)"
    runtimes: ClassVar[tuple[str, ...]] = ("diffusers", "vllm-omni", "lightx2v")
    reuses: ClassVar[tuple[Reuse, ...]] = ("residual",)
    needs_levels: ClassVar[bool] = False
    carries_levels: ClassVar[bool] = False
    carries_rows: ClassVar[bool] = False

    def writes_module(self, runtime: str | None) -> bool:
        """For diffusers it is Python."""
        return runtime in (None, "diffusers")

    def make(self, task: Task) -> Made:
        """One file for the runtime that was asked for."""
        steps, ratios, runtime = task.policy.steps, ratios_of(task), self.runtime(task)
        if runtime == "diffusers":
            how = f"import it, apply(pipe), and call the pipeline with num_inference_steps={steps}. {MADE_UP}"
            return Made({"": snippet(task)}, f"{{out}}: {how}")
        settings: dict[str, Any]
        if runtime == "vllm-omni":
            # A retention of 0 is refused; this is rounded to no step at all.
            settings = {"mag_ratios": ratios, "mag_threshold": THRESHOLD, "mag_max_skip_steps": steps}
            settings |= {"mag_retention_ratio": 0.25 / steps, "num_inference_steps": steps}
            flags = f"--cache-backend mag_cache --cache-config '{json.dumps(settings)}'\n"
            run = (
                f"eval vllm serve MODEL --omni $(grep -v '^#' {{out}})  # num_inference_steps={steps} in each request. "
            )
            return Made({"": f"# {task.header}\n# {MADE_UP}\n{flags}"}, run + MADE_UP)
        settings = {"budcache": f"{task.header} {MADE_UP}", "infer_steps": steps, "feature_caching": "Mag"}
        settings |= {"magcache_ratios": [ratios, ratios], "magcache_thresh": THRESHOLD, "magcache_K": steps}
        settings |= {"magcache_retention_ratio": 0, "magcache_calibration": False}
        run = f"Copy the fields of {{out}} into the JSON that LightX2V is started with. {MADE_UP}"
        return Made({"": json.dumps(settings, indent=1) + "\n"}, run)


def ratios_of(task: Task) -> list[float]:
    """A ratio for each step."""
    return [COMPUTED if bit else REUSED for bit in task.bits]


def snippet(task: Task) -> str:
    """A file of Python with a function that switches it on."""
    values = {"header": task.header, "made_up": MADE_UP, "steps": task.policy.steps, "threshold": THRESHOLD}
    return SNIPPET.format(ratios=ratios_of(task), **values)
