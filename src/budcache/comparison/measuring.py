"""The second stage, measuring: metrics computed from the kept samples. It needs no pipeline."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from budcache.comparison.entry import FULL
from budcache.comparison.folder import Folder
from budcache.comparison.kept import Drawn
from budcache.jobs.meter import Meter
from budcache.metrics import Metric, metric

__all__ = ["measure", "measure_all"]


def measure(folder: str | os.PathLike[str], metrics: Sequence[str], device: str = "cpu") -> None:
    """Measure more of a comparison that was drawn already; `show` then shows it as well.

    Args:
        folder: of the comparison.
        metrics: names from `metrics.METRICS`; what is measured already is not measured again.
        device: where metrics that are networks run.
    """
    judges = [metric(name, device) for name in dict.fromkeys(metrics)]
    for judge in judges:
        judge.prepare()  # fails before the folder is told to expect it
    with Folder.reopened(folder) as kept:
        if kept.conditions is not None:
            names = dict.fromkeys([*kept.metrics, *(judge.name for judge in judges)])
            kept.begin(kept.conditions, kept.methods, list(names))
        measure_all(kept, judges, Meter("compare"))


def measure_all(folder: Folder, judges: Iterable[Metric], meter: Meter) -> None:
    """Measure what was last asked for and not yet measured; every metric of every entry is written down by itself.

    What was drawn for an earlier question is left alone: its samples may have been removed.
    """
    judges = list(judges)
    for judge in judges:
        judge.prepare()  # what is missing is said before the work
    for drawn in [folder.drawn[key] for key in folder.wanted if key in folder.drawn]:
        missing = folder.missing(drawn)
        if asked := [judge for judge in judges if judge.name in missing]:
            _measure(folder, drawn, asked, meter)


def _measure(folder: Folder, drawn: Drawn, judges: Sequence[Metric], meter: Meter) -> None:
    assert folder.conditions is not None  # something was drawn, so it had begun
    entry, conditions = drawn.entry, folder.conditions
    values: dict[str, list[float]] = {judge.name: [] for judge in judges}
    compared = any(judge.reference for judge in judges)
    for number, prompt in enumerate(conditions.prompts):
        meter.add(0, note=f"{entry.title}, {entry.budget} calls")
        sample = folder.sample(entry.method, entry.budget, number)
        reference = folder.sample(FULL, conditions.steps, number) if compared else None
        for judge in judges:
            values[judge.name].append(judge(sample, reference, prompt))
    for name, row in values.items():
        folder.note(drawn, name, row)
