"""The ledger: every score, written down the moment it is known, so that a killed search goes on where it was.

A strategy draws all its chance from a seed. Run again, it asks for the same masks in the same order and is answered
from the ledger, without the model, until it comes to where it was killed.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from budcache.errors import PolicyError, SearchError
from budcache.files import quote
from budcache.mask import Mask
from budcache.score import Score
from budcache.search.strategy import Ask, Evaluated

__all__ = ["Ledger", "read_history"]

VERSION = 1


class Ledger:
    """An append-only file of scored masks; its first line says of what search.

    Args:
        path: the file; made if it is not there.
        search: what determines the scores: model, prompts, steps, seeds. A ledger of another search is refused.
    """

    def __init__(self, path: str | os.PathLike[str], search: Mapping[str, Any]) -> None:
        self.path, self.known = Path(path), dict[Mask, Score]()
        self.spent = 0  # sample-calls, by all the runs of this search before this one
        self.calls = 0  # sample-calls when the mask last asked for had been scored, now or in an earlier run
        self._calls_then: dict[Mask, int] = {}
        header = {"ledger": VERSION, "search": dict(search)}
        try:
            data = self.path.read_bytes() if self.path.exists() else b""
            # The last line may have been cut off by a kill; a line is whole only with its end.
            end = data.rfind(b"\n") + 1
            whole = data[:end].decode().splitlines()
        except OSError as error:
            reason = error.strerror or error
            raise SearchError(f"the ledger {path} cannot be read: {reason}. Choose another --ledger.") from None
        except UnicodeDecodeError:
            raise self._foreign() from None
        first = json.dumps(header)
        if whole:
            self._check(whole[0], header)
            for line in whole[1:]:
                self._read(line)
        elif not first.encode().startswith(data):  # not the beginning of ours, so somebody else's file
            raise self._foreign()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if not whole:
                self.path.write_text(first + "\n", encoding="utf-8")
            elif end < len(data):
                os.truncate(self.path, end)  # what is whole is not touched
            self._file = self.path.open("a", encoding="utf-8")
        except OSError as error:
            raise self._full(error) from None

    def remembering(self, score: Callable[[Ask], Score], calls: Callable[[], int]) -> Callable[[Ask], Score]:
        """A scoring function that asks the ledger first, and tells it what it did not know."""

        def remembered(ask: Ask) -> Score:
            if ask.mask not in self.known:
                found = score(ask)
                self.calls = self.spent + calls()
                self._write({"mask": str(ask.mask), "phase": ask.phase, "calls": self.calls} | asdict(found))
                self.known[ask.mask] = found
            self.calls = self._calls_then.get(ask.mask, self.calls)
            return self.known[ask.mask]

        return remembered

    def close(self) -> None:
        """Let go of the file."""
        with contextlib.suppress(OSError):  # a full disk, said already when the line was written
            self._file.close()

    def _write(self, entry: dict[str, Any]) -> None:
        try:
            self._file.write(json.dumps(entry) + "\n")
            self._file.flush()
        except OSError as error:
            raise self._full(error) from None

    def _check(self, line: str, header: dict[str, Any]) -> None:
        try:
            found = json.loads(line)
            theirs = dict(found["search"])
            version = found["ledger"]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise self._foreign() from None
        if version != VERSION:
            raise SearchError(
                f"{self.path} is a ledger of version {quote(version)}, this is {VERSION}. Remove the file."
            )
        ours = json.loads(json.dumps(header["search"]))
        for name in sorted({*ours, *theirs}):
            if ours.get(name) != theirs.get(name):
                raise SearchError(
                    f"the ledger {self.path} belongs to a search with {name} = {quote(theirs.get(name))}, this one has "
                    f"{quote(ours.get(name))}. Choose another --ledger, or remove the file to start afresh."
                )

    def _read(self, line: str) -> None:
        try:
            entry = json.loads(line)
            mask = Mask.parse(entry["mask"])
            self.known[mask] = Score(float(entry["loss"]), tuple(entry["arrivals"]))
            self._calls_then[mask] = int(entry["calls"])
            self.spent = max(self.spent, int(entry["calls"]))
        except (ValueError, TypeError, KeyError, PolicyError, RecursionError):
            raise SearchError(
                f"the ledger {self.path} has a line that is not a score: {quote(line)}. Remove the line or the file."
            ) from None

    def _foreign(self) -> SearchError:
        return SearchError(f"{self.path} is not a ledger. Choose another --ledger, or remove the file.")

    def _full(self, error: OSError) -> SearchError:
        return SearchError(
            f"the ledger {self.path} cannot be written: {error.strerror or error}. What was scored is kept; make room "
            "and run the same command again."
        )


def read_history(path: str | os.PathLike[str]) -> list[Evaluated]:
    """The masks that a ledger holds, in the order in which they were scored."""
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")[:-1]
        entries = [json.loads(line) for line in lines]
        if "ledger" not in entries[0]:
            raise ValueError
        return [
            Evaluated(Mask.parse(entry["mask"]), float(entry["loss"]), str(entry["phase"]), int(entry["calls"]), True)
            for entry in entries[1:]
        ]
    except OSError as error:
        raise SearchError(f"the ledger {path} cannot be read: {error.strerror or error}.") from None
    except (ValueError, TypeError, KeyError, IndexError, PolicyError, RecursionError):
        raise SearchError(f"{path} is not a ledger of a search. Name the .ledger.jsonl file.") from None
