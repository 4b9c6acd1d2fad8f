"""The comparison as a table in the form of the paper's Table 1: for the terminal, and for spreadsheets."""

from __future__ import annotations

import csv
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from budcache.comparison.result import FULL, Comparison, Entry, Measure
from budcache.storage.files import write_text

__all__ = ["NOISY", "Cell", "cells", "heading", "rows", "text", "write_csv"]

FIRST = 3  # the first metric's place in a row, after calls, latency and speed-up
NOISY = "~ timings are noisy: they spread by more than a fifth, or are faster than the calls allow"
WIDE = 10_000  # letters, more than any table has
STYLES = {1: "bold", 2: "underline"}


class Cell(NamedTuple):
    """One number of the table, as written, its rank at its budget, and its standard error."""

    text: str
    rank: int = 0  # 1: the best; 2: the second best; 0: does not compete
    error: str = ""


def heading(measure: Measure) -> str:
    """A metric's column: its name, and which way is better."""
    return f"{measure.title}{'↑' if measure.higher else '↓'}"


def cells(comparison: Comparison, entry: Entry) -> list[Cell]:
    """A row: calls, latency, speed-up, then each metric's mean."""
    speed = f"{'~' * entry.speed.noisy}{entry.speedup:.2f}x"
    row = [Cell(entry.calls_text), Cell(f"{entry.latency:.3g}"), Cell(speed)]
    return row + [_measured(comparison, entry, measure) for measure in comparison.measures]


def _measured(comparison: Comparison, entry: Entry, measure: Measure) -> Cell:
    found = entry.summed(measure)
    if found is None:
        return Cell("-")
    written = measure.written(found.mean)
    error = "" if found.error is None else measure.written(found.error)
    rivals = comparison.within(entry.budget)
    if entry.method == FULL or entry not in rivals:
        return Cell(written, 0, error)
    means = {one.mean for other in rivals if (one := other.summed(measure)) is not None}
    ranked = list(dict.fromkeys(measure.written(mean) for mean in sorted(means, reverse=measure.higher)))
    return Cell(written, ranked.index(written) + 1 if len(ranked) > 1 else 0, error)


def text(comparison: Comparison) -> RenderableType:
    """The table for a terminal: the best of each budget is bold, the second best underlined.

    Behind each mean stands its standard error; behind that the first metric's bad tail, if the terminal is wide enough.
    """
    return _Fitting(comparison)


@dataclass(frozen=True)
class _Fitting:
    """The widest form of the table that fits a terminal."""

    comparison: Comparison

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for tail, narrow in ((True, False), (False, False), (False, True)):
            table = _table(self.comparison, tail, narrow)
            if Measurement.get(console, options.update(max_width=WIDE), table).maximum <= options.max_width:
                break
        yield table
        if any(entry.speed.noisy for entry in self.comparison.entries):
            yield Text(NOISY, "dim")


def _table(comparison: Comparison, tail: bool, narrow: bool) -> Table:
    names = ["calls", "latency s", "speed-up", *(heading(measure) for measure in comparison.measures)]
    tailed = comparison.measures[0] if tail and comparison.measures else None
    if tailed is not None:
        names.insert(FIRST + 1, f"{tailed.title} {tailed.tail_name}")
    table = Table(box=None, pad_edge=False, header_style="dim", collapse_padding=narrow)
    table.add_column("method")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)

    def add(entry: Entry) -> None:
        row = cells(comparison, entry)
        if tailed is not None:
            found = entry.summed(tailed)
            row.insert(FIRST + 1, Cell("-" if found is None else tailed.written(found.tail)))
        name = Text(entry.title, "bold" if entry.method == comparison.ours else "")
        table.add_row(name, *map(_written, row))

    add(comparison.full)
    for budget in comparison.budgets:
        table.add_section()
        table.add_row(f"[dim]{budget} calls[/]")
        for entry in comparison.at(budget):
            add(entry)
    return table


def _written(cell: Cell) -> Text:
    error = (f"±{cell.error}", "dim") if cell.error else ""
    return Text.assemble((cell.text, STYLES.get(cell.rank, "")), error)


def rows(comparison: Comparison) -> list[dict[str, Any]]:
    """A row for each method and budget, for machines; the values of single samples are in the JSON file.

    Of every metric the mean, its standard error, the bad tail and the worst: psnr, psnr_se, psnr_p5, psnr_worst; for
    one that should be low lpips, lpips_se, lpips_p95, lpips_worst.
    """
    found = []
    for entry in comparison.entries:
        row: dict[str, Any] = {"method": entry.method, "budget": entry.budget, "calls": entry.mean_calls}
        row |= {"calls_min": min(entry.calls), "calls_max": max(entry.calls), "seconds": entry.latency}
        row |= {"seconds_min": min(entry.seconds), "seconds_max": max(entry.seconds)}
        row |= {"speedup": entry.speed.median, "speedup_min": entry.speed.low, "speedup_max": entry.speed.high}
        row["noisy"] = entry.speed.noisy
        for measure in comparison.measures:
            names = [f"{measure.name}{part}" for part in ("", "_se", f"_{measure.tail_name}", "_worst")]
            row |= dict(zip(names, entry.summed(measure) or [None] * 4, strict=True))
        found.append({**row, "knob": entry.knob})
    return found


def write_csv(comparison: Comparison, path: str | os.PathLike[str]) -> Path:
    """The rows as a file for spreadsheets."""
    sheet, lines = io.StringIO(), rows(comparison)
    writer = csv.DictWriter(sheet, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)  # None becomes an empty cell
    return write_text(path, sheet.getvalue())
