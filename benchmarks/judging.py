"""What the benchmarks share: held-out quality of policies, and peak memory of a piece of work."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import torch

import budcache
from budcache import Mask, Policy
from budcache.aggregate import standard_error
from budcache.comparison import Lead
from budcache.metrics import metric, psnr

SEED = 90_000  # no search has seen these seeds
OTHER_SEEDS = "Other seeds than in Table 1, so values differ from those there, the 5th percentile most."


class Judge:
    """Pictures under a policy against those of a full run: evaluation prompts, unseen seeds, the served path.

    Args:
        pipe: the pipeline.
        prompts: what to draw.
        steps: of the full run.
        **call: other arguments of the pipeline.
    """

    def __init__(self, pipe: Any, prompts: list[str], steps: int, **call: Any) -> None:
        self.pipe, self.prompts, self.call = pipe, prompts, call
        self.known: dict[str, dict[str, float]] = {}
        self.rows: dict[str, dict[str, list[float]]] = {}  # PSNR and SSIM of every prompt
        self.ssim = metric("ssim")
        self.full = self.draw(Policy(mask=Mask.full(steps)))

    def draw(self, policy: Policy, batch: int = 8) -> list[Any]:
        """The pictures of all prompts."""
        pictures: list[Any] = []
        with budcache.applied(self.pipe, policy.model_copy(update={"origin": None})):
            for begin in range(0, len(self.prompts), batch):
                part = self.prompts[begin : begin + batch]
                seeds = [torch.Generator().manual_seed(SEED + begin + i) for i in range(len(part))]
                call = {"num_inference_steps": policy.steps, "generator": seeds, "output_type": "np", **self.call}
                drawn = self.pipe(part, **call)
                pictures += list(drawn.images if hasattr(drawn, "images") else drawn.frames)
        return pictures

    def __call__(self, policy: Policy) -> dict[str, float]:
        """Mean PSNR and SSIM, and the 5th percentile and the worst PSNR."""
        key = self._key(policy)
        if key not in self.known:
            self.rows[key] = self._measured(self.draw(policy))
            self.known[key] = _summary(self.rows[key])
        return self.known[key]

    def lead(self, one: Policy, other: Policy, by: str = "psnr") -> Lead:
        """How far one policy is ahead of another, prompt by prompt."""
        apart = np.subtract(self.ratios(one, by), self.ratios(other, by))
        return Lead(float(apart.mean()), standard_error(apart.tolist()), len(apart))

    def _key(self, policy: Policy) -> str:
        return policy.model_dump_json(exclude={"origin", "quality", "refined", "title"})

    def ratios(self, policy: Policy, by: str = "psnr") -> list[float]:
        """The PSNR of every prompt's picture, or its SSIM."""
        self(policy)
        return self.rows[self._key(policy)][by]

    def _ratios(self, pictures: list[Any]) -> list[float]:
        return [min(psnr(a, b), 100.0) for a, b in zip(pictures, self.full, strict=True)]

    def measure(self, pictures: list[Any]) -> dict[str, float]:
        """The same of pictures, however they came about."""
        return _summary(self._measured(pictures))

    def _measured(self, pictures: list[Any]) -> dict[str, list[float]]:
        pairs = zip(pictures, self.full, strict=True)
        return {"psnr": self._ratios(pictures), "ssim": [float(self.ssim.frame(a, b, "")) for a, b in pairs]}


def _summary(rows: dict[str, list[float]]) -> dict[str, float]:
    ratios = rows["psnr"]
    return {
        "psnr": round(float(np.mean(ratios)), 2),
        "psnr_p5": round(float(np.percentile(ratios, 5)), 2),
        "psnr_worst": round(min(ratios), 2),
        "ssim": round(float(np.mean(rows["ssim"])), 4),
    }


def peak_memory(work: str) -> float:
    """Peak resident memory in MB of a process of its own that loads tiny-flux as `pipe` and does `work`.

    It is read from /proc: `getrusage` would begin with the peak of the process that started this one. Every pipeline
    that is held open is a thread, and glibc would keep freed memory for each of them apart: with one arena for all,
    what is counted is what is in use.
    """
    script = f"""
import torch, budcache
from budcache import Mask, Policy, models
torch.set_num_threads(1)
pipe = models.load("tiny-flux"); pipe.set_progress_bar_config(disable=True)
prompts = models.prompts("tiny-flux", "calibration")
{work}
print(next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return float(done.stdout.split()[-1])
