"""What a job will cost, in sample-calls, before it starts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from budcache.events import Phase, Planned
from budcache.jobs.config import (
    POLISH,
    ROUNDS,
    AlignConfig,
    FitConfig,
    Refine,
    SearchConfig,
    known_options,
    taken_strategy,
)
from budcache.jobs.refining import LOOSER, SETTINGS
from budcache.options import one_or_several, whole
from budcache.policy import Policy, Reuse
from budcache.records import EVERY
from budcache.samples.samples import split
from budcache.strategies import Exhaustive, LadderSearch, Limits, Paths, Space, Strategy

__all__ = ["affordable", "align_phases", "all_masks", "estimate", "fit_phases", "put_aside", "search_phases"]

FULL_RUNS, SEARCHING, FITTED, CHOOSING = "full runs", "searching", "searching, fitted", "choosing"
FITTING, ALIGNING, REFINING = "fitting", "aligning", "refining"
JUDGED = 5  # of all masks of a budget, judged on the samples put aside: as many as paths have candidates
FINALISTS = 3  # per budget and kind of reuse, judged on the selection samples
# Measured, on tiny-flux and on small random models (tests/jobs/test_estimate.py holds them to it):
SHARED = 2.5  # a mask of a search that is not a ladder takes B / 2.5 calls: those that agree so far share states (F4)
SHARING = 0.65  # the same among the finalists of one budget
PATHS_SHARING = 0.85  # the same among the candidates of paths, whose rows are fitted
NEW_STARTS = 0.55  # of the best plain masks' calls, those that the fitted ladder has not made already
PLAIN_FINALISTS, FITTED_FINALISTS = 3.8, 4.4  # different ones, the uniform mask among them
LEAST = 2  # samples of a search: one says nothing of others
CLIMB = 2  # rounds of a climb from a mask that a search has found: the second often finds nothing better
TRIED = 2.4  # lengths of a Gauss-Newton step
SELECTION = 8  # samples at most that an alignment keeps the best by, if not told otherwise


@known_options
def estimate(
    *,
    steps: int,
    budgets: int | Iterable[int],
    prompts: int | Sequence[str],
    strategy: str | Strategy | None = None,
    reuse: Reuse = "output",
    refine: Refine | None = None,
    features: bool = False,
    guided: bool = False,
    polish: int = POLISH,
    rounds: int | None = ROUNDS,
    teacher_steps: int | None = None,
    selection: int | None = None,
) -> Planned:
    """What `budcache.search` with these options will cost, without searching.

    Args:
        steps: K of the full run.
        budgets: model calls per sample to search for.
        prompts: how many there are, or the prompts themselves.
        guided: whether the pipeline evaluates its network for two branches of guidance, as those of Wan, SD3 and SDXL
            do and FLUX does not: their rows are fitted, too.
        strategy: as for `search`, as are the others.

    Returns:
        The phases and their sample-calls; `sample_calls` is the sum. A sample-call is one model call for one sample, so
        the time is this many times the seconds of a step of your pipeline.
    """
    config = SearchConfig(
        steps,
        one_or_several(budgets),
        strategy=taken_strategy(strategy, reuse, steps, one_or_several(budgets)),
        reuse=reuse,
        refine=refine,
        features=features,
        guided=guided,
        polish=polish,
        rounds=rounds,
        teacher_steps=teacher_steps,
        selection=selection,
    )
    count = len(prompts) if isinstance(prompts, list | tuple) else whole("prompts", prompts)
    return Planned("search", search_phases(config, count), all_masks(config))


def search_phases(config: SearchConfig, samples: int) -> tuple[Phase, ...]:
    """The phases of a search on so many samples.

    A run's first step is computed when the pipeline is opened, as the first of the full run; so a mask of B computed
    steps takes B - 1 calls, and fewer where masks that agree so far share their states.
    """
    config, searched_on = config.suited(samples), config.searched_on(samples)
    kept_out, full = samples - searched_on, config.teacher_steps or config.steps
    if config.as_served:
        return _served_phases(config, searched_on, kept_out, full)
    ladder = isinstance(config.strategy, LadderSearch)
    per_mask = max(1.0, sum(config.budgets) / len(config.budgets) / SHARED)
    masks = config.strategy.expected(config.steps, config.budgets) or 0
    climb = 0.0 if isinstance(config.strategy, Exhaustive) else _climb(config) * per_mask  # there is nothing left
    # A ladder computes each mask's last step only, and nothing for the first mask.
    search = masks - 1 if ladder else masks * per_mask
    if isinstance(config.strategy, Exhaustive):
        search = config.strategy.calls(config.steps, config.budgets)
    phases = [
        Phase(FULL_RUNS, searched_on * full),
        Phase(SEARCHING, round(searched_on * (search + (0 if config.fitted else climb)))),
    ]
    behind_first = sum(budget - 1 for budget in config.budgets)
    if config.fitted:
        again = (search if ladder else 0) + NEW_STARTS * behind_first
        phases.append(Phase(FITTED, round(searched_on * (again + climb))))
    if kept_out:
        choice = behind_first * _choice(config, searched_on, kept_out)
        phases.append(Phase(CHOOSING, round(kept_out * full + choice)))
    return tuple(phases)


def all_masks(config: SearchConfig) -> str:
    """A clause that says so where every mask is tried, or weighed by what the full runs know of it (F10)."""
    count, budgets = sum(len(Space(config.steps, budget)) for budget in config.budgets), config.budgets
    tried = isinstance(config.strategy, Exhaustive)
    if not tried and not (isinstance(config.strategy, Paths) and count <= EVERY):
        return ""
    in_a_row = len(budgets) > 2 and budgets == tuple(range(budgets[0], budgets[-1] + 1))
    which = f"{budgets[0]} to {budgets[-1]}" if in_a_row else ", ".join(map(str, budgets))
    masks = f"all {count} masks" if count > 1 else "the only mask"
    how = "tried" if tried else "weighed by the full runs, and the likeliest are tried"
    return f"{masks} of {which} of {config.steps} calls {'are' if count > 1 else 'is'} {how}"


def _served_phases(config: SearchConfig, searched_on: int, kept_out: int, full: int) -> tuple[Phase, ...]:
    """Each candidate is run once by all samples; those that agree so far share their states."""
    masks = (config.strategy.expected(config.steps, config.budgets) or 0) / len(config.budgets)
    judged = tried = masks * PATHS_SHARING * sum(budget - 1 for budget in config.budgets)
    if isinstance(config.strategy, Exhaustive):
        tried = config.strategy.calls(config.steps, config.budgets)
        counts = {budget: min(JUDGED, len(Space(config.steps, budget))) for budget in config.budgets}
        judged = sum((budget - 1) * (1 + PATHS_SHARING * (count - 1)) for budget, count in counts.items())
    per_mask = max(1.0, sum(config.budgets) / len(config.budgets) / SHARED)
    climb = 0.0 if isinstance(config.strategy, Exhaustive) else _climb(config)
    searching = searched_on * (tried + climb * per_mask)
    if config.limits.calls is not None:
        left = max(0, config.limits.calls - searched_on * full)
        searching, judged = min(searching, left), min(judged, left / searched_on)
    phases = [Phase(FULL_RUNS, searched_on * full), Phase(SEARCHING, round(searching))]
    if kept_out:
        phases.append(Phase(CHOOSING, round(kept_out * (full + judged))))
    refining = sum(_refining(config, b, searched_on, kept_out) for b in config.budgets) if config.fitted else 0
    if config.limits.calls is not None:
        refining = min(refining, max(0, config.limits.calls - sum(phase.sample_calls for phase in phases)))
    return (*phases, Phase(REFINING, round(refining))) if refining else tuple(phases)


def _refining(config: SearchConfig, budget: int, searched_on: int, kept_out: int) -> float:
    """Sample-calls for better forms of one budget's rows, and for their alignment."""
    forms = bool(kept_out) + 2 * bool(config.features)
    if config.guided:  # its rows are fitted and judged as well, with two ridges if there is someone to choose
        forms += len(LOOSER) if kept_out else 1
    calls = (forms * (searched_on + kept_out) + kept_out) * (budget - 1)  # the last: what is left of it without rows
    if config.refine != "full":
        return calls
    equations = budget - 1 + sum((place + 2) * (budget - 1 - place) for place in range(budget))
    return calls + newton_calls(equations, budget, searched_on, kept_out)


