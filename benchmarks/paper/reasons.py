"""Why a claim is not so here, or not always: what was found out, by the claim's first words.

Verdicts are counted from the numbers of a table; why they are so is looked up here, and `collect.py` prints it behind
them. A test holds that no verdict but "holds" goes without one.
"""

from __future__ import annotations

__all__ = ["why"]

MASKS = "[one change at a time](#from-the-published-search-to-ours-one-change-at-a-time)"
SEARCHED = (
    f"the published code computes its first steps always, a quarter of the budget, climbs for two rounds and repeats "
    f"residuals, each of which loses here ({MASKS}); and the others have all their settings chosen on 32 prompts, where "
    "the paper takes each as published"
)
EXTRAPOLATED = (
    "TaylorSeer extrapolates, and tiny-flux's outputs change so smoothly that this beats every way to repeat them, our own "
    "plain reuse too; the paper has it at one setting, here its interval, first steps and order are chosen"
)
NEAR_ONE = "SSIM is nearly 1 on most prompts, and its mean and error are made by the few that turn out differently"
FEW = "few prompts: the standard error is as large as the lead"

REASONS = {
    "main_table": {
        "At equal calls budcache is nearer to the full run than every": NEAR_ONE,
        "The same of the 5th percentile": (
            "the 5th percentile of 64 prompts is made by three of them, which turn into another picture under every "
            "method, so its standard error is 1 to 2.4 dB"
        ),
        "At equal calls the published search is nearer to the full run than every": EXTRAPOLATED,
        "At equal calls the published search is above TeaCache and LeMiCa": SEARCHED,
        "At equal calls the published search on": SEARCHED,
        "With 8 calls the published search is better": SEARCHED,
        "The speed-up of": (
            "on a machine that does other work pairs of runs differ by more than 5 %; and a call of tiny-flux is so short "
            "that what a method does around it counts"
        ),
    },
}


def why(experiment: str, text: str) -> str:
    """The reason behind a claim's verdict; empty if there is none yet."""
    known = REASONS.get(experiment, {})
    begins = max((start for start in known if text.startswith(start)), key=len, default=None)
    return "" if begins is None else known[begins]
