"""Comparing methods on one pipeline, at the same number of model calls.

comparison = compare(pipe, steps=28, budgets=[5, 8], prompts=[...], calibration=[...], folder="out/comparison")
"""

from __future__ import annotations

from budcache.comparison.engine import Progress, compact, compare
from budcache.comparison.result import Comparison, Entry, LeftOut, Measure
from budcache.comparison.table import text, write_csv

__all__ = ["Comparison", "Entry", "LeftOut", "Measure", "Progress", "compact", "compare", "text", "write_csv"]
