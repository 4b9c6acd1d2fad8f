"""Qwen-Image at a fixed number of model calls: search once, then draw.

    python examples/qwen_image.py                            # a GPU with 80 GB; about 40 minutes on an H100
    python examples/qwen_image.py --model FOLDER --height 32 --width 32 --steps 8 --budgets 3 4 --count 2

Guidance is `true_cfg_scale`, and on only if there is a negative prompt, if only a space.
"""

from __future__ import annotations

import argparse

import torch

import budcache

options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
options.add_argument("--model", default="Qwen/Qwen-Image", help="a hub id, a folder or an embedded name")
options.add_argument("--steps", type=int, default=50)
options.add_argument("--budgets", type=int, nargs="+", default=[10, 14, 18])
options.add_argument("--count", type=int, default=8, help="prompts to calibrate on")
options.add_argument("--height", type=int, default=1328)
options.add_argument("--width", type=int, default=1328)
given = options.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"
pipe = budcache.load(given.model, dtype=torch.bfloat16 if device == "cuda" else torch.float32).to(device)
call = {"height": given.height, "width": given.width, "negative_prompt": " ", "true_cfg_scale": 4.0}

# Killed, the same command goes on: what was scored is in the ledger.
ladder = budcache.search(
    pipe,
    steps=given.steps,
    budgets=given.budgets,
    prompts=budcache.prompts("images")[: given.count],
    call=call,
    ledger="qwen_image.ledger.jsonl",
)
ladder.save("qwen_image.ladder.json")
print(ladder)

middle = ladder.budgets[len(ladder) // 2]
with budcache.applied(pipe, ladder, budget=middle) as handle:
    image = pipe(
        prompt='a shop window with the words "OPEN LATE" in neon', generator=torch.Generator().manual_seed(0), **call
    ).images[0]
    print(handle.stats().last_run_calls, "of", ladder.steps, "calls")
image.save("qwen_image.png")
