"""How near to the full run each way of spending B model calls comes, on tiny-flux: the paper's methods and ours.

Policies are found on calibration prompts and judged on evaluation prompts from seeds that nothing was found on. What
has been found is kept in a folder, a ladder file per method, so that an interrupted run goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import rows
import torch
from judging import Judge, peak_memory

import budcache
from budcache import Ladder, Mask, Policy, models

MODEL, STEPS, EXACT = "tiny-flux", 28, 400
PUBLISHED = "published search (authors R2 SA100, residual)"
OURS = "ladder + fit"
JOINT = "ladder + fit + align (joint)"
FINER = "ladder + fit, teacher of 224 steps"
FINER_JOINT = "ladder + fit + align (joint), teacher of 224 steps"
BUDGETS = (5, 6, 8, 10)
LOW = (5, 6, 7)
GEOMETRIC: dict[str, Any] = {"mean": "geometric", "rate": 3e-2}


class Shelf:
    """Ladders by method, each found once and kept as a file."""

    def __init__(self, folder: Path, pipe: Any, prompts: list[str]) -> None:
        self.folder, self.pipe, self.prompts, self.begin = folder, pipe, prompts, time.perf_counter()
        self.ladders: dict[str, Ladder] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, name: str, find: Callable[[], Ladder]) -> Ladder:
        """A method's ladder, from its file if there is one."""
        path = self.folder / (name.replace(" ", "-").replace(",", "").replace("/", "-") + ".json")
        if not path.exists():
            find().save(path)
            print(f"{time.perf_counter() - self.begin:6.0f} s  {name}", file=sys.stderr, flush=True)
        self.ladders[name] = Ladder.load(path)
        return self.ladders[name]

    def search(self, count: int, budgets: Iterable[int], **options: Any) -> Ladder:
        """A search on the first prompts, eight at a time."""
        options |= {"prompts": self.prompts[:count], "batch": min(count, 8)}
        return budcache.search(self.pipe, steps=STEPS, budgets=budgets, **options)

    def align(self, ladder: Ladder, budgets: Iterable[int], **options: Any) -> Ladder:
        """Algorithm 3 on all prompts, for some budgets."""
        chosen = Ladder.of([rung for rung in ladder if rung.budget in set(budgets)])
        return budcache.align(self.pipe, chosen, method="gradient", prompts=self.prompts, **options)


def find(shelf: Shelf, budgets: tuple[int, ...], count: int) -> None:
    """Every method's policies."""
    shelf.get("uniform", lambda: Ladder.of([Policy(mask=Mask.uniform(STEPS, b)) for b in budgets]))
    shelf.get(
        "uniform, residual", lambda: Ladder.of([Policy(mask=Mask.uniform(STEPS, b), reuse="residual") for b in budgets])
    )
    plain = shelf.get("ladder", lambda: shelf.search(count, budgets, strategy="ladder", refine="none"))
    ours = shelf.get(OURS, lambda: shelf.search(count, budgets, strategy="ladder"))
    residual = shelf.get("ladder, residual", lambda: shelf.search(count, budgets, reuse="residual"))
    two: dict[str, Any] = {"selection": 0, "refine": "none"}
    shelf.get(PUBLISHED, lambda: shelf.search(2, budgets, strategy="authors-r2-sa100", reuse="residual", **two))
    shelf.get("published search, output reuse", lambda: shelf.search(2, budgets, strategy="authors-r2-sa100", **two))
    shelf.get("anneal R1 SA20 as printed", lambda: shelf.search(2, budgets, strategy="anneal-r1-sa20", **two))
    shelf.get(
        "anneal R1 SA20 as printed, residual",
        lambda: shelf.search(2, budgets, strategy="anneal-r1-sa20", reuse="residual", **two),
    )
    for b in budgets:
        short = Ladder.of([Policy(mask=Mask.full(b))])
        shelf.get(f"B plain steps, aligned/{b}", partial(shelf.align, short, [b], teacher_steps=STEPS))
        if b in LOW:
            more = partial(shelf.align, short, [b], teacher_steps=STEPS, **GEOMETRIC)
            shelf.get(f"B plain steps, aligned, geometric/{b}", more)
    shelf.get("ladder + align", lambda: shelf.align(plain, budgets))
    shelf.get("ladder + align, geometric", lambda: shelf.align(plain, LOW, **GEOMETRIC))
    shelf.get("ladder + align, residual", lambda: shelf.align(residual, budgets))
    shelf.get(JOINT, lambda: shelf.align(ours, budgets, epochs=2))
    finer = shelf.get(FINER, lambda: shelf.search(min(count, 32), budgets, strategy="ladder", teacher_steps=224))
    shelf.get(FINER_JOINT, lambda: shelf.align(finer, (9, 10, 11), epochs=2, teacher_steps=224))


