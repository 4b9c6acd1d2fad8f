"""The ledger: every score, written down the moment it is known, so that a killed search goes on where it was.

A strategy draws all its chance from a seed. Run again, it asks for the same masks in the same order and is answered
from the ledger, without the model, until it comes to where it was killed.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from budcache.aggregate import mean
from budcache.calibration.score import Score
from budcache.errors import FileError, SearchError
from budcache.events import Scored
from budcache.mask import Mask
from budcache.rows import Row
from budcache.storage.journal import Journal, whole_lines
from budcache.strategies.strategy import Ask, ScoreMany

__all__ = ["Ledger", "begun_with", "read_history"]

FORMAT = 3  # of a ledger's lines: the losses and arrivals of every sample, and what was fitted


class Ledger:
    """A journal of scored masks.

    Args:
        path: the file; made if it is not there.
        search: what determines the scores: model, prompts, steps, seeds. A ledger of another search is refused.
    """

    def __init__(self, path: str | os.PathLike[str], search: Mapping[str, Any]) -> None:
        self.known = dict[tuple[str, Mask], Score]()  # by how reuse was scored ("plain", "fitted"), and mask
        self.spent = 0  # sample-calls, by all the runs of this search before this one
        self.calls = 0  # sample-calls when the mask last asked for had been scored, now or in an earlier run
        self._calls_then: dict[tuple[str, Mask], int] = {}
        self.journal = Journal(path, {"format": FORMAT, **search})
        for entry in self.journal.entries:
            try:
                self._read(entry)
            except (ValueError, TypeError, KeyError, OverflowError, AttributeError):
                self.close()
                raise self.journal.spoilt(entry) from None

    def remembering(self, score_many: ScoreMany, calls: Callable[[], int], reuse: str = "plain") -> ScoreMany:
        """A scoring function that asks the ledger first, and writes down what it did not know."""

        def remembered(ask: Ask) -> Iterator[Score]:
            unknown = tuple(mask for mask in dict.fromkeys(ask.masks) if (reuse, mask) not in self.known)
            fresh = score_many(Ask(unknown, ask.phase))
            for mask in ask.masks:
                key = reuse, mask
                if key not in self.known:
                    found = next(fresh)
                    self.calls = self.spent + calls()
                    entry = {"mask": str(mask), "phase": ask.phase, "reuse": reuse, "calls": self.calls}
                    rows = found.rows and [row.model_dump(mode="json", exclude_none=True) for row in found.rows]
                    self.journal.write(entry | asdict(found) | {"rows": rows})
                    self.known[key] = found
                self.calls = self._calls_then.get(key, self.calls)
                yield self.known[key]

        return remembered

    def note(self, calls: int) -> None:
        """Write down what this run has spent in all: choosing comes after the last score."""
        if self.spent + calls > self.calls:
            self.journal.write({"spent": self.spent + calls})

    def close(self) -> None:
        """Let go of the file."""
        self.journal.close()

    def _read(self, entry: dict[str, Any]) -> None:
        if "newton" in entry:  # of an alignment at the end of the search; it reads them itself
            self.spent = max(self.spent, int(entry["calls"]))
            return
        if "spent" in entry:
            self.spent = max(self.spent, int(entry["spent"]))
            return
        key = str(entry.get("reuse", "plain")), Mask.parse(entry["mask"])
        self.known[key] = _score(entry, key[1])
        self._calls_then[key] = int(entry["calls"])
        self.spent = max(self.spent, int(entry["calls"]))


def _score(entry: Mapping[str, Any], mask: Mask) -> Score:
    """What a line says of a mask, checked: a search that goes on with it must not stumble over it later."""
    arrivals = [None if errors is None else _numbers(errors) for errors in entry["arrivals"]]
    weights = entry.get("weights") and tuple(_numbers(row, least=0) for row in entry["weights"])
    rows = entry.get("rows") and tuple(Row.model_validate(row) for row in entry["rows"])
    ratios = entry.get("ratios") and _numbers(entry["ratios"])
    found = Score(_numbers(entry["losses"]), tuple(arrivals), weights or None, rows or None, ratios or None)
    for each in (*arrivals, found.ratios):
        if each is not None and len(each) != len(found.losses):
            raise ValueError("not a number for each sample")
    behind = [step > mask.computed[-1] for step in range(len(mask) + 1)]
    if arrivals and [errors is not None for errors in arrivals] != behind:
        raise ValueError("not an arrival for each step behind the last computed one")
    if any(len(each) != mask.budget for each in (weights, rows) if each):
        raise ValueError("not a row for each computed step")
    _numbers([found.loss, *found.errors, *(found.arrival(step) for step in range(len(arrivals)) if behind[step])])
    return found


def _numbers(values: Iterable[Any], least: int = 1) -> tuple[float, ...]:
    found = tuple(map(float, values))
    if len(found) < least or not all(map(math.isfinite, found)):
        raise ValueError("no numbers, or not finite ones")
    return found


def read_history(path: str | os.PathLike[str]) -> list[Scored]:
    """The masks that a ledger holds, in the order in which they were scored; the phase says where reuse was fitted."""
    try:
        entries = [json.loads(line) for line in whole_lines(path)]
        if "ledger" not in entries[0]:
            raise ValueError
        if "alignment" in entries[0]:
            raise SearchError(
                f"{path} is the ledger of an alignment, not of a search. Show the policy that came of it, or align "
                "with --plot."
            )
        return [_scored(entry) for entry in entries[1:] if not {"spent", "newton"} & set(entry)]
    except SearchError:
        raise
    except OSError as error:
        raise FileError(f"the ledger {path} cannot be read: {error.strerror or error}. Check the path.") from None
    except (ValueError, TypeError, KeyError, IndexError, RecursionError, ArithmeticError, AttributeError):
        raise SearchError(f"{path} is not a ledger of a search. Name the .ledger.jsonl file.") from None


def begun_with(path: str | os.PathLike[str] | None) -> str:
    """How a ledger's search names its strategy; nothing where there is no such file, or one that will be refused."""
    try:
        return str(json.loads(whole_lines(path)[0])["search"]["strategy"]) if path is not None else ""
    except (OSError, ValueError, TypeError, KeyError, IndexError, RecursionError):
        return ""


def _scored(entry: Mapping[str, Any]) -> Scored:
    phase = str(entry["phase"]) + ", fitted" * (entry.get("reuse") == "fitted")
    loss = mean(entry["losses"]) if "losses" in entry else float(entry["loss"])  # as ledgers of version 0.1 have it
    return Scored(Mask.parse(entry["mask"]), loss, phase, int(entry["calls"]), new=True)
