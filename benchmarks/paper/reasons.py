"""Why a claim is not so here, or not always: what was found out, by the claim's first words.

Verdicts are counted from the numbers of a table; why they are so is looked up here, and `collect.py` prints it behind
them. A test holds that no verdict but "holds" goes without one.
"""

from __future__ import annotations

__all__ = ["UNTESTED", "why"]

MASKS = "[one change at a time](#from-the-published-search-to-ours-one-change-at-a-time)"
TAILS = "[the bad tail](#the-bad-tail-with-more-seeds)"
LUCK = "[what two prompts decide](#what-two-prompts-decide)"
SEARCHED = (
    "it chooses by two prompts; with eight it is 0.1 to 0.8 dB better in this table. Other pairs scatter by 0.3 to 1 "
    f"dB (standard deviation), and the best of five is 0.4 to 0.5 dB above this one ({LUCK}), so the pair alone does "
    "not explain it. What its forced first steps, moves and short climb cost is undecided at 8 and 10 calls, and "
    f"nothing at 6 ({MASKS}). And every other method has its settings chosen here, where the paper takes each as "
    "published"
)
WAN = (
    "on images, choosing by two prompts costs the published search 0.1 to 0.8 dB, and other pairs scatter by 0.3 to 1 "
    f"dB ({LUCK}); on videos that was not taken apart. TeaCache has its threshold, first steps and signal chosen here"
)
EXTRAPOLATED = (
    "TaylorSeer and DiCache extrapolate, and tiny-flux's outputs change so smoothly that TaylorSeer at all budgets, "
    "and DiCache from 6 calls on, beats every way to repeat them, our own plain reuse too; the paper has each at one "
    "setting, here all are chosen; and DiCache's probe makes its calls dearer than others'"
)
LEVELS = (
    "a mask with repeated outputs is a choice of B of the 28 noise levels (F1), and on tiny-flux the B levels that the "
    "scheduler spreads are a good choice already. Residuals lose 1.5 to 1.9 dB against outputs, and two prompts, "
    f"with the algorithms as printed, up to 1 dB against eight ({MASKS})"
)
NEAR_ONE = "SSIM is nearly 1 on most prompts, and its mean and error are made by the few that turn out differently"
WORST = "the worst frame of a clip varies more from prompt to prompt than the mean of all frames"
WEAK = "the LoRA learned from too few runs: on those it gains twice as much as on others (its card)"

EARLY = (
    "by default a search chooses by typical errors, and at 5, 6 and 8 calls such masks compute few of the first steps, "
    "where the worst samples turn into other pictures"
)