def judged(shelf: Shelf, judge: Judge, budgets: tuple[int, ...]) -> dict[str, dict[int, dict[str, float]]]:
    """Held-out quality of every method and budget."""
    table: dict[str, dict[int, dict[str, float]]] = {"B plain steps": {}}
    for b in budgets:
        table["B plain steps"][b] = judge(Policy(mask=Mask.full(b)))
    for name, ladder in shelf.ladders.items():
        rows = table.setdefault(name.split("/")[0], {})
        for rung in ladder:
            rows[rung.budget] = judge(rung)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--evaluation", type=int, default=32, help="held-out prompts")
    parser.add_argument("--prompts", type=int, default=64, help="calibration prompts for ours")
    parser.add_argument("--rows", action="store_true", help="rows, guidance apart, features, Gauss-Newton (rows.py)")
    parser.add_argument("--folder", type=Path, default=Path("out/fidelity"))
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    pipe = models.load(MODEL)
    pipe.set_progress_bar_config(disable=True)
    if args.rows:
        print(json.dumps(rows.measured(pipe, args.folder)))
        return
    budgets = tuple(range(4, 13))
    shelf = Shelf(args.folder, pipe, models.prompts(MODEL, "calibration"))
    find(shelf, budgets, args.prompts)
    prompts = models.prompts(MODEL, "evaluation")[: args.evaluation]
    judge = Judge(pipe, prompts, STEPS)
    table = judged(shelf, judge, budgets)
    line = {
        "benchmark": "fidelity",
        "model": MODEL,
        "steps": STEPS,
        "evaluation": len(prompts),
        "goals": goals(table),
        "quality": table,
        "low budgets": low(table),
        "exact": exact(shelf, pipe, prompts),
        "transfer": transfer(shelf, pipe, prompts, args.prompts),
        "calls": {name: calls(ladder) for name, ladder in shelf.ladders.items()},
        "memory": memory(),
    }
    draw(args.folder / "fidelity.png", table)
    print(json.dumps(line))


def goals(table: dict[str, Any]) -> dict[str, Any]:
    """What was aimed at, and what came of it."""
    published, ours = table[PUBLISHED], table[OURS]
    reached = [b for b, row in ours.items() if row["psnr"] >= published[10]["psnr"]]
    return {
        "gain over the published search, dB (goals 4, 6, 10, 12)": {
            b: round(ours[b]["psnr"] - published[b]["psnr"], 2) for b in BUDGETS
        },
        "calls for what it has at 10 (goal 6)": min(reached, default=None),
    }


def low(table: dict[str, Any]) -> dict[int, dict[str, float]]:
    """The paper's low-budget table: its order is Original < Original-Opt. and ours < ours-Opt."""
    names = {
        "Original": "B plain steps",
        "Original-Opt.": "B plain steps, aligned",
        "ours": OURS,
        "ours-Opt.": JOINT,
        "masks alone": "ladder",
        "masks alone, Opt.": "ladder + align",
        "Original-Opt., geometric": "B plain steps, aligned, geometric",
        "masks alone, Opt., geometric": "ladder + align, geometric",
    }
    return {b: {short: table[name][b]["psnr"] for short, name in names.items()} for b in LOW}


def exact(shelf: Shelf, pipe: Any, prompts: list[str]) -> dict[str, Any]:
    """PSNR to a solution of 400 steps: of the full run, by other solvers too, and of every method."""
    truth = Judge(pipe, prompts, EXACT)
    found: dict[str, Any] = {
        f"full run of {STEPS}": truth(Policy(mask=Mask.full(STEPS)))["psnr"],
        "B plain steps": {b: truth(Policy(mask=Mask.full(b)))["psnr"] for b in range(4, 13)},
    }
    own = pipe.scheduler
    for name, pipe.scheduler in solvers(own).items():
        found[f"full run of {STEPS}, {name}"] = truth.measure(truth.draw(Policy(mask=Mask.full(STEPS))))["psnr"]
    pipe.scheduler = own
    for name, ladder in shelf.ladders.items():
        rows = found.setdefault(name.split("/")[0], {})
        rows |= {rung.budget: truth(rung)["psnr"] for rung in ladder}
    return found


