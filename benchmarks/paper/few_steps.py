"""Caching on top of a run that is short already: 8 steps, of which 4 or 5 are computed.

The paper takes Hyper-SD, a model distilled to 8 steps. The embedded model is not distilled; its 8-step run is imitated
here as if it were. On a distilled model give it with `--model`. So few masks there are that all of them can be tried.
"""

from __future__ import annotations

from collections.abc import Sequence

from common import Lab
from published import FEW_STEPS, FEW_STEPS_SOURCE
from telling import WHO, beats, left_out, side_by_side

from budcache import Ladder

EVERY = "policy:the best of all masks"


def main(argv: Sequence[str] | None = None) -> None:
    lab = Lab("few_steps", __doc__ or "", argv, steps=(8, 6), budgets=((4, 5), (3,)))
    every = {"strategy": "exhaustive", "selection": 0, "refine": "none"}
    policies = {
        "authors": Ladder.of([lab.published(budget).ladder[budget] for budget in lab.budgets]),
        "budcache-plain": lab.ours(fit=False, budgets=lab.budgets).ladder,
        "budcache": lab.ours(budgets=lab.budgets).ladder,
        EVERY: lab.search("exhaustive", lab.calibration, lab.budgets, **every).ladder,
    }
    found = lab.compare("few steps", lab.budgets, ["fewer-steps", "uniform", "teacache"], policies)
    cases = {f"{budget} of {lab.steps} steps": (found, budget) for budget in lab.budgets}
    claims = [
        beats(cases, who, ["teacache"], "Table 6", f"On a run of few steps {name} is better than TeaCache")
        for who, name in WHO.items()
    ]
    text = "Fitted reuse is better than the best of all masks on the calibration prompts with plain reuse"
    claims.append(beats(cases, "budcache", [EVERY], "ours", text))
    printed = dict.fromkeys(cases, FEW_STEPS)
    title = f"A run of {lab.steps} steps, searched anew; beside it {FEW_STEPS_SOURCE}"
    lab.report([side_by_side(title, cases, printed, head="budget")], claims, left_out([found]))


if __name__ == "__main__":
    main()
