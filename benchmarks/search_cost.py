"""What searching costs and what it finds, on tiny-flux: the published search, the paper's as printed, and the ladder.

Cost is counted in sample-calls, model calls times samples, the teacher's included. `calls` are those really made, with
the prefix tree; `calls_without_tree` are those that the same search makes without it, as published: B per mask scored.
The losses are the same bit for bit (a test), so the second number needs no second run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from contextlib import ExitStack
from typing import Any

import torch
from judging import Judge
from search_curve import curve, other_steps
from search_curve import growth as path_growth

from budcache import PipelineModel, Policy, models
from budcache.calibration import aggregate
from budcache.calibration.calibration import Calibration
from budcache.calibration.scoring import PlainScorer
from budcache.policy import Reuse
from budcache.samples.batch import merge
from budcache.strategies import STRATEGIES, Found, LadderSearch, Polished, Strategy, drive

MODEL, STEPS, BUDGETS, RUNGS = "tiny-flux", 28, (5, 6, 8, 10), tuple(range(4, 13))
PUBLISHED = "authors-r2-sa100, residual"  # as published: with residual reuse
LADDERS: dict[str, Strategy] = {
    "ladder": LadderSearch(),
    "ladder, beam 2": LadderSearch(beam=2),
    "ladder, beam 4": LadderSearch(beam=4),
    "ladder, polished": Polished(LadderSearch()),
}


def calibrate(
    stack: ExitStack, pipe: Any, prompts: list[str], steps: int = STEPS, reuse: Reuse = "output", batch: int = 8
) -> Calibration:
    samples = [{"prompt": p, "generator": torch.Generator().manual_seed(i)} for i, p in enumerate(prompts)]
    calls = [merge(samples[begin : begin + batch]) for begin in range(0, len(samples), batch)]
    runs = [stack.enter_context(PipelineModel(pipe, steps=steps, reuse=reuse, **call)) for call in calls]
    return Calibration(runs, residual=reuse == "residual")


def searched(plan: Strategy, calibration: Calibration, budgets: tuple[int, ...]) -> Found:
    scorer = PlainScorer(calibration, memory=2_000_000_000)
    return drive(
        plan,
        lambda ask: scorer.score_many(ask.masks),
        steps=calibration.steps,
        budgets=budgets,
        calls=lambda: calibration.calls,
    )


def run(
    plan: Strategy, pipe: Any, prompts: list[str], budgets: tuple[int, ...], judge: Judge, reuse: Reuse = "output"
) -> dict[str, Any]:
    """One search; its cost, and the loss and held-out quality of each budget that counts."""
    with ExitStack() as stack:
        calibration = calibrate(stack, pipe, prompts, reuse=reuse)
        found = searched(plan, calibration, budgets)
        calls = calibration.calls
    plain = len(prompts) * (STEPS + sum(mask.budget for mask in found.scores))
    best = {b: found.best(b)[0] for b in BUDGETS if b in budgets}
    return {
        "calls": calls,
        "calls_without_tree": plain,
        "masks": len(found.scores),
        "loss": {b: found.scores[mask].loss for b, mask in best.items()},
        "psnr": {b: judge(Policy(mask=mask, reuse=reuse))["psnr"] for b, mask in best.items()},
        "mask": {b: str(mask) for b, mask in best.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--evaluation", type=int, default=32, help="held-out prompts")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--quick",
        action="store_true",
        help="leave out the annealing on eight prompts, and which way to spend calls is best",
    )
    parser.add_argument("--curve", action="store_true", help="only quality over sample-calls: paths beside the others")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    pipe = models.load(MODEL)
    pipe.set_progress_bar_config(disable=True)
    if args.curve:
        judge = Judge(pipe, models.prompts(MODEL, "evaluation"), STEPS)
        parts = {"curve": curve(pipe, judge), "other steps": other_steps(pipe), "growth": path_growth(pipe)}
        print(json.dumps({"benchmark": "search_curve", "model": MODEL, "steps": STEPS, **parts}))
        return
    calibration = models.prompts(MODEL, "calibration")
    judge = Judge(pipe, models.prompts(MODEL, "evaluation")[: args.evaluation], STEPS)
    begin = time.perf_counter()
    results: dict[str, Any] = {}

    def record(name: str, plan: Strategy, count: int, budgets: tuple[int, ...], reuse: Reuse = "output") -> None:
        found = results[f"{name} on {count}"] = run(plan, pipe, calibration[:count], budgets, judge, reuse)
        print(f"{time.perf_counter() - begin:6.0f} s  {name} on {count}: {found}", file=sys.stderr, flush=True)

    for count in (2, 8):
        record("uniform", STRATEGIES["uniform"], count, BUDGETS)
        for name, plan in LADDERS.items():
            record(name, plan, count, RUNGS)
        record("ladder, residual", LadderSearch(), count, RUNGS, "residual")
    for count in (16, 24, 48):
        record("ladder", LadderSearch(), count, RUNGS)
    # What the ladder's arrivals are judged by: the samples' mean error instead of nearly the worst.
    usual, aggregate.POWER = aggregate.POWER, 1
    for count in (8, 24):
        record("ladder, mean arrivals", LadderSearch(), count, RUNGS)
    aggregate.POWER = usual
    spent = {} if args.quick else spending(pipe, calibration, judge)
    record(PUBLISHED, STRATEGIES["authors-r2-sa100"], 2, BUDGETS, "residual")
    for count in (2,) if args.quick else (2, 8):
        for name in ("authors-r2-sa100", "authors-r1-sa20", "anneal-r1-sa20", "anneal-r2-sa100"):
            record(name, STRATEGIES[name], count, BUDGETS)
    line = {
        "benchmark": "search_cost",
        "model": MODEL,
        "steps": STEPS,
        "goals": goals(results),
        "searches": results,
        "spending": spent,
        "optimum": against_the_optimum(pipe, calibration[:2]),
        "growth": growth(pipe, calibration[:2]),
    }
    print(json.dumps(line))


WAYS = ("calls", "calls_without_tree")  # with our prefix tree, and as the authors' code runs


def goals(results: dict[str, Any]) -> dict[str, Any]:
    """What was aimed at, and what came of it: over the search as published, and over its moves with our reuse."""
    published, same, polished = (
        results[f"{name} on 2"] for name in (PUBLISHED, "authors-r2-sa100", "ladder, polished")
    )

    def gains(over: dict[str, Any]) -> dict[str, dict[int, float]]:
        ours = [name for name in results if name.startswith("ladder") and not name.endswith("on 2")]
        return {name: {b: round(results[name]["psnr"][b] - over["psnr"][b], 2) for b in BUDGETS} for name in ours}

    return {
        "ladder on 8 over published on 2, sample-calls (goal 1/6)": {
            name: [round(results[f"{name} on 8"]["calls"] / published[way], 4) for way in WAYS] for name in LADDERS
        },
        "gain in held-out PSNR (goal 1.5 dB each)": {"as published": gains(published), "same reuse": gains(same)},
        "polished ladder on 2 at most the published loss (goal 3 of 4)": {
            "as published": sum(polished["loss"][b] <= published["loss"][b] for b in BUDGETS),
            "same reuse": sum(polished["loss"][b] <= same["loss"][b] for b in BUDGETS),
        },
        "for this part of its calls (goal 1/4)": [round(polished["calls"] / same[way], 4) for way in WAYS],
    }


def spending(pipe: Any, prompts: list[str], judge: Judge) -> dict[str, Any]:
    """What to spend calls on, a beam, a polish or more prompts: mean held-out PSNR over disjoint sets of prompts."""
    table = {}
    for count, name in [*((8, name) for name in LADDERS), (16, "ladder"), (16, "ladder, beam 2"), (32, "ladder")]:
        groups = [prompts[begin : begin + count] for begin in range(0, len(prompts), count)]
        found = [run(LADDERS[name], pipe, group, RUNGS, judge) for group in groups]
        table[f"{name} on {count}"] = {
            "sets": len(found),
            "calls": round(statistics.mean(each["calls"] for each in found)),
            "psnr": {b: round(statistics.mean(each["psnr"][b] for each in found), 2) for b in BUDGETS},
            "spread": {b: round(statistics.stdev(each["psnr"][b] for each in found), 2) for b in BUDGETS},
        }
        print(f"{name} on {count}: {table[f'{name} on {count}']}", file=sys.stderr, flush=True)
    return table


def against_the_optimum(pipe: Any, prompts: list[str], steps: int = 12, budget: int = 4) -> dict[str, Any]:
    """How far above the exhaustive optimum each strategy's loss ends."""
    excess = {}
    with ExitStack() as stack:
        calibration = calibrate(stack, pipe, prompts, steps)
        losses = {
            name: min(score.loss for mask, score in found.scores.items() if mask.budget == budget)
            for name, plan in {**STRATEGIES, "ladder, polished": Polished(LadderSearch())}.items()
            if name != "paths"  # which looks at fitted stretches: see search_curve.py
            if (found := searched(plan, calibration, (budget,)))
        }
    for name, loss in losses.items():
        excess[name] = round(loss / losses["exhaustive"] - 1, 4)
    return {"steps": steps, "budget": budget, "excess": excess}


def growth(pipe: Any, prompts: list[str], budget: int = 8) -> dict[str, Any]:
    """Sample-calls per sample of each search as the number of steps grows."""
    costs: dict[str, dict[int, float]] = {}
    for steps in (14, 28, 56):
        for name in ("ladder", "authors-r1-sa20", "anneal-r1-sa20"):
            with ExitStack() as stack:
                calibration = calibrate(stack, pipe, prompts, steps)
                searched(STRATEGIES[name], calibration, (budget,))
                costs.setdefault(name, {})[steps] = calibration.calls / len(prompts)
    return {"budget": budget, "calls_per_sample": costs}


if __name__ == "__main__":
    main()