def transfer(shelf: Shelf, pipe: Any, prompts: list[str], count: int) -> dict[str, Any]:
    """Under settings that neither was found for, and on other solvers: ours, the published search, and fewer steps.

    What a policy that is carried over loses is told by ours `searched there`. To another solver a mask may be carried
    over, blend weights may not, so there is only that one.
    """
    settings: dict[str, dict[str, Any]] = {
        "as calibrated": {},
        "guidance 2": {"guidance_scale": 2.0},
        "guidance 5": {"guidance_scale": 5.0},
        "96 x 64 pixels": {"height": 96, "width": 64},
    }
    found: dict[str, Any] = {}

    def judged_there(name: str, ladders: dict[str, Ladder], **call: Any) -> None:
        judge = Judge(pipe, prompts, STEPS, **call)
        policies = {"fewer steps": {b: Policy(mask=Mask.full(b)) for b in BUDGETS}, **ladders}
        rows = {who: {b: judge(ladder[b])["psnr"] for b in BUDGETS} for who, ladder in policies.items()}
        ours = rows.get("ours", rows["ours, searched there"])
        gains = {b: round(ours[b] - rows["published"][b], 2) for b in BUDGETS}
        found[name] = {"gain of ours over the published search": gains, "psnr": rows}

    published = shelf.ladders[PUBLISHED]
    for name, call in settings.items():
        ours = {"ours": shelf.ladders[OURS]}
        there = shelf.get(f"{OURS}, {name}", partial(shelf.search, count, BUDGETS, call=call)) if call else ours["ours"]
        judged_there(name, {"published": published, **ours, "ours, searched there": there}, **call)
    own = pipe.scheduler
    for name, scheduler in solvers(own).items():
        pipe.scheduler = scheduler
        there = shelf.get(f"{OURS}, {name}", partial(shelf.search, count, BUDGETS))
        judged_there(name, {"published": published, "ours, searched there": there})
    pipe.scheduler = own
    return found


def solvers(own: Any) -> dict[str, Any]:
    """Other solvers of diffusers on the same noise levels."""
    from diffusers import DPMSolverMultistepScheduler, UniPCMultistepScheduler

    flow = {
        "use_flow_sigmas": True,
        "prediction_type": "flow_prediction",
        "use_dynamic_shifting": own.config.use_dynamic_shifting,
        "time_shift_type": "exponential",
    }
    return {
        "DPM-Solver++(2M)": DPMSolverMultistepScheduler(**flow),
        "UniPC": UniPCMultistepScheduler(**flow, solver_order=2),
    }


def calls(ladder: Ladder) -> dict[str, Any]:
    """Sample-calls of the search that all rungs share, and of each refinement."""
    first = ladder.rungs[0].origin
    rungs = {rung.budget: sum(line.calls or 0 for line in rung.refined) for rung in ladder if rung.refined}
    return {"search": first and first.calls, "refinement": rungs}


def memory() -> dict[str, float]:
    """Peak memory in a process of its own, in MB: of fitting and aligning, and of plain inference."""
    policy = "Policy(mask=Mask.uniform(28, 8))"
    plain = peak_memory("pipe(prompts[:8], num_inference_steps=28)")
    few, fit = (peak_memory(f"budcache.fit(pipe, {policy}, prompts=prompts[:{n}], batch=8)") for n in (16, 64))
    align = f"budcache.align(pipe, {policy}, prompts=prompts[:12], selection=4)"
    fitted = f"budcache.fit(pipe, {policy}, prompts=prompts[:8])"
    newton = f"budcache.align(pipe, {fitted}, prompts=prompts[:12], batch=8)"
    residual = align.replace("8))", '8), reuse="residual")')
    joint = f"budcache.align(pipe, {fitted}, prompts=prompts[:12], selection=4, method='gradient')"
    return {
        "plain inference, batch 8": round(plain, 1),
        "fit on 16 prompts, batch 8": round(few, 1),
        "fit on 64 prompts, batch 8": round(fit, 1),
        "fit, then Gauss-Newton on 12 prompts, batch 8": round(gauss := peak_memory(newton), 1),
        "Gauss-Newton over plain (goal 1.1)": round(gauss / plain, 3),
        "align, batch 1": round(peak_memory(align), 1),
        "align with residual reuse, batch 1": round(peak_memory(residual), 1),
        "fit, then align jointly, batch 1": round(peak_memory(joint), 1),
        "plain inference, batch 1": round(peak_memory("pipe(prompts[:1], num_inference_steps=28)"), 1),
        "fit over plain (goal 1.1)": round(fit / plain, 3),
    }


def draw(path: Path, table: dict[str, Any]) -> None:
    """Quality over model calls, every method."""
    from budcache.report import plots

    unseen = {FINER, FINER_JOINT, *(name for name in table if "geometric" in name)}
    shown = {name: {b: row["psnr"] for b, row in rows.items()} for name, rows in table.items() if name not in unseen}

    def panel(axes: Any) -> None:
        plots.quality(axes, shown, ours=OURS)
        for line in axes.get_lines():
            if "residual" in str(line.get_label()):
                line.set_linestyle(":")
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))

    plots.save(path, panel, size=(10, 5.5))


if __name__ == "__main__":
    main()
