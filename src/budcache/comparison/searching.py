"""The searches of a comparison: the only place in it that calls `search`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from budcache.aggregate import Care
from budcache.comparison.methods import AUTHORS
from budcache.events import Event, Progress, WorkerTold
from budcache.jobs.estimate import estimate
from budcache.jobs.meter import Meter
from budcache.jobs.search import search
from budcache.policy import Ladder

__all__ = ["expected_calls", "searched"]

AUTHORS_SAMPLES = 2
FAMILIES = {"Wan": "authors-wan", "ZImage": "authors-z-image"}  # their presets, by how a pipeline's class begins


def searched(
    method: str,
    pipe: Any,
    *,
    kind: str,
    steps: int,
    budgets: Sequence[int],
    samples: Sequence[Mapping[str, Any]],
    ledger: Path,
    seed: int,
    batch: int,
    meter: Meter,
    care: Care,
) -> Ladder:
    """The ladder of one of our methods, or of the published search, with its scores kept in a ledger of its own."""
    samples = samples[:AUTHORS_SAMPLES] if method in AUTHORS else samples
    seen: list[int] = []  # sample-calls, as the search tells them: those of interrupted runs come first

    def follow(event: Event) -> None:
        if isinstance(event, WorkerTold):
            meter.tell(replace(event, job="compare"))
        if isinstance(event, Progress):
            meter.add(event.sample_calls - seen[-1] if seen else 0, note=f"searching, {event.phase}")
            seen.append(event.sample_calls)

    expected = expected_calls(method, steps, budgets, len(samples), kind)
    own: dict[str, Any] = {} if method in AUTHORS else {"care": care}  # theirs knows none
    found = search(
        pipe,
        steps=steps,
        budgets=budgets,
        samples=samples,
        seed=seed,
        batch=min(batch, len(samples)),
        ledger=ledger,
        progress=False,
        watch=follow,
        objective="pixel" if method == "authors" and kind.startswith("Wan") else "latent",
        **_options(method, kind),
        **own,
    )
    meter.skipped(max(0, expected - (seen[-1] - seen[0])))
    return found


def expected_calls(method: str, steps: int, budgets: Sequence[int], samples: int, kind: str = "") -> int:
    """About how many sample-calls such a search takes, on a pipeline of that class."""
    samples = min(samples, AUTHORS_SAMPLES) if method in AUTHORS else samples
    return estimate(steps=steps, budgets=budgets, prompts=samples, **_options(method, kind)).sample_calls


def _options(method: str, kind: str) -> dict[str, Any]:
    """How a method searches. The published search is the authors': their annealing, residual reuse, two prompts.

    For Wan their code moves in another way and looks at decoded frames; for Z-Image it anneals longer.
    """
    if method not in AUTHORS:
        return {"refine": "full" if method == "budcache" else "none"}
    own = next((name for start, name in FAMILIES.items() if kind.startswith(start)), None)
    strategy = own if method == "authors" and own is not None else AUTHORS[method]
    return {"strategy": strategy, "reuse": "residual", "selection": 0}
