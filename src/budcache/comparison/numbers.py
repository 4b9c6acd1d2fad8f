"""A comparison's rows as numbers for machines, and as a file for spreadsheets."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import Any

from budcache.comparison.result import Comparison
from budcache.storage.files import write_text

__all__ = ["rows", "write_csv"]


def rows(comparison: Comparison) -> list[dict[str, Any]]:
    """A row for each method and budget, for machines; the values of single samples are in the JSON file.

    Of every metric the mean, its standard error, the bad tail and the worst: psnr, psnr_se, psnr_p5, psnr_worst; for
    one that should be low lpips, lpips_se, lpips_p95, lpips_worst.
    """
    found = []
    for entry in comparison.entries:
        row: dict[str, Any] = {"method": entry.method, "budget": entry.budget, "calls": entry.mean_calls}
        made, knobs = [n for each in entry.counting for n in each.calls], [each.knob for each in entry.counting]
        row |= {"calls_min": min(made), "calls_max": max(made)}
        row["calls_made"] = entry.calls_text if len(entry.counting) > 1 else None
        row |= {"call_equivalents": entry.mean_equivalents, "seconds": comparison.latency(entry)}
        speed = entry.speed if entry.speed.known else None
        row |= {"speedup": speed and speed.median, "speedup_min": speed and speed.low}
        row |= {"speedup_max": speed and speed.high, "timing": entry.speed.text, "pairs": entry.speed.pairs}
        row |= {"before_seconds": entry.before_seconds, "after_seconds": entry.after_seconds}
        row["memory"] = comparison.memory(entry)
        for measure in comparison.measures:
            names = [f"{measure.name}{part}" for part in ("", "_se", f"_{measure.tail_name}", "_worst")]
            row |= dict(zip(names, entry.summed(measure) or [None] * 4, strict=True))
        row |= {"knob": knobs[0], "second_knob": knobs[1] if len(knobs) > 1 else None}
        found.append({**row, "learned_on": entry.learned_on, "learning_calls": entry.learning_calls})
    return found


def write_csv(comparison: Comparison, path: str | os.PathLike[str]) -> Path:
    """The rows as a file for spreadsheets."""
    sheet, lines = io.StringIO(), rows(comparison)
    writer = csv.DictWriter(sheet, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)  # None becomes an empty cell
    return write_text(path, sheet.getvalue())
