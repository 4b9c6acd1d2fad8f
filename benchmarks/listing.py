"""Every mask or the likeliest: `exhaustive` against `paths` at few steps, on prompts that neither has seen.

At 8 steps every mask can be tried. This says what that is worth: sample-calls, held-out PSNR, and the lead of trying
everything over paths, prompt by prompt, with its standard error. `--lora turbo` does it on the distilled model.

    python benchmarks/listing.py --threads 1            # tiny-flux, 8 and 4 steps
    python benchmarks/listing.py --threads 1 --lora turbo
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import torch
from judging import Judge

import budcache
from budcache import Ladder, models

MODEL = "tiny-flux"
STRATEGIES = ("paths", "exhaustive")
CASES = (  # steps, budgets, what is made of the masks, and the prompts of each search: how many, from the which on
    *((8, (3, 4, 5, 6, 7), "fit", count, first) for count, first in ((4, 0), (4, 4), (8, 0), (8, 8), (16, 0))),
    (8, (3, 4, 5, 6, 7), "none", 8, 0),
    (4, (2, 3), "fit", 8, 0),
    (4, (2, 3), "full", 8, 0),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lora", help="a LoRA on the model, such as turbo")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="a smoke run: its numbers mean nothing")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    pipe = models.load(MODEL, lora=args.lora)
    pipe.set_progress_bar_config(disable=True)
    measured = models.prompts(MODEL, "evaluation")[: 2 if args.quick else None]
    judges = {steps: Judge(pipe, measured, steps) for steps in {case[0] for case in CASES}}
    rows = []
    for steps, budgets, refine, count, first in CASES[:1] if args.quick else CASES:
        prompts = models.prompts(MODEL, "calibration")[first : first + count]
        found = {name: searched(pipe, name, steps, budgets, refine, prompts) for name in STRATEGIES}
        rows.append({"steps": steps, "refine": refine, "prompts": [first, first + count], **told(found, judges[steps])})
        print(rows[-1], file=sys.stderr, flush=True)
    told_on = {"model": MODEL, "lora": args.lora, "measured on": len(measured), "quick": args.quick}
    print(json.dumps({"benchmark": "listing", **told_on, "rows": rows}))


def searched(pipe: Any, strategy: str, steps: int, budgets: tuple[int, ...], refine: Any, prompts: list[str]) -> Ladder:
    return budcache.search(
        pipe,
        steps=steps,
        budgets=budgets,
        strategy=strategy,
        refine=refine,
        prompts=prompts,
        batch=4,
        progress=False,
    )


def told(found: dict[str, Ladder], judge: Judge) -> dict[str, Any]:
    """What each search took and came to, and how far trying everything is ahead."""
    paths, everything = (found[name] for name in STRATEGIES)
    leads = {rung.budget: judge.lead(everything[rung.budget], rung) for rung in paths}
    return {
        "sample-calls": {name: ladder.searched.calls for name, ladder in found.items() if ladder.searched},
        "psnr": {name: {rung.budget: judge(rung)["psnr"] for rung in ladder} for name, ladder in found.items()},
        "lead": {budget: [round(lead.mean, 2), round(lead.error, 2)] for budget, lead in leads.items()},
    }


if __name__ == "__main__":
    main()
