"""The ledger: every score, written down the moment it is known, so that a killed search goes on where it was.

A strategy draws all its chance from a seed. Run again, it asks for the same masks in the same order and is answered
from the ledger, without the model, until it comes to where it was killed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from budcache.calibration.score import Score
from budcache.errors import FileError, SearchError
from budcache.mask import Mask
from budcache.storage.journal import Journal
from budcache.strategies.strategy import Ask, Evaluated

__all__ = ["Ledger", "read_history"]


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
        self._journal = Journal(path, search)
        for entry in self._journal.entries:
            try:
                self._read(entry)
            except (ValueError, TypeError, KeyError):
                self.close()
                raise self._journal.spoilt(entry) from None

    def remembering(
        self, score: Callable[[Ask], Score], calls: Callable[[], int], reuse: str = "plain"
    ) -> Callable[[Ask], Score]:
        """A scoring function that asks the ledger first, and tells it what it did not know."""

        def remembered(ask: Ask) -> Score:
            key = reuse, ask.mask
            if key not in self.known:
                found = score(ask)
                self.calls = self.spent + calls()
                entry = {"mask": str(ask.mask), "phase": ask.phase, "reuse": reuse, "calls": self.calls}
                self._journal.write(entry | asdict(found))
                self.known[key] = found
            self.calls = self._calls_then.get(key, self.calls)
            return self.known[key]

        return remembered

    def close(self) -> None:
        """Let go of the file."""
        self._journal.close()

    def _read(self, entry: dict[str, Any]) -> None:
        key = str(entry.get("reuse", "plain")), Mask.parse(entry["mask"])
        self.known[key] = Score(float(entry["loss"]), tuple(entry["arrivals"]))
        self._calls_then[key] = int(entry["calls"])
        self.spent = max(self.spent, int(entry["calls"]))


def read_history(path: str | os.PathLike[str]) -> list[Evaluated]:
    """The masks that a ledger holds, in the order in which they were scored; the phase says where reuse was fitted."""
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")[:-1]
        entries = [json.loads(line) for line in lines]
        if "ledger" not in entries[0]:
            raise ValueError
        if "alignment" in entries[0]:
            raise SearchError(
                f"{path} is the ledger of an alignment, not of a search. Show the policy that came of it, or align "
                "with --plot."
            )
        return [
            Evaluated(
                mask=Mask.parse(entry["mask"]),
                loss=float(entry["loss"]),
                phase=str(entry["phase"]) + ", fitted" * (entry.get("reuse") == "fitted"),
                calls=int(entry["calls"]),
                new=True,
            )
            for entry in entries[1:]
        ]
    except SearchError:
        raise
    except OSError as error:
        raise FileError(f"the ledger {path} cannot be read: {error.strerror or error}. Check the path.") from None
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        raise SearchError(f"{path} is not a ledger of a search. Name the .ledger.jsonl file.") from None
