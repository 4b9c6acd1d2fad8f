"""How many steps K to spread a fixed number of calls over.

More steps follow the solution more closely, but more of them have to be reused. So quality is measured against a run of
very many steps (`--exact`), and beside it against the full run of K steps that a policy imitates.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from common import Lab
from judging import Judge
from published import STEPS_BEST, STEPS_SOURCE
from telling import Claim, Table, with_error

from budcache import Mask, Policy
from budcache.report import plots

NAMES = {"published": "published search, light", "plain": "budcache, plain reuse", "ours": "budcache"}


def main(argv: Sequence[str] | None = None) -> None:
    lab = Lab("steps", __doc__ or "", argv, budgets=((10,), (3,)), more=options)
    budget, exact = lab.budgets[0], 16 if lab.quick else lab.args.exact
    counts = [3, 5, 8] if lab.quick else sorted({budget, *lab.args.counts})
    truth, learned = lab.judge(exact), lab.calibration[: lab.args.few]
    curves: dict[str, dict[int, float]] = {name: {} for name in ("full run of K steps", *NAMES.values())}
    exactly = list[list[object]]()
    tried: dict[str, dict[int, Policy]] = {name: {} for name in NAMES.values()}
    imitated = list[list[object]]()
    for steps in counts:
        full = Policy(mask=Mask.full(steps))
        policies = dict.fromkeys(NAMES, full)
        if steps > budget:
            few = {"budgets": [budget], "prompts": learned, "steps": steps, "name": "ours-k", "strategy": "paths"}
            policies["published"] = lab.published(budget, "r1-sa20", steps=steps).ladder[budget]
            policies["plain"] = lab.ours(fit=False, **few).ladder[budget]
            policies["ours"] = lab.ours(**few).ladder[budget]
        own = lab.judge(steps)
        curves["full run of K steps"][steps] = truth(full)["psnr"]
        for name, policy in policies.items():
            curves[NAMES[name]][steps] = truth(policy)["psnr"]
            tried[NAMES[name]][steps] = policy
        exactly.append([steps, *(with_error(truth.ratios(policy), 2) for policy in (full, *policies.values()))])
        imitated.append([steps, *(with_error(own.ratios(policy), 2) for policy in policies.values())])
    title = f"PSNR to a run of {exact} steps at {budget} calls; {STEPS_SOURCE} has its top at {STEPS_BEST} steps"
    tables = [
        Table(title, ["K", *curves], exactly),
        Table(
            f"PSNR to the full run of K steps at {budget} calls (100: the same pictures)",
            ["K", *NAMES.values()],
            imitated,
        ),
    ]
    claims = [peak(curves[name], name, truth, tried[name]) for name in NAMES.values()]

    def panel(axes: Any) -> None:
        plots.quality(axes, curves, ours="budcache", label=f"PSNR to a run of {exact} steps (dB)")
        axes.set_xlabel("steps K")

    figure = plots.save(lab.folder / "steps.png", panel)
    lab.report(tables, claims, figures=[figure], learned=len(learned), tuned=0)


def options(parser: argparse.ArgumentParser) -> None:
    counts = [14, 20, 28, 40, 50]
    parser.add_argument("--counts", type=lambda text: [int(part) for part in text.split(",")], default=counts)
    parser.add_argument("--exact", type=int, default=200, help="steps of the run that stands for the exact solution")
    parser.add_argument("--few", type=int, default=8, help="prompts that our search learns on, for each K")


def peak(curve: dict[int, float], name: str, judge: Judge, tried: dict[int, Policy]) -> Claim:
    """The curve is said to be an inverted U with its top at 30 steps; a top that may be chance is undecided."""
    counts, top = list(curve), max(curve, key=lambda steps: curve[steps])
    near = min(counts, key=lambda steps: abs(steps - STEPS_BEST))

    def above(others: list[int]) -> bool | None:
        leads = [judge.lead(tried[top], tried[steps]).ahead for steps in others if steps != top]
        return True if all(leads) else None

    ends = [counts[0], counts[-1]]
    cases: dict[str, bool | None] = {"its top is inside the range": top not in ends and above(ends)}
    missed = judge.lead(tried[top], tried[near]).ahead is True  # the nearest is behind by more than chance
    at = f"it is at {near}, the nearest to {STEPS_BEST}"
    cases[at] = above(counts) if top == near else False if missed else None
    numbers = ", ".join(f"K = {steps}: {value:.2f} dB" for steps, value in curve.items())
    return Claim("Figure 7", f"Quality over K ({name}) is an inverted U with its top near {STEPS_BEST}", cases, numbers)


if __name__ == "__main__":
    main()
