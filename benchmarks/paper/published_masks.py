"""Why the published search finds no better masks here: one change at a time, from its code to ours.

The authors' code computes the first B // 4 steps always and climbs for two rounds; the paper's Algorithms 1 and 2 do
neither. It searches on two prompts, and repeats residuals. Each row changes one of these, the reuse is plain in all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from common import Kept, Lab
from judging import Judge
from telling import Claim, Table, of_all, told, with_error

from budcache import Policy

CODE, PRINTED, MORE, PATHS, OUTPUTS = (
    "the published code, 2 prompts",
    "the paper's algorithms as printed, 2 prompts",
    "these on 8 prompts",
    "paths, residuals repeated",
    "paths, outputs repeated",
)
STEPS = {  # what each row changes in the one before it, as a claim
    PRINTED: "Without forced first steps and with a whole climb, the same two prompts give a better mask",
    MORE: "Eight prompts give a better mask than two",
    PATHS: "Shortest paths through full runs give a better mask than annealing",
    OUTPUTS: "Outputs repeated are better than residuals repeated, by the same mask",
}


def main(argv: Sequence[str] | None = None) -> None:
    lab = Lab("published_masks", __doc__ or "", argv, budgets=((6, 8, 10), (3,)), evaluation=64)
    judge, plain = lab.judge(), lab.ours(fit=False).ladder
    rows, leads = list[list[object]](), {step: dict[str, bool | None]() for step in STEPS}
    numbers = {step: list[str]() for step in STEPS}
    for budget in lab.budgets:
        policies = {
            CODE: served(lab.published(budget), budget),
            PRINTED: served(printed(lab, budget, 2), budget),
            MORE: served(printed(lab, budget, 8), budget),
            PATHS: Policy(mask=plain[budget].mask, reuse="residual"),
            OUTPUTS: Policy(mask=plain[budget].mask),
        }
        for before, (step, policy) in zip(policies.values(), list(policies.items())[1:], strict=False):
            apart = judge.lead(policy, before)
            leads[step][f"{budget} calls"] = of_all([apart])
            numbers[step].append(f"{budget} calls: {told(apart)} dB")
        for name, policy in policies.items():
            rows.append([f"{budget} calls", name, str(policy.mask), *quality(judge, policy)])
    columns = ["budget", "mask", "computed steps", "PSNR ± error", "p5"]
    table = Table("Masks with plain reuse, one change after the other", columns, rows)
    claims = [Claim("ours", text, leads[step], ", ".join(numbers[step])) for step, text in STEPS.items()]
    lab.report([table], claims)


def printed(lab: Lab, budget: int, prompts: int) -> Kept:
    """Algorithms 1 and 2, with as many restarts and annealing steps as the published search."""
    name = f"printed-on-{prompts}"
    return lab.annealed("anneal-r2-sa100", budget, lab.calibration[:prompts], reuse="residual", name=name)


def served(kept: Kept, budget: int) -> Policy:
    return Policy(mask=kept.ladder[budget].mask, reuse="residual")


def quality(judge: Judge, policy: Policy) -> list[str | None]:
    """PSNR with its standard error, and the 5th percentile."""
    values = judge.ratios(policy)
    return [with_error(values, 2), f"{np.percentile(values, 5):.2f}"]


if __name__ == "__main__":
    main()
