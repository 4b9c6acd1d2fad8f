"""What a comparison will cost, before it starts: drawing, choosing settings and timing, less what is there already."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

from budcache.aggregate import Care
from budcache.comparison.clocking import TIMING, wants_timing
from budcache.comparison.clocking import expected_calls as timing_calls
from budcache.comparison.entry import FULL, Entry
from budcache.comparison.kept import Key, drawn_in
from budcache.comparison.methods import title, usual
from budcache.comparison.preparing import Preparation
from budcache.comparison.settings import Settings
from budcache.events import Phase, Planned
from budcache.policy import Ladder
from budcache.wording import several

__all__ = ["EVALUATION_SEED", "MEASURING", "drawn_already", "expected", "expected_phases", "phase_name", "wanted_rows"]

EVALUATION_SEED = 10_000  # far from the seeds of the search, which count up from 0
MEASURING = "measuring"  # the phase that comes after drawing and timing; it makes no calls


def expected(
    *,
    steps: int,
    budgets: Sequence[int],
    prompts: Sequence[str],
    calibration: int,
    methods: Sequence[str] | None = None,
    policies: Mapping[str, Ladder] | None = None,
    timed: Sequence[str] | None = None,
    kind: str = "",
    seed: int = 0,
    folder: str | os.PathLike[str] | None = None,
    care: Care = "typical",
    settings: Settings | None = None,
    at: Mapping[str, Any] = MappingProxyType({}),
) -> Planned:
    """What a comparison will cost; no pipeline is needed to say it, but its class, if known.

    What a folder has drawn for the same steps, prompts, seed and care is not drawn again; nor, if they are given, `at`
    the same size and guidance.
    """
    given, nothing = dict(policies or {}), cast(Any, None)
    wanted = wanted_rows(steps, list(dict.fromkeys([*(usual() if methods is None else methods), *given])), budgets)
    preparation = Preparation(
        nothing, steps, budgets, [{}] * calibration, nothing, given, seed, 1, nothing, settings, kind=kind, care=care
    )
    there = {} if folder is None else drawn_in(folder, steps, prompts, seed + EVALUATION_SEED, calibration, care, at)
    known = {
        (method, budget): found.entry
        for method, those in wanted.items()
        for budget in those
        if (found := there.get((method, budget))) and found.made_of == preparation.made_of(method, budget)
    }
    phases = expected_phases(preparation, len(prompts), wanted, known, timed)
    phases = [phase for phase in phases if phase.sample_calls or phase.name == MEASURING]
    return Planned("compare", tuple(phases), drawn_already(known, wanted, f" in {folder}"))


def wanted_rows(steps: int, methods: Sequence[str], budgets: Sequence[int]) -> dict[str, list[int]]:
    """The budgets of every method that is asked for; the full run comes first."""
    return {FULL: [steps], **{method: list(budgets) for method in methods}}


def expected_phases(
    preparation: Preparation,
    samples: int,
    wanted: Mapping[str, Sequence[int]],
    known: Mapping[Key, Entry],
    timed: Collection[str] | None,
) -> list[Phase]:
    """Sample-calls, method by method.

    Args:
        preparation: what brings methods to budgets.
        samples: how many are drawn.
        wanted: the budgets of every method.
        known: the rows that are drawn already; some may still have to be timed.
        timed: the methods whose speed is measured; None is all.
    """
    phases, rows = [], list[Key]()
    missing = {method: [each for each in those if (method, each) not in known] for method, those in wanted.items()}
    partial = [method for method in wanted if method != FULL and missing[method] and not preparation.is_whole(method)]
    recorded = 0  # full runs of the calibration samples, made once, for the first method that needs them
    for method, budgets in wanted.items():
        calls = preparation.expected_calls(method) if missing[method] and method != FULL else 0
        if missing[method] and preparation.to_choose(method) and not recorded:
            recorded = preparation.steps * len(preparation.calibration)
            calls += recorded
        runs = samples + (method in partial)  # one more, in which operations are counted
        phases.append(Phase(phase_name(method), calls + runs * sum(missing[method])))
        rows += [(method, budget) for budget in budgets if wants_timing(timed, method, known.get((method, budget)))]
    # Full runs beside those that are drawn: one to warm up, and one whose operations partial calls are compared with.
    beside = preparation.steps * (any(missing.values()) + bool(partial))
    phases[0] = Phase(phases[0].name, phases[0].sample_calls + beside)
    timing = timing_calls(preparation.steps, rows)
    return [*phases, *[Phase(TIMING, timing)] * (timing > 0), Phase(MEASURING, 0)]


def drawn_already(known: Collection[Key], wanted: Mapping[str, Sequence[int]], where: str = "") -> str:
    """How many rows need not be drawn, as a clause; empty where there are none."""
    rows = several(len(known), "row")
    return f"{rows} of {sum(map(len, wanted.values()))}{where} drawn already" if known else ""


def phase_name(method: str) -> str:
    """What drawing a method is called while it goes on."""
    return "full run" if method == FULL else title(method)
