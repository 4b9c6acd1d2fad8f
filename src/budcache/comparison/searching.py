"""The searches of a comparison: the only place in it that calls `search`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from budcache.comparison.methods import AUTHORS
from budcache.jobs.meter import Meter
from budcache.jobs.search import search_in_full
from budcache.policy import Ladder

__all__ = ["AUTHORS_SAMPLES", "expected_calls", "searched"]

AUTHORS_SAMPLES = 2
CHOOSING_CALLS = 30  # per sample and budget, to fit and judge the finalists


def searched(
    method: str,
    pipe: Any,
    *,
    steps: int,
    budgets: Sequence[int],
    samples: Sequence[Mapping[str, Any]],
    ledger: Path,
    seed: int,
    batch: int,
    meter: Meter,
) -> Ladder:
    """The ladder of one of our methods, or of the published search, with its scores kept in a ledger.

    Ours with and without a fit score the same masks with plain reuse first, so they may share a ledger. The published
    search is the authors': their annealing, residual reuse, two prompts; for Wan their code moves in another way and
    looks at decoded frames.
    """
    options: dict[str, Any] = {"fit": method == "budcache"}
    if method in AUTHORS:
        wan = method == "authors" and type(pipe).__name__.startswith("Wan")
        samples = samples[:AUTHORS_SAMPLES]
        options = {"reuse": "residual", "selection": 0, "objective": "pixel" if wan else "latent"}
        options["strategy"] = "authors-wan" if wan else AUTHORS[method]
    found = search_in_full(
        pipe,
        steps=steps,
        budgets=budgets,
        samples=samples,
        seed=seed,
        batch=min(batch, len(samples)),
        ledger=ledger,
        watch=lambda step: meter.show(note=f"{step.calls} sample-calls of the search"),
        **options,
    )
    meter.add(found.calls - found.earlier)
    return found.ladder


def expected_calls(method: str, steps: int, budgets: Sequence[int], samples: int) -> int:
    """About how many sample-calls such a search takes, for the time that is left."""
    if method in AUTHORS:
        return min(samples, AUTHORS_SAMPLES) * 4000 * len(budgets)
    climb = sum(steps - calls for calls in range(max(budgets)))
    climbs = 2 if method == "budcache" else 1
    return samples * (steps + climbs * climb + CHOOSING_CALLS * len(budgets))
