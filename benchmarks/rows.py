"""What the stronger fits are worth (F11 to F14), side by side on the same masks, on 64 evaluation prompts.

`python benchmarks/fidelity.py --rows`; every finished part is kept in the folder, so an interrupted run goes on.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from judging import Judge

import budcache
from budcache import Ladder, Policy, models
from budcache.jobs.refining import blended
from budcache.jobs.setup import Setup
from budcache.refine.fit import FittedScorer, Form
from budcache.refine.newton import GaussNewton
from budcache.rows import MAX_BLEND

MODEL, STEPS, BUDGETS, EVALUATION = "tiny-flux", 28, (5, 6, 8, 10), 64
TRUE_GUIDANCE: dict[str, Any] = {"guidance_scale": 1.0, "true_cfg_scale": 2.5, "negative_prompt": ""}
GUIDANCES = (1.5, 3.5, 5.0, 7.0)
ALL = Form(outputs=MAX_BLEND, noise=True)
Samples = Sequence[Mapping[str, Any]]


class Bench:
    """Judges of all settings, and parts that are measured once."""

    def __init__(self, pipe: Any, folder: Path) -> None:
        self.pipe, self.folder, self.begin = pipe, folder, time.perf_counter()
        self.calibration, evaluation = (models.prompts(MODEL, part) for part in ("calibration", "evaluation"))
        self.evaluation = evaluation[:EVALUATION]
        self.judges: dict[str, Judge] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def part(self, name: str, measure: Callable[[], Any]) -> Any:
        """One part of the measurements, from its file if there is one."""
        path = self.folder / f"rows-{name.replace(' ', '-')}.json"
        if not path.exists():
            path.write_text(json.dumps(measure()), encoding="utf-8")
            print(f"{time.perf_counter() - self.begin:6.0f} s  {name}", file=sys.stderr, flush=True)
        return json.loads(path.read_text(encoding="utf-8"))

    def judge(self, **call: Any) -> Judge:
        """Who judges under some settings."""
        key = json.dumps(call, sort_keys=True)
        if key not in self.judges:
            self.judges[key] = Judge(self.pipe, self.evaluation, STEPS, **call)
        return self.judges[key]

    def samples(self, count: int, first: int = 0, **call: Any) -> list[dict[str, Any]]:
        """Calibration samples."""
        return [{"prompt": prompt, **call} for prompt in self.calibration[first : first + count]]

    def search(self, samples: Samples, **options: Any) -> Ladder:
        """A search for the four budgets."""
        options = {"budgets": BUDGETS, "batch": min(len(samples), 6), "progress": False, **options}
        return budcache.search(self.pipe, steps=STEPS, samples=samples, **options)

    def fitted(self, ladder: Ladder, samples: Samples, form: Form, judge: Judge) -> dict[int, Any]:
        """Another form of fit on the masks of a ladder, all samples fitted on."""
        with Setup(self.pipe, STEPS, batch=8).calibration(samples, 0) as known:
            found = [blended(Policy(mask=rung.mask), FittedScorer(known, form).fit(rung.mask)) for rung in ladder]
        return {policy.budget: figures(judge.ratios(policy)) for policy in found}


def figures(ratios: Sequence[float], against: Sequence[float] | None = None) -> dict[str, Any]:
    """Mean, standard error and 5th percentile; and the mean difference to others, sample by sample."""
    found: dict[str, Any] = {
        "psnr": round(float(np.mean(ratios)), 2),
        "error": round(float(np.std(ratios, ddof=1) / len(ratios) ** 0.5), 2),
        "p5": round(float(np.percentile(ratios, 5)), 2),
        "ratios": [round(ratio, 3) for ratio in ratios],
    }
    return found | ({} if against is None else {"gain": difference(ratios, against)})


def difference(ratios: Sequence[float], against: Sequence[float]) -> str:
    """A mean difference with its standard error."""
    apart = np.subtract(ratios, against)
    return f"{apart.mean():+.2f} ± {apart.std(ddof=1) / len(apart) ** 0.5:.2f}"


def everything(bench: Bench, count: int, first: int = 0) -> dict[str, Any]:
    """All on, beside the fit of three outputs on the same masks and prompts."""
    samples, judge = bench.samples(count, first), bench.judge()
    ladder = bench.search(samples, refine="full", seed=first)
    full = {rung.budget: figures(judge.ratios(rung)) for rung in ladder}
    forms = {"three outputs (F6)": Form(), "all outputs and noise (F13)": ALL}
    table = {name: bench.fitted(ladder, samples, form, judge) for name, form in forms.items()}
    table["all on (F13, F14)"] = full
    three = table["three outputs (F6)"]
    gains = {b: difference(full[b]["ratios"], three[b]["ratios"]) for b in BUDGETS}
    assert ladder.searched is not None
    return {"sample-calls": ladder.searched.calls, "gain over three outputs": gains, "table": table}


def ladder_of_24(bench: Bench) -> dict[str, Any]:
    """The default before: the ladder with fit, 24 prompts."""
    ladder, judge = bench.search(bench.samples(24), strategy="ladder"), bench.judge()
    assert ladder.searched is not None
    rows = {rung.budget: figures(judge.ratios(rung)) for rung in ladder}
    return {"sample-calls": ladder.searched.calls, "table": {"ladder with fit, 24 prompts": rows}}


def apart(bench: Bench, count: int) -> dict[str, Any]:
    """True guidance: weights for the combined output, and the branches apart, on the same masks."""
    samples, judge = bench.samples(count, **TRUE_GUIDANCE), bench.judge(**TRUE_GUIDANCE)
    ladder = bench.search(samples, refine="none")
    table: dict[str, Any] = {}
    with Setup(bench.pipe, STEPS, batch=8).calibration(samples, 0) as known:
        for rung in ladder:
            plain = Policy(mask=rung.mask)
            three = blended(plain, FittedScorer(known).fit(rung.mask))
            combined = blended(plain, FittedScorer(known, ALL).fit(rung.mask))
            guided = FittedScorer(known, outputs=MAX_BLEND, noise=True, apart=True).fit(rung.mask).rows
            branches = combined.model_copy(update={"guided": guided})
            policies = {"three outputs": three, "combined": combined, "apart": branches}
            for name, policy in (("combined, aligned", combined), ("apart, aligned", branches)):
                newton = GaussNewton(policy, known)
                policies[name] = newton.stepped([newton.equations(i) for i in range(len(known.runs))])
            for name, policy in policies.items():
                table.setdefault(name, {})[rung.budget] = figures(judge.ratios(policy))
    pairs = {"apart": "combined", "apart, aligned": "combined, aligned"}
    gains = {
        f"{name} over {other}": {
            b: difference(table[name][b]["ratios"], table[other][b]["ratios"]) for b in table[name]
        }
        for name, other in pairs.items()
    }
    return {"gains": gains, "table": table}


def guidance_range(bench: Bench, count: int) -> dict[str, Any]:
    """One policy for a mix of guidance scales, beside one made at each of them alone, on the same masks."""
    mixed = [{**sample, "guidance_scale": GUIDANCES[i % 4]} for i, sample in enumerate(bench.samples(count))]
    ladder = bench.search(mixed, budgets=(6, 8))
    plain = [Policy(mask=rung.mask) for rung in ladder]
    table: dict[str, Any] = {}
    for guidance in GUIDANCES:
        judge, alone = bench.judge(guidance_scale=guidance), bench.samples(count, guidance_scale=guidance)
        with Setup(bench.pipe, STEPS, batch=8).calibration(alone, 0) as known:
            there = [blended(policy, FittedScorer(known, ALL).fit(policy.mask)) for policy in plain]
        for name, policies in (("plain reuse", plain), ("made there", there), ("the mix", list(ladder))):
            for policy in policies:
                rows = table.setdefault(f"{name}, guidance {guidance:g}", {})
                rows[policy.budget] = figures(judge.ratios(policy))
    return {"table": table}


def other_teachers(bench: Bench, count: int) -> dict[str, Any]:
    """Rows fitted to Euler's full runs, served under other solvers as they are: how near to *their* full runs."""
    from fidelity import solvers

    ladder, own, table = bench.search(bench.samples(count)), bench.pipe.scheduler, {}
    for name, scheduler in solvers(own).items():
        bench.pipe.scheduler = scheduler
        judge = Judge(bench.pipe, bench.evaluation, STEPS)
        there = bench.search(bench.samples(count))
        table[f"{name}, carried over"] = {rung.budget: figures(judge.ratios(rung)) for rung in ladder if rung.rows}
        table[f"{name}, searched there"] = {rung.budget: figures(judge.ratios(rung)) for rung in there}
        bench.pipe.scheduler = own
    return {"table": table}


