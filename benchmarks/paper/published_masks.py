"""Why the published search finds no better masks here: one change at a time, from its code to ours, nothing fitted.

The authors' code always computes the first B // 4 steps, starts and moves in ways of its own and climbs for two rounds;
the paper's Algorithms 1 and 2 do not. Then come more prompts, outputs instead of residuals, and shortest paths.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from common import Kept, Lab
from judging import OTHER_SEEDS, Judge
from telling import Claim, Table, of_all, told, with_error

from budcache import Policy

FIRST = "the published code: residuals, 2 prompts"
CHANGES = {  # every row, and what it changes in the one before it, as a claim
    "Algorithms 1 and 2 as printed: residuals, 2 prompts": "The algorithms as printed find a better mask than the code",
    "the same: residuals, 8 prompts": "Eight prompts give a better mask than two",
    "the same: outputs, 8 prompts": "Searched and served with outputs repeated, it is better than with residuals",
    "paths: outputs, 8 prompts": "Shortest paths give a better mask than annealing",
    "paths: outputs, all prompts, a quarter to choose by": "More prompts give paths a better mask",
}


def main(argv: Sequence[str] | None = None) -> None:
    lab = Lab("published_masks", __doc__ or "", argv, budgets=((6, 8, 10), (3,)), evaluation=64)
    judge, plain = lab.judge(), lab.ours(fit=False).ladder
    paths = lab.search("paths-on-8", lab.calibration[:8], lab.budgets, strategy="paths", refine="none", selection=0)
    rows, leads = list[list[object]](), {step: dict[str, bool | None]() for step in CHANGES}
    numbers = {step: list[str]() for step in CHANGES}
    for budget in lab.budgets:
        found = [
            served(lab.published(budget), budget, "residual"),
            served(printed(lab, budget, 2, "residual"), budget, "residual"),
            served(printed(lab, budget, 8, "residual"), budget, "residual"),
            served(printed(lab, budget, 8, "output"), budget, "output"),
            served(paths, budget, "output"),
            Policy(mask=plain[budget].mask),
        ]
        for before, policy, step in zip(found, found[1:], CHANGES, strict=False):
            apart = judge.lead(policy, before)
            leads[step][f"{budget} calls"] = of_all([apart])
            numbers[step].append(f"{budget} calls: {told(apart)} dB")
        for name, policy in zip((FIRST, *CHANGES), found, strict=True):
            rows.append([f"{budget} calls", name, str(policy.mask), *quality(judge, policy)])
    columns = ["budget", "mask", "computed steps", "PSNR ± error", "p5"]
    table = Table("Masks as they are, one change after the other", columns, rows)
    claims = [Claim("ours", text, leads[step], ", ".join(numbers[step])) for step, text in CHANGES.items()]
    lab.report([table], claims, [OTHER_SEEDS], learned=0, tuned=0)


def printed(lab: Lab, budget: int, prompts: int, reuse: Literal["output", "residual"]) -> Kept:
    """Algorithms 1 and 2, with as many restarts and annealing steps as the published search."""
    name = f"printed-on-{prompts}-{reuse}"
    return lab.annealed("anneal-r2-sa100", budget, lab.calibration[:prompts], reuse=reuse, name=name)


def served(kept: Kept, budget: int, reuse: Literal["output", "residual"]) -> Policy:
    return Policy(mask=kept.ladder[budget].mask, reuse=reuse)


def quality(judge: Judge, policy: Policy) -> list[str | None]:
    """PSNR with its standard error, and the 5th percentile."""
    values = judge.ratios(policy)
    return [with_error(values, 2), f"{np.percentile(values, 5):.2f}"]


if __name__ == "__main__":
    main()
