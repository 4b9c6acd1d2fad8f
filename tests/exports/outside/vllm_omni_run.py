"""Exported flags through vLLM-Omni's own configuration and hook, on tiny-flux."""

from __future__ import annotations

import ast
import json
import logging
import shlex
import sys
import types
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from exports.policies import drawn, policies, run, stock

given = json.loads(sys.argv[1])
root = Path(given["vllm_omni"]) / "vllm_omni"

# vLLM itself is not installed. What is needed of it is a logger; packages are entered without running their __init__.
for name in (
    "vllm_omni",
    "vllm_omni.diffusion",
    *(f"vllm_omni.diffusion.{n}" for n in ("cache", "cache.magcache", "hooks")),
):
    package = sys.modules[name] = types.ModuleType(name)
    package.__path__ = [str(root.parent / name.replace(".", "/"))]
for name in ("vllm", "vllm.logger", "vllm_omni.logger"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].init_logger = logging.getLogger
from vllm_omni.diffusion.cache.magcache.config import MagCacheConfig  # noqa: E402
from vllm_omni.diffusion.cache.magcache.hook import apply_mag_cache_hook  # noqa: E402

tree = ast.parse((root / "diffusion" / "data.py").read_text(encoding="utf-8"))
(node,) = [each for each in tree.body if getattr(each, "name", None) == "DiffusionCacheConfig"]
space = {"dataclass": dataclass, "field": field, "fields": fields, "Any": Any}
future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
exec(compile(ast.fix_missing_locations(ast.Module([future, node], [])), "data", "exec"), space)

(line,) = [line for line in Path(given["file"]).read_text().splitlines() if not line.startswith("#")]
flags = shlex.split(line)
assert flags[:3:2] == ["--cache-backend", "--cache-config"] and flags[1] == "mag_cache"
settings = space["DiffusionCacheConfig"].from_dict(json.loads(flags[3]))
config = MagCacheConfig(
    threshold=settings.mag_threshold,
    max_skip_steps=settings.mag_max_skip_steps,
    retention_ratio=settings.mag_retention_ratio,
    num_inference_steps=settings.num_inference_steps,
    mag_ratios=settings.mag_ratios,
)
pipe, policy = stock(), policies(tuple(given["levels"]))["residual"]
expected = drawn(policy)
apply_mag_cache_hook(pipe.transformer, config)
found = [run(pipe), run(pipe)]
print(json.dumps({"equal": [torch.equal(each, expected) for each in found]}))
