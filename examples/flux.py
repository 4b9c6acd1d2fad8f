"""FLUX.1-dev at a fixed number of model calls: search once, then draw.

    python examples/flux.py                                                # a GPU; about 20 minutes on an H100
    python examples/flux.py --model tiny-flux --height 128 --width 128     # any machine, a minute

The prompts take turns with three guidance scales, so the policies hold from 2.5 to 5.
"""

from __future__ import annotations

import argparse

import torch

import budcache

options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
options.add_argument("--model", default="black-forest-labs/FLUX.1-dev", help="a hub id, a folder or an embedded name")
options.add_argument("--steps", type=int, default=28)
options.add_argument("--budgets", type=int, nargs="+", default=[6, 7, 8, 9, 10, 12])
options.add_argument("--count", type=int, default=16, help="prompts to calibrate on")
options.add_argument("--height", type=int, default=1024)
options.add_argument("--width", type=int, default=1024)
given = options.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"
pipe = budcache.load(given.model, dtype=torch.bfloat16 if device == "cuda" else torch.float32).to(device)
call = {"height": given.height, "width": given.width}

# Killed, the same command goes on: what was scored is in the ledger.
ladder = budcache.search(
    pipe,
    steps=given.steps,
    budgets=given.budgets,
    samples=[
        {"prompt": text, "guidance_scale": (2.5, 3.5, 5.0)[i % 3]}
        for i, text in enumerate(budcache.prompts("images")[: given.count])
    ],
    features=True,  # weights that look at the sample, since settings differ
    call=call,
    ledger="flux.ledger.jsonl",
)
ladder.save("flux.ladder.json")
print(ladder)

middle = ladder.budgets[len(ladder) // 2]
with budcache.applied(pipe, ladder, budget=middle) as handle:
    image = pipe(
        prompt="a lighthouse keeper reading by a stove, oil painting",
        generator=torch.Generator().manual_seed(0),
        **call,
    ).images[0]
    print(handle.stats().last_run_calls, "of", ladder.steps, "calls")
image.save("flux.png")
