"""Videos: every method at the same numbers of model calls, and what each part of ours brings.

The paper's table of Wan2.1-T2V-1.3B (50 steps, UniPC, guidance by two branches): at its speed, which is about 20 of 50
calls, and at 10, which its figures show. The published search is its variant for Wan, on decoded frames. Ours is shown
whole and in parts, since the authors saw no gain from alignment on videos: masks alone, fitted, fitted with guidance
apart, and that aligned without gradients.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from common import VIDEO_RUNGS, Kept, Lab
from published import WAN_SOURCE, wan
from telling import Claim, ahead_by, beats, left_out, side_by_side, tails

from budcache import Ladder

OTHERS = ("fewer-steps", "uniform", "teacache", "magcache")
FITTED, ONE = "policy:budcache, fitted", "policy:budcache, fitted, guidance as one"
GOAL = 4.0  # dB over TeaCache and over the published search
SPARE, FEW = (8, 10, 15, 20), 4  # budgets and prompts of the search whose cost has a goal
SPARE_GOAL = 1000  # sample-calls


def main(argv: Sequence[str] | None = None) -> None:
    lab = Lab(
        "video_table",
        __doc__ or "",
        argv,
        steps=(50, 6),
        budgets=((10, 15, 20), (3,)),
        evaluation=32,
        model="tiny-wan",
        rungs=VIDEO_RUNGS,
        learn=16,
        more=options,
    )
    fitted = lab.search("ours-fit", lab.calibration, lab.budgets, refine="fit").ladder
    policies = {
        "authors": Ladder.of([lab.published(budget).ladder[budget] for budget in lab.budgets]),
        "budcache-plain": lab.ours(fit=False).ladder,
        ONE: Ladder.of([rung.model_copy(update={"guided": None}) for rung in fitted]),
        FITTED: fitted,
        "budcache": lab.ours().ladder if lab.args.align else fitted,
    }
    if not lab.args.align:
        del policies[FITTED]  # it is budcache itself
    budgets = [budget for budget in SPARE if budget < lab.steps]
    few = lab.search("ours-few", lab.calibration[:FEW], budgets, refine="fit") if budgets else None
    if few and (shared := [rung for rung in few.ladder if rung.budget in lab.budgets]):
        policies[f"policy:budcache, fitted on {FEW} prompts"] = Ladder.of(shared)
    found = lab.compare("videos", lab.budgets, OTHERS, policies)
    cases = {f"{budget} calls": (found, budget) for budget in lab.budgets}
    beside, elsewhere = wan(lab.budgets)
    title = f"Videos at equal calls; beside it {WAN_SOURCE}"
    table = side_by_side(title, cases, beside, head="budget", elsewhere=elsewhere)
    source, rivals = WAN_SOURCE.split(":")[0], [*OTHERS, "authors"]
    text = "At equal calls {} is nearer to the full run than TeaCache"
    claims = [
        beats(cases, "authors", ["teacache"], source, text.format("the published search")),
        beats(cases, "budcache", ["teacache"], source, text.format("budcache")),
        beats(cases, "budcache", rivals, "ours", "At equal calls budcache is nearer than every other method shown"),
        tails(cases, "budcache", rivals, "ours", "The same for the 5th percentile"),
        ahead_by(
            cases,
            ["teacache", "authors"],
            GOAL,
            f"budcache is at least {GOAL:g} dB above TeaCache and the published search",
        ),
        beats(cases, "budcache", [FITTED], "Appendix", "Alignment gains on videos"),
        beats(
            cases,
            FITTED if lab.args.align else "budcache",
            [ONE],
            "ours",
            "Guidance apart gains over rows for the combined output",
        ),
    ]
    if few:
        claims.append(spare(few))
    lab.report([table], claims, left_out([found]))


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-align", dest="align", action="store_false", help="ours is fitted, not aligned: quicker")


def spare(few: Kept) -> Claim:
    """What a search on few prompts costs."""
    budgets = ", ".join(str(rung.budget) for rung in few.ladder)
    text = f"A search on {FEW} prompts for {budgets} calls takes at most {SPARE_GOAL:,} sample-calls"
    return Claim("ours", text, {"sample-calls": few.calls <= SPARE_GOAL}, f"{few.calls:,} in {few.seconds:.0f} s")


if __name__ == "__main__":
    main()
