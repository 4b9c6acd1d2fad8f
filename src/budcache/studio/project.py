"""The project folder: all that the studio keeps, so that nothing is lost with the page or the process."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from budcache.errors import BudcacheError, FileError
from budcache.policy import Ladder
from budcache.storage.files import read_json, write_json
from budcache.wording import quote

__all__ = ["Project"]


class Project:
    """A folder of ladders, ledgers, comparisons, kept pictures and jobs, all of one model.

    One studio at a time has it open. Everything in it is an ordinary file of budcache's: a ladder can be applied, a
    ledger shown, a comparison's page opened without the studio.

    Args:
        path: the folder; made if it is not there.
        model: as it was named on the command line.
    """

    def __init__(self, path: Path, model: str) -> None:
        self.path = path
        self._read: dict[str, tuple[int, Ladder]] = {}  # ladders, and when each was written
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(path / ".lock", timeout=0, thread_local=False)
            self._lock.acquire()
        except Timeout:
            raise FileError(
                f"the project {path} is open in another studio. Use that one, or choose another --project."
            ) from None
        except OSError as error:
            raise FileError(f"{path} cannot be written: {error.strerror or error}. Choose another --project.") from None
        try:
            self._check(model)
        except BaseException:
            self.close()
            raise

    def _check(self, model: str) -> None:
        there = self.remembered("project").get("model", model)
        if there != model:
            raise FileError(
                f"the project {self.path} is of {quote(there)}, not of {quote(model)}. Choose another --project."
            )
        self.remember("project", {"model": model})

    def close(self) -> None:
        """Let others open it."""
        self._lock.release()

    # Small facts, such as what was last drawn

    def remember(self, name: str, values: Mapping[str, Any]) -> None:
        """Keep some values under a name."""
        write_json(self.path / f"{name}.json", dict(values))

    def remembered(self, name: str) -> dict[str, Any]:
        """What was kept under a name; nothing where there is nothing that can be read."""
        with suppress(BudcacheError):
            found = read_json(self.path / f"{name}.json")
            return found if isinstance(found, dict) else {}
        return {}

    # Ladders

    @property
    def ladders(self) -> dict[str, Path]:
        """The ladders that are there, by name, the newest first."""
        found = (self.path / "ladders").glob("[!.]*.json")  # files being written have a dot
        return {path.stem: path for path in sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True)}

    def keep(self, name: str, ladder: Ladder) -> Path:
        """Keep a ladder under a name that files can have, in the place of what has it."""
        return ladder.save(self.path / "ladders" / f"{safe(name)}.json")

    def add(self, name: str, ladder: Ladder) -> str:
        """Keep a ladder from elsewhere, and the name that it has here: with a number where another has its own."""
        here, number = safe(name), 1
        while self.ladder(here) != ladder and self._is_taken(here):
            number += 1
            here = f"{safe(name)}-{number}"
        if self.ladder(here) == ladder:
            self.ladders[here].touch()  # what was asked for last is the newest
        else:
            self.keep(here, ladder)
        return here

    def _is_taken(self, name: str) -> bool:
        return name in self.ladders or (self.jobs / f"{name}.json").exists()  # a search's ladder will have its name

    def ladder(self, name: str) -> Ladder | None:
        """A ladder by its name, or None if it is missing or cannot be read."""
        path = self.path / "ladders" / f"{name}.json"
        try:
            written = path.stat().st_mtime_ns
            if self._read.get(name, (None,))[0] != written:
                self._read[name] = written, Ladder.load(path)
        except (OSError, BudcacheError):
            self._read.pop(name, None)
            return None
        return self._read[name][1]

    # What jobs write

    def ledger(self, job: str) -> Path:
        """The ledger of a search."""
        return self.path / "ledgers" / f"{safe(job)}.ledger.jsonl"

    def comparison(self, job: str) -> Path:
        """The folder of a comparison."""
        return self.path / "comparisons" / safe(job)

    @property
    def jobs(self) -> Path:
        """The folder of what is known of every job."""
        return self.path / "jobs"

    @property
    def pictures(self) -> Path:
        """The folder of kept pictures; it may be removed, and is drawn again."""
        return self.path / "pictures"


def safe(name: str) -> str:
    """A name that a file can have, and that leads nowhere else."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "unnamed"