def affordable(config: SearchConfig, samples: int) -> int:
    """How many of some samples the limit on calls pays for, all candidates tried on each; two at least.

    A few samples with every candidate are worth far more than many full runs with nothing left to try on them.
    """
    if config.limits.calls is None:
        return samples
    unlimited = replace(config, limits=Limits())
    for count in range(samples, LEAST, -1):
        if sum(phase.sample_calls for phase in search_phases(unlimited, count)) <= config.limits.calls:
            return count
    return min(samples, LEAST)


def _choice(config: SearchConfig, searched_on: int, kept_out: int) -> float:
    """About how many runs, of all samples together, the choice of one budget's policy takes."""
    if not config.fitted:
        return kept_out * SHARING * PLAIN_FINALISTS
    ladder, others = isinstance(config.strategy, LadderSearch), len(SETTINGS) - 1
    finalists, unknown = (FITTED_FINALISTS, 0.4) if ladder else (2.0, 0.7)  # of the uniform mask's fit
    # Each finalist plain and fitted, and the best one with the other settings, which are fitted for it alone.
    return kept_out * ((1 + SHARING) * finalists + others) + searched_on * (others + unknown)


def _climb(config: SearchConfig) -> float:
    """About how many masks the climbs score."""
    if not config.polish:
        return 0.0
    spaces = [Space(config.steps, budget) for budget in config.budgets]
    rounds = CLIMB if config.rounds is None else min(CLIMB, config.rounds)
    return float(rounds * sum(len(space.neighbours(space.uniform(), config.polish)) for space in spaces))


