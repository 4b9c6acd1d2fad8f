"""Exported settings through the functions of SGLang that read them, with cache-dit's own masks below."""

from __future__ import annotations

import ast
import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace

from cache_dit import steps_mask

given = json.loads(sys.argv[1])
source = Path(given["sglang"]) / "sglang" / "multimodal_gen" / "runtime"


def taken(file: str, *names: str) -> list[ast.stmt]:
    """Functions and values of a module that cannot be imported here, by name."""
    tree = ast.parse((source / file).read_text(encoding="utf-8"))
    found = []
    for node in ast.walk(tree):
        name = getattr(node, "name", None)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
        if name in names:
            found.append(node)
    assert len(found) == len(names), f"SGLang has changed: {names}"
    return found


KEYS = ("CACHE_DIT_REQUEST_KNOB_KEYS", "CACHE_DIT_REQUEST_SCM_KEYS", "CACHE_DIT_REQUEST_PARAM_KEYS")
FUNCTIONS = (*KEYS, "get_scm_mask", "resolve_cache_dit_request_overrides")
nodes = taken("cache/cache_dit_integration.py", *FUNCTIONS)
nodes += taken("pipelines_core/stages/denoising.py", "_parse_cache_dit_scm_bins")
space = {
    "steps_mask": steps_mask,
    "logger": logging.getLogger("sglang"),
    "List": list,
    "Optional": "".__class__.__mro__,
}
module = ast.Module([ast.ImportFrom("__future__", [ast.alias("annotations")], 0), *nodes], [])
exec(compile(ast.fix_missing_locations(module), "sglang", "exec"), space)


def mask(environment: dict[str, str], request: dict | None) -> list[int]:
    known = {"SGLANG_CACHE_DIT_SCM_PRESET": "none", "SGLANG_CACHE_DIT_SCM_COMPUTE_BINS": "", **environment}
    space["envs"] = SimpleNamespace(**{"SGLANG_CACHE_DIT_SCM_CACHE_BINS": "", **known})
    stage = SimpleNamespace(_cache_dit_request_overrides=space["resolve_cache_dit_request_overrides"](request))
    compute, cache, preset = space["_parse_cache_dit_scm_bins"](stage)
    return space["get_scm_mask"](preset, given["steps"], compute, cache)


found = []
for folder in map(Path, given["folders"]):
    lines = [line for line in (folder / "cache-dit.env").read_text().splitlines() if not line.startswith("#")]
    environment = dict(line.split("=", 1) for line in lines)
    request = json.loads((folder / "request.json").read_text())
    found.append([mask(environment, None), mask({}, request["cache_dit_params"])])
print(json.dumps(found))
