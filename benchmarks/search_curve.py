"""Held-out quality over sample-calls spent: paths, the ladder with fit and the published search, side by side.

A part of `search_cost.py`: `python benchmarks/search_cost.py --curve`. Every figure is the mean over the evaluation
prompts and, where there are several, over disjoint sets of prompts to search on.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import numpy as np
from judging import Judge

import budcache
from budcache import Ladder, Record, models
from budcache.jobs.setup import Setup
from budcache.records.paths import ShortestPaths
from budcache.records.record import Runs

BUDGETS, STEPS = (5, 6, 8, 10), 28
SETS = {4: 3, 8: 3, 16: 3, 32: 2, 64: 1}  # disjoint sets of so many prompts


def curve(pipe: Any, judge: Judge, published: bool = True) -> dict[str, Any]:
    """All searches, and what they come to."""
    prompts = models.prompts("tiny-flux", "calibration")
    table: dict[str, Any] = {}

    def note(name: str, found: list[tuple[int, float, Ladder]]) -> None:
        table[name] = _summary(found, judge)
        print(f"{name}: {table[name]}", file=sys.stderr, flush=True)

    for count, sets in SETS.items():
        note(f"paths, {count} prompts", [_searched(pipe, prompts[count * i : count * (i + 1)]) for i in range(sets)])
    note("paths 4-12, 8 prompts", [_searched(pipe, prompts[:8], budgets=range(4, 13))])
    note("paths, worst cared for, 16 prompts", [_searched(pipe, prompts[:16], care="worst")])
    note("full runs alone, 64 prompts", [_recorded(pipe, prompts)])
    note("ladder with fit, 24 prompts", [_searched(pipe, prompts[:24], strategy="ladder")])
    if published:
        plain = {"strategy": "authors-r2-sa100", "reuse": "residual", "selection": 0}
        note("published, 16 prompts", [_searched(pipe, prompts[:16], **plain)])
    return {"evaluation prompts": len(judge.prompts), "searches": table, "goals": _goals(table)}


def other_steps(pipe: Any, count: int = 16) -> dict[str, Any]:
    """Policies for other numbers of steps from one record at 28, against a record and a search made there."""
    prompts, table = models.prompts("tiny-flux", "calibration")[:count], {}
    at_home = _record(pipe, prompts, STEPS)
    for steps in (20, 50):
        judge = Judge(pipe, models.prompts("tiny-flux", "evaluation")[: count * 2], steps)
        table[steps] = {
            "record at 28, carried over": _mean(at_home.ladder(BUDGETS, steps=steps), judge),
            f"record at {steps}": _mean(_record(pipe, prompts, steps).ladder(BUDGETS), judge),
            f"search at {steps}": _mean(_searched(pipe, prompts, steps=steps)[2], judge),
        }
        print(f"{steps} steps: {table[steps]}", file=sys.stderr, flush=True)
    return table


def growth(pipe: Any, count: int = 16) -> dict[str, Any]:
    """Sample-calls per sample, and seconds for table and paths, as the number of steps grows."""
    prompts, table = models.prompts("tiny-flux", "calibration")[:count], {}
    for steps in (14, 28, 56):
        grams = _record(pipe, prompts, steps).source().grams
        begin = time.process_time()
        find = ShortestPaths.through(grams, BUDGETS)
        for power in (0.0, 0.25, 0.5, 0.75, 1.0):
            find(BUDGETS, power)
        seconds = time.process_time() - begin
        calls = _searched(pipe, prompts[:4], steps=steps)[0] / 4
        table[steps] = {"calls per sample": round(calls, 1), "seconds of CPU": round(seconds, 2)}
    return table


def _searched(pipe: Any, prompts: list[str], **options: Any) -> tuple[int, float, Ladder]:
    begin = time.process_time()
    call = {"steps": STEPS, "budgets": BUDGETS, "prompts": prompts, "batch": 4, "progress": False, **options}
    ladder = budcache.search(pipe, **call)
    assert ladder.searched is not None
    return ladder.searched.calls, time.process_time() - begin, ladder


def _record(pipe: Any, prompts: list[str], steps: int) -> Record:
    setup = Setup(pipe, steps, batch=8)
    samples = [{"prompt": prompt} for prompt in prompts]
    with setup.calibration(samples, 0, record=True) as known:
        return Record([Runs(setup.origin(samples), known.grams)])


def _recorded(pipe: Any, prompts: list[str]) -> tuple[int, float, Ladder]:
    begin = time.process_time()
    ladder = _record(pipe, prompts, STEPS).ladder(BUDGETS)
    return STEPS * len(prompts), time.process_time() - begin, ladder


def _mean(ladder: Ladder, judge: Judge) -> dict[int, float]:
    return {rung.budget: judge(rung)["psnr"] for rung in ladder}


def _summary(found: list[tuple[int, float, Ladder]], judge: Judge) -> dict[str, Any]:
    ratios = {b: np.array([judge.ratios(ladder[b]) for _, _, ladder in found]) for b in BUDGETS}  # [sets, prompts]
    return {
        "sets": len(found),
        "sample-calls": round(statistics.mean(calls for calls, _, _ in found)),
        "seconds of CPU": round(statistics.mean(seconds for _, seconds, _ in found), 1),
        "psnr": {b: round(float(each.mean()), 2) for b, each in ratios.items()},
        "error": {b: round(float(each.mean(0).std(ddof=1) / each.shape[1] ** 0.5), 2) for b, each in ratios.items()},
        "between sets": {b: round(float(each.mean(1).std()), 2) for b, each in ratios.items()},
        "p5": {b: round(float(np.percentile(each, 5, axis=1).mean()), 2) for b, each in ratios.items()},
        "mean": round(float(np.mean([each.mean() for each in ratios.values()])), 2),
    }


def _goals(table: dict[str, Any]) -> dict[str, Any]:
    ladder, four, sixteen = (
        table[name] for name in ("ladder with fit, 24 prompts", "paths, 4 prompts", "paths, 16 prompts")
    )
    goals = {
        "4 prompts: sample-calls (goal 600)": four["sample-calls"],
        "4 prompts: mean dB above the ladder (goal -0.7)": round(four["mean"] - ladder["mean"], 2),
        "16 prompts: sample-calls (goal 2,400)": sixteen["sample-calls"],
        "16 prompts: mean dB above the ladder (goal 0)": round(sixteen["mean"] - ladder["mean"], 2),
        "4-12 with 8 prompts: sample-calls (goal 2,600)": table["paths 4-12, 8 prompts"]["sample-calls"],
    }
    if "published, 16 prompts" in table:
        other = table["published, 16 prompts"]
        goals |= {
            "published: times the sample-calls (goal 3)": round(other["sample-calls"] / sixteen["sample-calls"], 1),
            "published: dB below (goal 4 each)": {b: round(sixteen["psnr"][b] - other["psnr"][b], 2) for b in BUDGETS},
        }
    return goals
