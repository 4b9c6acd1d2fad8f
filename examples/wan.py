"""Wan2.1 at a fixed number of model calls: search once, then make a video.

    python examples/wan.py                                   # a GPU; under an hour on an A800
    python examples/wan.py --model tiny-wan --height 64 --width 64 --frames 17 --steps 8 --budgets 3 4 --count 2

A video's call is slow, so four prompts; more make the policies better.
"""

from __future__ import annotations

import argparse

import torch

import budcache

options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
options.add_argument(
    "--model", default="Wan-AI/Wan2.1-T2V-1.3B-Diffusers", help="a hub id, a folder or an embedded name"
)
options.add_argument("--steps", type=int, default=50)
options.add_argument("--budgets", type=int, nargs="+", default=[12, 16, 20])
options.add_argument("--count", type=int, default=4, help="prompts to calibrate on")
options.add_argument("--height", type=int, default=480)
options.add_argument("--width", type=int, default=832)
options.add_argument("--frames", type=int, default=81)
given = options.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"
pipe = budcache.load(given.model, dtype=torch.bfloat16 if device == "cuda" else torch.float32).to(device)
call = {"height": given.height, "width": given.width, "num_frames": given.frames, "guidance_scale": 5.0}

# Killed, the same command goes on: what was scored is in the ledger.
ladder = budcache.search(
    pipe,
    steps=given.steps,
    budgets=given.budgets,
    prompts=budcache.prompts("videos")[: given.count],
    call=call,
    ledger="wan.ledger.jsonl",
)
ladder.save("wan.ladder.json")
print(ladder)

middle = ladder.budgets[len(ladder) // 2]
with budcache.applied(pipe, ladder, budget=middle) as handle:
    prompt = "a heron lifts off from a misty pond, slow motion"
    frames = pipe(prompt=prompt, generator=torch.Generator().manual_seed(0), output_type="pil", **call).frames[0]
    print(handle.stats().last_run_calls, "of", ladder.steps, "calls")
frames[0].save("wan.webp", save_all=True, append_images=frames[1:], duration=1000 // 16, loop=0, quality=90)
