"""A policy searched on a small model and used on a larger one of its family.

The paper searches a mask on Wan2.1-T2V-1.3B and serves Wan2.1-T2V-14B with it: `--model` is the small one, `--target`
the large one. Masks are carried over, with and without the coefficients that were fitted on the small model; the mask
is also fitted again on two prompts of the large one, and where that is cheap the large one is searched on itself.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from common import VIDEO_RUNGS, Kept, Lab
from published import MODEL_SIZE, MODEL_SIZE_SOURCE
from telling import Case, beats, left_out, side_by_side

import budcache
from budcache import Ladder, Policy, models

FITTED, MASK = "policy:budcache, fitted", "policy:budcache's mask, plain"
REFITTED, THERE = "policy:budcache, refitted", "policy:budcache, searched there"
FEW = 2  # prompts that the large model has to run in full for a refit
CARRIED = "carried over"
MADE = {
    "uniform": "nothing to make",
    "teacache": "tuned on the large model",
    "authors": CARRIED,
    MASK: CARRIED,
    FITTED: f"{CARRIED}, coefficients too",
    REFITTED: f"mask {CARRIED}, fitted on {FEW} prompts there",
    THERE: "made on the large model",
}
WHAT = {
    "authors": "The published search's mask",
    MASK: "budcache's mask",
    FITTED: "budcache's mask with its coefficients",
    REFITTED: f"budcache's mask, fitted again on {FEW} prompts,",
}


def main(argv: Sequence[str] | None = None) -> None:
    lab = Lab(
        "model_size",
        __doc__ or "",
        argv,
        steps=(50, 6),
        budgets=((10, 20), (3,)),
        evaluation=32,
        model="tiny-wan",
        rungs=VIDEO_RUNGS,
        learn=16,
        more=options,
    )
    large = lab.load(lab.args.target)
    ours = Ladder.of([fitted(lab).ladder[budget] for budget in lab.budgets])
    policies = {
        "authors": Ladder.of([lab.published(budget).ladder[budget] for budget in lab.budgets]),
        MASK: Ladder.of([Policy(mask=rung.mask) for rung in ours]),
        FITTED: ours,
        REFITTED: Ladder.of([refitted(lab, large, rung) for rung in ours]),
    }
    if lab.args.target in models.EMBEDDED:  # small enough to be searched on as well
        policies[THERE] = fitted(lab, pipe=large, name="ours-large-fit").ladder
    found = lab.compare("on the large model", lab.budgets, ["uniform", "teacache"], policies, pipe=large)
    cases: dict[str, Case] = {f"{budget} calls": (found, budget) for budget in lab.budgets}
    claims = [
        beats(
            cases, who, ["teacache"], "Table 7", f"{what} of the small model serves the large one better than TeaCache"
        )
        for who, what in WHAT.items()
    ]
    claims.append(beats(cases, REFITTED, [FITTED], "ours", f"Fitting again on {FEW} prompts of the large one gains"))
    title = f"Policies of a smaller model; beside it {MODEL_SIZE_SOURCE}"
    table = side_by_side(
        title,
        cases,
        {},
        head="budget",
        made=lambda _, method: MADE.get(method, ""),
        elsewhere={"not given": MODEL_SIZE},
    )
    lab.report([table], claims, left_out([found]))


def fitted(lab: Lab, name: str = "ours-fit", pipe: Any = None) -> Kept:
    """Our search with a fit, without alignment: that is what a user of a large model can afford there."""
    return lab.search(name, lab.calibration, lab.rungs, pipe=pipe, refine="fit")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", default="tiny-wan-large", help="the large model: embedded, a folder or a hub id")


def refitted(lab: Lab, large: Any, policy: Policy) -> Policy:
    """The same mask with coefficients fitted on one full run of the large model, their form chosen by another."""
    prompts = lab.calibration[:FEW]

    def refit(ladder: Ladder, _: Any) -> Ladder:
        return budcache.fit(large, ladder, prompts=prompts, selection=1, call=lab.call, progress=False)

    return lab.refined(f"fit on {lab.args.target} {policy.budget}", Policy(mask=policy.mask), refit)[0]


if __name__ == "__main__":
    main()
