"""The third stage, showing: the table, the files and the page, from what a folder holds. It needs no pipeline."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeVar

from budcache.comparison.entry import BESIDE, FULL, Entry, Measure
from budcache.comparison.kept import Drawn, Kept
from budcache.comparison.numbers import write_csv
from budcache.comparison.preparing import LEDGER
from budcache.comparison.result import Comparison, LeftOut, Tried
from budcache.errors import FileError
from budcache.metrics import METRICS
from budcache.strategies import read_history

__all__ = ["gathered", "show"]

T = TypeVar("T")


def show(folder: str | os.PathLike[str]) -> Comparison:
    """Write `comparison.json`, `comparison.csv` and `comparison.html` into a comparison's folder.

    Args:
        folder: of the comparison; it need not be finished, and may still be running.
    """
    from budcache.report.page import write

    found, home = gathered(folder), Path(folder)
    found.save(home / "comparison.json")
    write_csv(found, home / "comparison.csv")
    write(found, home, home / "comparison.html")
    return found


def gathered(folder: str | os.PathLike[str]) -> Comparison:
    """What was last asked for in a folder, as far as it is there."""
    kept = Kept.read(folder)
    conditions = kept.conditions
    if conditions is None or (FULL, conditions.steps) not in kept.drawn:
        raise FileError(f"{folder} has no full run yet, so there is nothing to show. Run the comparison again.")
    shown = [kept.drawn[key] for key in kept.wanted if key in kept.drawn]
    single = {drawn.key: _valued(kept, drawn) for drawn in shown}
    entries = [
        entry.model_copy(update={"second": single.get((BESIDE + method, budget))})
        for (method, budget), entry in single.items()
        if not method.startswith(BESIDE)
    ]
    return Comparison(
        **dict(conditions),
        measures=tuple(Measure.of(METRICS[name]) for name in kept.metrics if name in METRICS),
        entries=tuple(entries),
        left_out=_grouped([kept.left_out[key] for key in kept.wanted if key in kept.left_out]),
        warnings=(*(sentence for drawn in shown for sentence in _warnings(kept, drawn)), *_not_asked_for(kept)),
        history=_history(kept.path / LEDGER),
    )


def _valued(kept: Kept, drawn: Drawn) -> Entry:
    """An entry with what was measured on it."""
    return Entry.model_validate({**dict(drawn.entry), "values": _asked(kept.values(drawn), kept.metrics)})


def _asked(found: dict[str, T], metrics: tuple[str, ...]) -> dict[str, T]:
    return {name: found[name] for name in metrics if name in found}


def _warnings(kept: Kept, drawn: Drawn) -> list[str]:
    """A sentence for each metric that was asked for and could not be measured on an entry."""
    where = drawn.entry.title + ("" if drawn.entry.method == FULL else f" at {drawn.entry.budget} calls")
    return [
        f"{METRICS[name].title if name in METRICS else name} of {where} is left out: {failed}. Look at the picture, or "
        f"leave {name} out."
        for name, failed in _asked(kept.failures(drawn), kept.metrics).items()
    ]


def _not_asked_for(kept: Kept) -> list[str]:
    """A sentence that names rows of earlier runs that are in the folder and not shown."""
    others = [kept.drawn[key].entry for key in kept.drawn if key not in kept.wanted and key[0] != FULL]
    named = [f"{entry.title} at {entry.budget}" for entry in others if not entry.method.startswith(BESIDE)]
    if not named:
        return []
    return [f"Also drawn in this folder, but not asked for now: {', '.join(named)} calls. Name them to show them."]


def _grouped(left_out: list[LeftOut]) -> tuple[LeftOut, ...]:
    """One line for all the budgets that a method was left out at for the same reason."""
    budgets: dict[tuple[str, str, str], list[int]] = {}
    for out in left_out:
        budgets.setdefault((out.method, out.title, out.reason), []).extend(out.budgets)
    return tuple(
        LeftOut(method=method, title=title, budgets=tuple(those), reason=reason)
        for (method, title, reason), those in budgets.items()
    )


def _history(ledger: Path) -> tuple[Tried, ...]:
    """The convergence of our search, if it took place in this folder."""
    if not ledger.exists():
        return ()
    return tuple(
        Tried(budget=step.mask.budget, loss=step.loss, calls=step.sample_calls, phase=step.phase)
        for step in read_history(ledger)
    )
