"""The comparison as a table in the form of the paper's Table 1: for the terminal, and for spreadsheets."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from budcache.comparison.result import FULL, Comparison, Entry, Measure
from budcache.errors import PipelineError

__all__ = ["Cell", "cells", "text", "write_csv"]

FIRST = 3  # the first metric's place in a row, after calls, latency and speed-up
ROOM = 3  # metrics that fit a line of 100 letters with a tail among them


class Cell(NamedTuple):
    """One number of the table, as written, and its rank at its budget."""

    text: str
    rank: int = 0  # 1: the best; 2: the second best; 0: does not compete


def cells(comparison: Comparison, entry: Entry) -> list[Cell]:
    """A row: calls, latency, speed-up, then each metric's mean."""
    low, high = min(entry.calls), max(entry.calls)
    calls = str(low) if low == high else f"{entry.mean_calls:.1f} ({low}-{high})"
    row = [Cell(calls), Cell(f"{entry.latency:.3g}"), Cell(f"{entry.speedup:.2f}x")]
    return row + [_measured(comparison, entry, measure) for measure in comparison.measures]


def _measured(comparison: Comparison, entry: Entry, measure: Measure) -> Cell:
    found = entry.summed(measure)
    if found is None:
        return Cell("-")
    written = measure.written(found.mean)
    rivals = comparison.within(entry.budget)
    if entry.method == FULL or entry not in rivals:
        return Cell(written)
    means = {one.mean for other in rivals if (one := other.summed(measure)) is not None}
    ranked = list(dict.fromkeys(measure.written(mean) for mean in sorted(means, reverse=measure.higher)))
    return Cell(written, ranked.index(written) + 1 if len(ranked) > 1 else 0)


def text(comparison: Comparison) -> Table:
    """The table for a terminal: the best of each budget is bold, the second best underlined.

    The first metric's bad tail stands behind its mean, unless many metrics leave no room for it.
    """
    names = ["calls", "latency s", "speed-up", *(_heading(measure) for measure in comparison.measures)]
    tailed = comparison.measures[0] if 1 <= len(comparison.measures) <= ROOM else None
    if tailed is not None:
        names.insert(FIRST + 1, f"{tailed.title} {tailed.tail_name}")
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("method")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    styles = {1: "bold", 2: "underline"}

    def add(entry: Entry) -> None:
        row = cells(comparison, entry)
        if tailed is not None:
            found = entry.summed(tailed)
            row.insert(FIRST + 1, Cell("-" if found is None else tailed.written(found.tail)))
        name = Text(entry.title, "bold" if entry.method == comparison.ours else "")
        table.add_row(name, *(Text(cell.text, styles.get(cell.rank, "")) for cell in row))

    add(comparison.full)
    for budget in comparison.budgets:
        table.add_section()
        table.add_row(f"[dim]{budget} calls[/]")
        for entry in comparison.at(budget):
            add(entry)
    return table


def _heading(measure: Measure) -> str:
    return f"{measure.title}{'↑' if measure.higher else '↓'}"


def write_csv(comparison: Comparison, path: str | os.PathLike[str]) -> Path:
    """A line for each method and budget, with the tails; the values of single samples are in the JSON file."""
    names = ["method", "budget", "calls_mean", "calls_min", "calls_max", "seconds_mean", "seconds_min", "seconds_max"]
    names += ["speedup", *(f"{m.name}_{part}" for m in comparison.measures for part in ("mean", "tail", "worst"))]
    sheet = io.StringIO()
    writer = csv.writer(sheet, lineterminator="\n")
    writer.writerow([*names, "knob"])
    for entry in comparison.entries:
        row: list[object] = [entry.method, entry.budget, entry.mean_calls, min(entry.calls), max(entry.calls)]
        row += [entry.latency, min(entry.seconds), max(entry.seconds), entry.speedup]
        for measure in comparison.measures:
            row += entry.summed(measure) or ("", "", "")
        writer.writerow([*row, entry.knob or ""])
    target = Path(path)
    try:
        target.write_text(sheet.getvalue(), encoding="utf-8")
    except OSError as error:
        raise PipelineError(f"{target} cannot be written: {error.strerror or error}. Choose another place.") from None
    return target
