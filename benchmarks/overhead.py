"""What carrying out a policy costs: nothing but the calls that it makes."""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel

import budcache
from budcache import Mask, Policy


def flux_of_57_blocks(heads: int = 8, width: int = 32) -> FluxPipeline:
    """FLUX.1's structure, 19 double and 38 single blocks, narrow enough for a CPU; prompts come as embeddings."""
    torch.manual_seed(0)
    transformer = FluxTransformer2DModel(
        in_channels=64,
        num_layers=19,
        num_single_layers=38,
        attention_head_dim=width,
        num_attention_heads=heads,
        joint_attention_dim=64,
        pooled_projection_dim=32,
        guidance_embeds=True,
        axes_dims_rope=(8, 12, 12),
    )
    vae = AutoencoderKL(latent_channels=16, block_out_channels=(4, 4, 4, 4), norm_num_groups=2, sample_size=64)
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, shift=3.0)
    pipe = FluxPipeline(scheduler, vae, None, None, None, None, transformer.eval())
    pipe.set_progress_bar_config(disable=True)
    return pipe


def timed(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=28)
    parser.add_argument("--budget", type=int, default=8)
    parser.add_argument("--size", type=int, default=192, help="pixels; tokens are (size / 16) squared")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    pipe = flux_of_57_blocks()
    call: dict[str, Any] = {
        "prompt_embeds": torch.randn(1, 64, 64),
        "pooled_prompt_embeds": torch.randn(1, 32),
        "height": args.size,
        "width": args.size,
        "output_type": "latent",
    }
    policy = Policy(mask=Mask.uniform(args.steps, args.budget))
    every = tuple(tuple(1.0 / (row + 1) for _ in range(row + 1)) for row in range(args.budget))  # all outputs (F13)
    rows = policy.model_copy(update={"weights": None, "rows": [{"outputs": row} for row in every]})

    def bare() -> None:
        pipe(num_inference_steps=args.budget, generator=torch.Generator().manual_seed(0), **call)

    def served(by: Policy = policy) -> None:
        with budcache.applied(pipe, by):
            pipe(num_inference_steps=args.steps, generator=torch.Generator().manual_seed(0), **call)

    def full() -> None:
        pipe(num_inference_steps=args.steps, generator=torch.Generator().manual_seed(0), **call)

    def recorded() -> None:
        with budcache.recording(pipe):
            full()

    bare(), served(), served(rows), full(), recorded()
    pairs = [(timed(served), timed(bare)) for _ in range(args.rounds)]
    with_rows = [(timed(lambda: served(rows)), timed(bare)) for _ in range(args.rounds)]
    recordings = [(timed(recorded), timed(full)) for _ in range(args.rounds)]
    steps = [step_times(pipe, call, args.steps) for _ in range(3)]
    print(
        json.dumps(
            {
                "benchmark": "overhead",
                "steps": args.steps,
                "budget": args.budget,
                "blocks": 57,
                "tokens": (args.size // 16) ** 2,
                "threads": args.threads,
                "policy_over_bare": round(statistics.median(s / b for s, b in pairs), 4),
                "rows_over_bare": round(statistics.median(s / b for s, b in with_rows), 4),
                "recording_over_full_run": round(statistics.median(r / f for r, f in recordings), 4),
                "reused_over_computed": round(statistics.median(reused / computed for reused, computed in steps), 4),
                "seconds_per_computed_step": round(statistics.median(computed for _, computed in steps), 4),
            }
        )
    )


def step_times(pipe: FluxPipeline, call: dict[str, Any], steps: int) -> tuple[float, float]:
    """Median seconds of a reused and of a computed step of one run in which they alternate."""
    ticks: list[float] = []

    def tick(*_: Any) -> dict[str, Any]:
        ticks.append(time.perf_counter())
        return {}

    policy = Policy(mask="10" * (steps // 2), reuse="residual")
    with budcache.applied(pipe, policy):
        pipe(num_inference_steps=policy.steps, callback_on_step_end=tick, **call)
    gaps = [after - before for before, after in itertools.pairwise(ticks)]  # of steps 1, 2, 3, ...
    return statistics.median(gaps[0::2]), statistics.median(gaps[1::2])


if __name__ == "__main__":
    main()