def fit_phases(config: FitConfig, samples: int) -> tuple[Phase, ...]:
    """The phases of a fit on so many samples: every rung with every setting, and without."""
    fitted_on = split(range(samples), config.selection)
    settings = 2 * len(config.outputs) + len(config.ridges) - 1 + 2 * bool(config.features)
    runs = settings * fitted_on + (settings + 1) * (samples - fitted_on)
    behind_first = sum(budget - 1 for budget in config.ladder.budgets)
    full = samples * (config.teacher_steps or config.ladder.steps)
    return Phase(FULL_RUNS, full), Phase(FITTING, behind_first * runs)


def align_phases(config: AlignConfig, samples: int) -> tuple[Phase, ...]:
    """The phases of an alignment.

    By gradients: per update the student there and back, with looks at the samples put aside. Without: the calls behind
    every weight, and the steps that are tried.
    """
    if config.way == "gauss-newton":
        return _newton_phases(config, samples)
    kept_out = put_aside(samples, config.selection)
    updates, full = config.epochs * (samples - kept_out), config.teacher_steps or config.ladder.steps
    # At the start, on the way and, to measure, thrice at the end.
    looks = 4 + updates // config.every + (updates % config.every > 0)
    rungs = sum(
        updates * (2 * budget + 1) + looks * kept_out * (budget - 1) + kept_out * full
        for budget in config.ladder.budgets
    )
    lessons = updates * (full - 1)  # their full runs are made once for all rungs
    return Phase(FULL_RUNS, kept_out * full), Phase(ALIGNING, rungs + lessons - kept_out * full)


def _newton_phases(config: AlignConfig, samples: int) -> tuple[Phase, ...]:
    """The phases of an alignment without gradients."""
    kept_out, full = put_aside(samples, config.selection), config.teacher_steps or config.ladder.steps
    steps = sum(newton_calls(equation_calls(rung), rung.budget, samples - kept_out, kept_out) for rung in config.ladder)
    plain = kept_out * sum(rung.budget - 1 for rung in config.ladder)  # what is left without their numbers
    return Phase(FULL_RUNS, samples * full), Phase(ALIGNING, round(steps) + plain)


def equation_calls(policy: Policy) -> int:
    """Model calls per sample for the equations of all weights of a policy: each is moved, what follows is run again."""
    rows = policy.guided or policy.rows
    sizes = [len(row.weights) for row in rows] if rows else [len(row) for row in policy.weights or ()]
    return policy.budget - 1 + sum(size * (policy.budget - 1 - place) for place, size in enumerate(sizes))


def newton_calls(equations: int, budget: int, learned_on: int, kept_out: int) -> float:
    """Sample-calls of one policy's alignment without gradients."""
    return learned_on * (equations + (1 + TRIED) * (budget - 1)) + 2 * kept_out * (budget - 1)


def put_aside(samples: int, selection: int | None) -> int:
    """How many of the samples an alignment keeps the best by."""
    return min(SELECTION, max(samples // 4, 1)) if selection is None else selection