REASONS = {
    "main_table": {
        "At equal calls budcache is nearer to the full run than every": NEAR_ONE,
        "At equal calls budcache with care for the worst is nearer": (
            "at 5 calls it costs 1.3 dB of the mean, and what is left of the lead over L2P is a little less than two "
            f"of its standard errors; with three seeds of each prompt it is a little more than two ({TAILS})"
        ),
        "At equal calls budcache, fitted and not aligned, is nearer": NEAR_ONE,
        "The same for the 5th percentile": (
            "the 5th percentile of 64 prompts is made by the four or five worst of them, so its standard error is 1 to "
            f"2.4 dB; and {EARLY}. With three seeds a prompt DiCache, which takes 9 call-equivalents there, is ahead "
            "of it at 5 calls. Searched with care for the worst, budcache is above those who come nearest, chosen with "
            f"that care or without, at all budgets, at 9 calls by a little less than two errors ({TAILS})"
        ),
        "The same for its 5th percentile": (
            "64 prompts are too few to tell at 5, 6 and 9 calls; with three seeds of each it is decided at all but 9, "
            f"also against others that are chosen with that care ({TAILS})"
        ),
        "At equal calls the published search is nearer to the full run than every": EXTRAPOLATED,
        "At equal calls the published search is above TeaCache and LeMiCa": SEARCHED,
        "At equal calls the published search, 20 rounds": (
            "at 5, 6 and 8 calls two rounds of climbing end at the same mask, at 9 and 10 more rounds gain 0.2 and "
            f"0.4 dB; what it lacks is more prompts and outputs instead of residuals ({MASKS})"
        ),
        "At equal calls the published search on": (
            "at 8 to 10 calls LeMiCa's graph finds masks whose loss is lower even on the prompts that the search chose "
            "by, so with eight prompts it is the search that falls short"
        ),
        "With 8 calls the published search is better": SEARCHED,
        "The speed-up of": (
            "residuals are added inside the network, so every step runs the layers around its blocks and the Python "
            "that does so, which counts on a network as small as tiny-flux"
        ),
    },
    "tails": {
        "The 5th percentile of budcache is": (
            f"{EARLY}; at 5 and 6 calls DiCache comes nearest, whose probes make 9 and 14 call-equivalents of these, "
            "at 8 calls iPNDM(2M); at 9 and 10 calls the lead over DiCache is a little less than two standard errors"
        ),
        "The 5th percentile of budcache with care": (
            "at 9 calls the lead is a little less than two standard errors, and both searches choose the same mask"
        ),
        "Care for the worst raises the 5th percentile of budcache": (
            "at 9 calls both searches choose the same mask, at 10 calls the lead is 1.7 of its standard errors"
        ),
        "Care for the worst raises the 5th percentile of iPNDM": (
            "at 9 and 10 calls it chooses the settings that are chosen anyway, at 6 and 8 calls others that are better "
            "or worse by less than chance"
        ),
        "Care for the worst raises the 5th percentile of DPM": "it chooses the settings that are chosen anyway",
        "Care for the worst raises the 5th percentile of UniPC": (
            "at 5 and 10 calls it chooses the settings that are chosen anyway, elsewhere such as differ little"
        ),
        "Care for the worst raises the 5th percentile of DiCache": (
            "at 5, 6 and 9 calls it chooses the settings that are chosen anyway, at 8 and 10 calls others that are no "
            "better on other prompts"
        ),
        "Care for the worst raises the 5th percentile of TaylorSeer": "it chooses other settings at 8 calls only",
        "Care for the worst raises the 5th percentile of L2P": (
            "at 10 calls it chooses other first steps, elsewhere the same settings or such as differ little"
        ),
    },
    "published_masks": {
        "The algorithms as printed": "what both choose by, two prompts, matters more than how they search",
        "Shortest paths": "at 8 calls annealing finds a mask that is as good",
        "More prompts give paths": "with plain reuse eight prompts give the same mask or one that is as good",
    },
    "video_table": {
        "At equal calls the published search is nearer": WAN,
        "Alignment gains on videos": WORST,
    },
    "transfer": {
        "Carried over, the published search is better than TeaCache": (
            "it is behind TeaCache where it was searched already (Table 1), so this is not about carrying over"
        ),
    },
    "low_budget": {
        "Caching by the published search": LEVELS,
        "Aligning a short schedule alone brings less than the published search": LEVELS,
        "The best of all is the published search": LEVELS,
        "The best of all is budcache": (
            "its search has aligned it already; an alignment is kept only where it is better on the prompts put "
            "aside, and at some budgets it was not"
        ),
        "At 10 calls aligning the published search": (
            "new noise levels alone hardly gain on tiny-flux, and where they gained nothing on the prompts put aside "
            "the old ones were kept"
        ),
    },
    "prompt_set": {
        "On prompts unlike those that it was searched on, the published search": (
            "it is behind TeaCache where it was searched as well (Table 1), so this is not about other prompts"
        ),
    },
    "few_steps": {
        "On a run of few steps the published search": (
            "it chooses among few masks, 35 at most, by two prompts, and repeats residuals"
        ),
        "8 distilled steps are at least": WEAK,
        "5 calls of the distilled model are nearer": WEAK,
        "8 distilled steps are recognised": "one picture of 64 more or less is chance",
        "A policy that was searched on the other model": "a tenth of a decibel is less than 64 prompts can tell",
    },
    "model_size": {
        "The published search's mask of the small model": WAN,
        "budcache's mask of the small model": WORST,
        "Fitting again on 2 prompts": (
            "the two sizes change alike from step to step, so weights of eight prompts of the small one are "
            "worth more than those of two of the large one"
        ),
    },
    "video_settings": {
        "Carried over whole": f"12 prompts; and {NEAR_ONE}",
        "Fitted on a mix": f"12 prompts; and {NEAR_ONE}",
        "At other guidance scales": (
            "towards 3, where guidance counts less, the policy learned at 5 loses nothing, and a mix has fewer "
            "prompts for each scale"
        ),
    },
    "intensity": {
        "R1 SA20 is as good": (
            "both search on two prompts: the intensive one fits these better, and whether others as well depends on "
            f"the pair ({LUCK}); these verdicts are of this one"
        ),
        "One search for all budgets": (
            "what costs are the prompts: 32 of them, fitted and aligned; on two, as many as the published search has, "
            "it takes a sixteenth"
        ),
    },
    "steps": {
        "Quality over K (published": (
            f"another pair of prompts may change a search by nearly as much as K does ({LUCK})"
        ),
        "Quality over K (budcache, plain": "the values differ by less than their standard errors",
        "Quality over K (budcache)": (
            "fitted weights reach over long stretches, so more steps only mean more levels to choose from and a "
            "better full run to come near to"
        ),
    },
}


def _untested(source: str, text: str, reason: str) -> dict[str, str]:
    return {"source": source, "text": text, "verdict": "could not be tested", "found": reason}


WEIGHTS = "the weights of this metric are not here"
JUDGES = "the weights of these metrics are not here, and of emoji they would say little"

# What the paper says and nothing here can tell.
UNTESTED = {
    "main_table": [
        _untested("Table 1", "The published search has the lowest LPIPS at equal latency", WEIGHTS),
        _untested("Table 1", "The published search has the best ImageReward, CLIP and HPSv2.1 with 10 calls", JUDGES),
        _untested("Section 4.2", "Letters, clock faces and statues keep their details", "emoji have none"),
    ],
    "video_table": [
        _untested("Table 2", "The published search has the lowest LPIPS", WEIGHTS),
        _untested("Table 2", "The published search has the lowest latency", "videos were not timed"),
    ],
    "low_budget": [
        _untested("Section 4.3", "At 5 calls the published search raises ImageReward by 0.19", JUDGES),
        _untested("Section 4.3", "Aligning 7 calls takes 6 minutes on 4 GPUs", "there is no GPU here"),
    ],
    "few_steps": [_untested("Table 6", "LPIPS, HPSv2.1, ImageReward and CLIP are better than TeaCache's", JUDGES)],
    "model_size": [_untested("Table 7", "The published search is faster than TeaCache", "videos were not timed")],
}


def why(experiment: str, text: str) -> str:
    """The reason behind a claim's verdict; empty if there is none yet."""
    known = REASONS.get(experiment, {})
    begins = max((start for start in known if text.startswith(start)), key=len, default=None)
    return "" if begins is None else known[begins]
