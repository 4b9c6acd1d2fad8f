"""Masks tried with the reuse that will be served: the shortest paths through the full runs (F10), or every one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from budcache.aggregate import TINY, cared_for
from budcache.jobs import estimate as phases
from budcache.jobs.config import SearchConfig
from budcache.mask import Mask
from budcache.policy import Policy
from budcache.records import LIKELIEST
from budcache.rows import MAX_BLEND
from budcache.strategies import Exhaustive, Found, Paths, Polished

if TYPE_CHECKING:
    from budcache.calibration.asking import Asked
    from budcache.calibration.score import Score
    from budcache.calibration.scoring import Scorer
    from budcache.jobs.hunting import Hunt
    from budcache.records.paths import ShortestPaths

__all__ = ["from_runs", "tried_as_served", "unlikely"]

TRUST = 3  # in what the full runs say of a mask, against its errors: measured at 8 steps (docs/few-steps.md)


def tried_as_served(
    config: SearchConfig, hunt: Hunt, known: Asked, find: ShortestPaths, weigh: Callable[[Mask], float] | None
) -> tuple[Found, Scorer, Mapping[Mask, Score]]:
    """The masks that were tried, who scored them, and the scores of those to choose from, with pictures.

    Args:
        find: the shortest paths.
        weigh: what counts against a mask beside its errors, where every one is tried (`unlikely`).
    """
    from budcache.calibration.pictures import Pictures
    from budcache.calibration.scoring import PlainScorer
    from budcache.refine.fit import FittedScorer, Form

    strategy = config.strategy
    scorer: Scorer = PlainScorer(known, memory=config.state_memory)
    if config.fitted:
        # Rows over all that is at hand: they gain most and, with a ridge, do not overfit even four samples (F13).
        form = Form(outputs=MAX_BLEND, noise=True)
        scorer = FittedScorer(known, form, memory=config.state_memory, arrivals=False)
    if isinstance(strategy, Paths):
        scorer.pictures = Pictures
        strategy = Polished(strategy.on(find), (), config.polish, config.rounds)
    elif isinstance(strategy, Exhaustive) and known.switch is not None:
        strategy = replace(strategy, forced=(*strategy.forced, known.switch))  # nothing is reused across it
    found = hunt.run(strategy, scorer, phases.SEARCHING)
    if not isinstance(strategy, Exhaustive):
        return found, scorer, found.scores
    # Decoding takes time, too: of all masks, only as many as paths would propose.
    scorer.pictures, shortlist = Pictures, _shortlist(config, found, weigh)
    return found, scorer, dict(zip(shortlist, scorer.score_many(shortlist), strict=True))


def _shortlist(config: SearchConfig, found: Found, weigh: Callable[[Mask], float] | None) -> list[Mask]:
    """The best masks of every budget by their losses and by what else counts against them."""
    masks: list[Mask] = []
    for budget in config.budgets:
        tried = [mask for mask in found.scores if mask.budget == budget]
        against = {mask: 1.0 if weigh is None else weigh(mask) for mask in tried}
        tried.sort(key=lambda mask: cared_for(found.scores[mask].losses, config.care) * against[mask])
        masks += tried[: phases.JUDGED]
    return masks


def unlikely(find: ShortestPaths, mask: Mask) -> float:
    """What counts against a mask beside its errors, where every one is tried.

    The best of hundreds on a few samples is partly luck. What their full runs say of a mask is less exact, but has not
    been chosen by that luck; so both count.
    """
    return max(find.cost(mask, LIKELIEST), TINY) ** TRUST


def from_runs(find: ShortestPaths, budget: int, fitted: bool) -> Policy:
    """Where a limit left no calls to try a budget's candidates: the likeliest, its rows from the full runs alone."""
    (mask,) = find([budget], LIKELIEST)[budget]
    if not fitted:
        return Policy(mask=mask)
    return Policy(mask=mask, weights=find.stretches.blends(mask), refined=(find.refined,))
