"""What a job will cost, in sample-calls, before it starts."""

from __future__ import annotations

from collections.abc import Iterable

from budcache.events import Phase, Planned
from budcache.jobs.config import POLISH, ROUNDS, AlignConfig, FitConfig, SearchConfig, known_options, one_or_several
from budcache.policy import Reuse
from budcache.samples.samples import split
from budcache.strategies import LadderSearch, Space, Strategy
from budcache.strategies import strategy as by_name
from budcache.strategies.anneal import usual_climb

__all__ = ["align_phases", "estimate", "fit_phases", "put_aside", "search_phases"]

FULL_RUNS, SEARCHING, FITTED, CHOOSING = "full runs", "searching", "searching, fitted", "choosing"
FITTING, ALIGNING = "fitting", "aligning"
FINALISTS = 3  # per budget and kind of reuse, judged on the selection samples
SHARED = 2.5  # states shared by masks that agree so far save so much of a search that is not a ladder (measured: F4)
SELECTION = 8  # samples at most that an alignment keeps the best by, if not told otherwise


@known_options
def estimate(
    *,
    steps: int,
    budgets: int | Iterable[int],
    prompts: int,
    strategy: str | Strategy = "ladder",
    reuse: Reuse = "output",
    fit: bool | None = None,
    polish: int = POLISH,
    rounds: int | None = ROUNDS,
    teacher_steps: int | None = None,
    selection: int | None = None,
) -> Planned:
    """What `budcache.search` with these options will cost, without searching.

    Args:
        steps: K of the full run.
        budgets: model calls per sample to search for.
        prompts: how many there are.
        strategy: as for `search`, as are the others.

    Returns:
        The phases and their sample-calls; `sample_calls` is the sum. A sample-call is one model call for one sample, so
        the time is this many times the seconds of a step of your pipeline.
    """
    config = SearchConfig(
        steps,
        one_or_several(budgets),
        strategy=by_name(strategy) if isinstance(strategy, str) else strategy,
        reuse=reuse,
        fit=fit,
        polish=polish,
        rounds=rounds,
        teacher_steps=teacher_steps,
        selection=selection,
    )
    return Planned("search", search_phases(config, prompts))


def search_phases(config: SearchConfig, samples: int) -> tuple[Phase, ...]:
    """The phases of a search on so many samples."""
    searched_on = split(range(samples), config.selection)
    kept_out = samples - searched_on
    mean_budget = sum(config.budgets) / len(config.budgets)
    ladder = isinstance(config.strategy, LadderSearch)
    per_mask = 1.0 if ladder else max(1.0, mean_budget / SHARED)  # a ladder computes each mask's last step only
    masks = config.strategy.expected(config.steps, config.budgets) or 0
    climb = _climb(config) * max(1.0, mean_budget / SHARED)
    phases = [
        Phase(FULL_RUNS, samples * (config.teacher_steps or config.steps)),
        Phase(SEARCHING, round(searched_on * (masks * per_mask + (0 if config.fitted else climb)))),
    ]
    if config.fitted:
        again = masks * per_mask if ladder else 0
        starts = sum(config.budgets) / 2
        phases.append(Phase(FITTED, round(searched_on * (again + starts + climb))))
    if kept_out:
        # Plain and fitted finalists, and the uniform mask, on the samples put aside; and for the best three other fits.
        judged = (2 * (FINALISTS + 2) + 3) if config.fitted else FINALISTS + 1
        fits = (FINALISTS + 4) if config.fitted else 0
        runs = 0.6 * judged * kept_out + 0.5 * fits * searched_on
        phases.append(Phase(CHOOSING, round(sum(config.budgets) * runs)))
    return tuple(phases)


def _climb(config: SearchConfig) -> float:
    """About how many masks the climbs score."""
    if not config.polish:
        return 0.0
    spaces = [Space(config.steps, budget) for budget in config.budgets]
    share = 1.0 if config.rounds is None else min(1.0, config.rounds / 4)
    return share * sum(usual_climb(space, config.polish) for space in spaces)


def fit_phases(config: FitConfig, samples: int) -> tuple[Phase, ...]:
    """The phases of a fit on so many samples: every rung with every setting, on all samples."""
    settings = len(config.outputs) * len(config.ridges)
    calls = sum(config.ladder.budgets) * samples * (settings + 1)
    return Phase(FULL_RUNS, samples * (config.teacher_steps or config.ladder.steps)), Phase(FITTING, calls)


def align_phases(config: AlignConfig, samples: int) -> tuple[Phase, ...]:
    """The phases of an alignment: per update the student there and back, with looks at the samples put aside."""
    kept_out = put_aside(samples, config.selection)
    updates = config.epochs * (samples - kept_out)
    looks = 1 + updates // config.every + (updates % config.every > 0)
    teacher = config.teacher_steps or config.ladder.steps
    calls = sum(budget * (2 * updates + looks * kept_out) for budget in config.ladder.budgets)
    full = teacher * updates + len(config.ladder) * teacher * kept_out
    return Phase(FULL_RUNS, kept_out * teacher), Phase(ALIGNING, calls + full - kept_out * teacher)


def put_aside(samples: int, selection: int | None) -> int:
    """How many of the samples an alignment keeps the best by."""
    return min(SELECTION, max(samples // 4, 1)) if selection is None else selection
