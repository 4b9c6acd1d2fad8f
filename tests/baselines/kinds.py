"""Zoo pipelines, recorded once, and our methods calibrated on them once."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from zoo import Entry, entry

from budcache.baselines import BASELINES, Baseline, Record, record

STEPS = 8
NATIVE = ("teacache", "magcache", "lemica", "dicache", "ertacache", "taylorseer", "l2p")
HERE = [name for name, method in BASELINES.items() if method.available()]


def fits(method: str, kind: str) -> bool:
    """diffusers' caches need a pipeline that names its guidance branches."""
    return method in NATIVE or kind in ("flux", "flux-true-cfg", "wan-t2v-euler", "wan-t2v", "wan22", "qwen-image")


@cache
def known(name: str) -> tuple[Entry, Any, Record]:
    kind = entry(name)
    pipe = kind.build()
    return kind, pipe, record(pipe, STEPS, [sample(kind, seed) for seed in (0, 1)])


@cache
def plain(name: str) -> torch.Tensor:
    kind, pipe, _ = known(name)
    return run(kind, pipe)


@cache
def calibrated(kind: str, method: str) -> Baseline:
    return BASELINES[method].calibrated(known(kind)[2])


def sample(kind: Entry, seed: int = 0, **more: Any) -> dict[str, Any]:
    return {**kind.kwargs(), "generator": torch.Generator().manual_seed(seed), **more}


def run(kind: Entry, pipe: Any, seed: int = 0, **more: Any) -> torch.Tensor:
    return pipe(**{"num_inference_steps": STEPS, **sample(kind, seed, **more)}, output_type="latent")[0]
