"""Comparing methods on one pipeline, at the same number of model calls, in three stages: draw, measure, show.

    comparison = budcache.compare(pipe, steps=28, budgets=[5, 8], prompts=[...], calibration=[...], folder="compared")

Every stage goes on from what the folder holds. `measure` and `show` need no pipeline.
"""

from __future__ import annotations

from budcache.comparison.entry import Entry, Measure
from budcache.comparison.measuring import measure
from budcache.comparison.numbers import write_csv
from budcache.comparison.result import Comparison, LeftOut
from budcache.comparison.showing import show
from budcache.comparison.table import text
from budcache.comparison.verdict import Lead, best_other, headline, lead, percentile_lead, tail_lead

__all__ = [
    "Comparison",
    "Entry",
    "Lead",
    "LeftOut",
    "Measure",
    "best_other",
    "headline",
    "lead",
    "measure",
    "percentile_lead",
    "show",
    "tail_lead",
    "text",
    "write_csv",
]
