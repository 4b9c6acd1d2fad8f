"""What has really happened under a policy: counted, and written so that Prometheus can read it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from budcache.errors import PipelineError
from budcache.wording import quote

__all__ = ["Counts", "Stats"]


COUNTERS = {  # by field, as Prometheus is to know them
    "runs": ("budcache_runs_total", "Runs of the pipeline that have begun."),
    "calls": ("budcache_calls_total", "Model calls; guidance branches and samples of a batch do not count twice."),
    "reused": ("budcache_reused_steps_total", "Steps that were skipped."),
}


class Counts(NamedTuple):
    """What was done at one budget: runs that began, model calls, and steps that were skipped."""

    runs: int = 0
    calls: int = 0
    reused: int = 0


@dataclass
class Stats:
    """What has really happened under a policy; a call is one evaluation, whatever its guidance branches.

    Attributes:
        runs: runs that have begun.
        calls: model calls; of a batch, one for all its samples.
        reused: steps that were skipped.
        last_run_calls: the calls of the run that began last.
        budgets: the same by budget, for handles that change it (`Handle.use`).
    """

    runs: int = 0
    calls: int = 0
    reused: int = 0
    last_run_calls: int = 0
    budgets: dict[int, Counts] = field(default_factory=dict)

    def count(self, budget: int, runs: int = 0, calls: int = 0, reused: int = 0) -> None:
        """Add what was done at a budget."""
        self.runs, self.calls, self.reused = self.runs + runs, self.calls + calls, self.reused + reused
        before = self.budgets.get(budget, Counts())
        self.budgets[budget] = Counts(before.runs + runs, before.calls + calls, before.reused + reused)

    def __add__(self, other: Stats) -> Stats:
        """The numbers of two pipelines together; the last run is the other's."""
        both = replace(self.copy(), last_run_calls=other.last_run_calls)
        for budget, counts in other.budgets.items():
            both.count(budget, *counts)
        return both

    def copy(self) -> Stats:
        """The numbers as they are now."""
        return replace(self, budgets=dict(self.budgets))

    def prometheus(self, **labels: str) -> str:
        """The counters in Prometheus' text format, by budget.

        Args:
            labels: more labels for each of them, such as `model="flux"`.
        """
        for name in labels:
            if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name) or name.startswith("__") or name == "budget":
                raise PipelineError(f"{quote(name)} cannot be a label here. Use letters, digits and _, not budget.")
        return "".join(self._counter(field, name, text, labels) for field, (name, text) in COUNTERS.items())

    def _counter(self, field: str, name: str, text: str, labels: Mapping[str, str]) -> str:
        lines = [f"# HELP {name} {text}", f"# TYPE {name} counter"]
        for budget, counts in sorted(self.budgets.items()):
            marks = {**labels, "budget": budget}
            inside = ",".join(f'{key}="{_escaped(value)}"' for key, value in marks.items())
            lines.append(f"{name}{{{inside}}} {getattr(counts, field)}")
        return "\n".join(lines) + "\n"


def _escaped(value: object) -> str:
    return str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
