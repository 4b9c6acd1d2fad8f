"""Z-Image at a fixed number of model calls: search once, then draw.

    python examples/z_image.py                               # a GPU; about 20 minutes on an H100
    python examples/z_image.py --model FOLDER --height 32 --width 32 --steps 8 --budgets 3 4 --count 2

For Z-Image-Turbo: `--model Tongyi-MAI/Z-Image-Turbo --steps 9 --budgets 4 5 6`, and a guidance scale of 0 below.
"""

from __future__ import annotations

import argparse

import torch

import budcache

options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
options.add_argument("--model", default="Tongyi-MAI/Z-Image", help="a hub id, a folder or an embedded name")
options.add_argument("--steps", type=int, default=50)
options.add_argument("--budgets", type=int, nargs="+", default=[10, 14, 18])
options.add_argument("--count", type=int, default=16, help="prompts to calibrate on")
options.add_argument("--height", type=int, default=1024)
options.add_argument("--width", type=int, default=1024)
given = options.parse_args()

device = "cuda" if torch.cuda.is_available() else "cpu"
pipe = budcache.load(given.model, dtype=torch.bfloat16 if device == "cuda" else torch.float32).to(device)
call = {"height": given.height, "width": given.width, "guidance_scale": 4.0}

# Killed, the same command goes on: what was scored is in the ledger.
ladder = budcache.search(
    pipe,
    steps=given.steps,
    budgets=given.budgets,
    prompts=budcache.prompts("images")[: given.count],
    call=call,
    ledger="z_image.ledger.jsonl",
)
ladder.save("z_image.ladder.json")
print(ladder)

middle = ladder.budgets[len(ladder) // 2]
with budcache.applied(pipe, ladder, budget=middle) as handle:
    image = pipe(
        prompt="two herons in a misty reed bed, woodblock print", generator=torch.Generator().manual_seed(0), **call
    ).images[0]
    print(handle.stats().last_run_calls, "of", ladder.steps, "calls")
image.save("z_image.png")
