"""Timing what was drawn: rows, a few at a time, take turns with the same full runs.

A full run costs as much as several runs of a method, so those few share it: a round is a full run and one run of each.
Whoever comes next to the full run in one round comes last in another, and every second round is run backwards.
What a group of them has taken is written down when the group is done.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from budcache.comparison.entry import BESIDE, FULL, Entry
from budcache.comparison.kept import Drawn, Key
from budcache.comparison.preparing import Preparation
from budcache.comparison.ready import Ready, plain
from budcache.comparison.timing import MANY_PAIRS, Pair, enough
from budcache.errors import BudcacheError, BudcacheWarning, FileError, WorkerError

if TYPE_CHECKING:
    from budcache.comparison.drawing import Drawing
    from budcache.pipeline.clock import Lap

__all__ = ["TIMING", "clock", "expected_calls", "wants_timing"]

TIMING = "timing"  # the phase
TOGETHER = 4  # rows that share a full run: the further away from it a run is, the less they see the same machine


class _Row(NamedTuple):
    """A drawn row, and what runs it once more."""

    drawn: Drawn
    ready: Ready


def wants_timing(timed: Collection[str] | None, method: str, entry: Entry | None = None) -> bool:
    """Whether a row is to be timed: one that never was, or by name one that could not be measured.

    Args:
        timed: the methods to be timed; None is all.
        method: the row's.
        entry: what is drawn of it already.
    """
    method = method.removeprefix(BESIDE)
    if method == FULL or (timed is not None and method not in timed):
        return False
    return entry is None or not entry.timed_seconds or (timed is not None and not entry.speed.known)


def expected_calls(steps: int, rows: Iterable[Key]) -> int:
    """What it will take to time these rows, if they need as many rounds as there may be of slow models."""
    budgets = [budget for _, budget in rows]
    return (MANY_PAIRS + 1) * (sum(budgets) + steps * -(-len(budgets) // TOGETHER))


def clock(drawing: Drawing, preparation: Preparation) -> None:
    """Time what is drawn of the rows that were asked for, as far as that is wanted."""
    folder = drawing.folder
    those = [drawn for key in folder.wanted if (drawn := folder.drawn.get(key)) is not None]
    rows = [
        row
        for drawn in those
        if wants_timing(drawing.timed, drawn.key[0], drawn.entry) and (row := _row(preparation, drawn)) is not None
    ]
    for some in (rows[n : n + TOGETHER] for n in range(0, len(rows), TOGETHER)):
        try:
            timed = _pairs(drawing, some)
        except BudcacheError as error:
            _left_untimed([row.drawn for row in some], error)
            continue
        for row, pairs in zip(some, timed, strict=True):
            folder.add(_timed(row.drawn.entry, pairs), row.drawn.made_of, row.drawn.id)


def _row(preparation: Preparation, drawn: Drawn) -> _Row | None:
    """What runs a row once more, by its own setting; None where its setting is no longer chosen."""
    method, budget = drawn.key
    try:
        choices = preparation.ready(method.removeprefix(BESIDE), budget)
    except (FileError, WorkerError):  # no method's fault
        raise
    except BudcacheError as error:
        _left_untimed([drawn], error)
        return None
    return next((_Row(drawn, ready) for ready in choices if ready.knob == drawn.entry.knob), None)


def _left_untimed(those: Sequence[Drawn], error: BudcacheError) -> None:
    """Say why rows have no times. They are drawn, so they are measured and shown all the same."""
    names = ", ".join(dict.fromkeys(drawn.entry.title for drawn in those))
    warnings.warn(f"{names} cannot be timed: {error}", BudcacheWarning, stacklevel=2)


def _pairs(drawing: Drawing, rows: Sequence[_Row]) -> list[list[Pair]]:
    """Rounds of a full run and runs of these, until all their ratios are known: the pairs of each."""
    full, those = plain(drawing.pipe, drawing.steps), [row.ready for row in rows]

    def around(turn: int, left: Sequence[int]) -> list[Pair]:
        first = turn // 2 % len(left)
        order = [None, *left[first:], *left[:first]]  # None is the full run
        took = {
            row: _run(drawing, turn % len(drawing.samples), full if row is None else those[row])
            for row in (order if turn % 2 else reversed(order))
        }
        drawing.meter.add(0, note=f"round {turn}, {len(left)} not known to 5 % yet" if turn else "warming up")
        slow, slow_calls = took[None]
        own = [took[row] for row in left]
        return [Pair(slow.loop, slow_calls, lap.loop, calls, lap.memory, slow.memory) for lap, calls in own]

    return enough(around, len(those), made=[row.drawn.entry.calls for row in rows])


def _run(drawing: Drawing, number: int, ready: Ready) -> tuple[Lap, float]:
    """A run that is only timed, down to its latents, and its calls."""
    with ready.running() as last_run:
        call = {**drawing.call(number, ready.steps), "output_type": "latent"}
        _, lap = drawing.clock.time(lambda: drawing.pipe(**call), to_the_end=True)
        calls = last_run().calls
    drawing.meter.add(round(calls))
    return lap, calls


def _timed(entry: Entry, pairs: Sequence[Pair]) -> Entry:
    return entry.model_copy(
        update={
            "full_seconds": tuple(pair.full for pair in pairs),
            "full_calls": tuple(pair.full_calls for pair in pairs),
            "timed_seconds": tuple(pair.own for pair in pairs),
            "timed_calls": tuple(pair.calls for pair in pairs),
            "memory": max((pair.memory for pair in pairs if pair.memory), default=None),
            "full_memory": max((pair.full_memory for pair in pairs if pair.full_memory), default=None),
        }
    )