def half_precision(bench: Bench, count: int, budget: int = 6) -> dict[str, Any]:
    """How far to move a weight for its column: one Gauss-Newton step in float32 and in bfloat16."""
    table: dict[str, Any] = {}
    mask = bench.search(bench.samples(count), budgets=budget, refine="none").rungs[0].mask
    for dtype in (torch.float32, torch.bfloat16):
        pipe = models.load(MODEL, dtype=dtype)
        pipe.set_progress_bar_config(disable=True)
        judge = Judge(pipe, bench.evaluation, STEPS)
        with Setup(pipe, STEPS, batch=8).calibration(bench.samples(count), 0) as known:
            policy = blended(Policy(mask=mask), FittedScorer(known, ALL).fit(mask))
            name = str(dtype).removeprefix("torch.")
            table[f"{name}, fit"] = {budget: figures(judge.ratios(policy))}
            for move in (0.005, 0.02, 0.05, 0.1, 0.2, 0.4):
                newton = GaussNewton(policy, known, move)
                stepped = newton.stepped([newton.equations(i) for i in range(len(known.runs))])
                table[f"{name}, moved by {move:g}"] = {budget: figures(judge.ratios(stepped))}
    return {"table": table}


def measured(pipe: Any, folder: Path) -> dict[str, Any]:
    """All parts, in one line."""
    bench = Bench(pipe, folder)
    parts: dict[str, Callable[[], Any]] = {
        "16 prompts": lambda: everything(bench, 16),
        "4 prompts": lambda: everything(bench, 4),
        "ladder": lambda: ladder_of_24(bench),
        "true guidance": lambda: apart(bench, 16),
        "guidance range": lambda: guidance_range(bench, 16),
        "half precision": lambda: half_precision(bench, 8),
        "other teachers": lambda: other_teachers(bench, 8),
        "4 prompts, second set": lambda: everything(bench, 4, 16),
        "4 prompts, third set": lambda: everything(bench, 4, 32),
    }
    found = {name: bench.part(name, measure) for name, measure in parts.items()}
    for part in found.values():
        for rows in part["table"].values():
            for row in rows.values():
                row.pop("ratios")
    return {"benchmark": "fidelity, rows", "model": MODEL, "steps": STEPS, "evaluation": EVALUATION, **found}
