"""Journals: what long work has found so far, written down line by line, so that a killed run can go on."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from budcache.errors import StorageError
from budcache.wording import quote

__all__ = ["Journal"]

VERSION = 1


class Journal:
    """An append-only file of JSON lines; its first line says of what work.

    Args:
        path: the file; made if it is not there.
        work: what determines the lines: model, prompts, steps, seeds. A journal of other work is refused.
        kind: what sort of journal it is: the name of the first line's own field.
        of: what the work is called, for people to read.

    Attributes:
        entries: the lines of the runs before this one.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        work: Mapping[str, Any],
        *,
        kind: str = "ledger",
        of: str = "search",
    ) -> None:
        self.path, self.kind, self.of = Path(path), kind, of
        first = json.dumps({kind: VERSION, of: dict(work)})
        if self.path.exists() and not self.path.is_file():
            raise StorageError(f"{path} is a folder or a device, not a {kind}. Choose another place.")
        try:
            data = self.path.read_bytes() if self.path.exists() else b""
            # The last line may have been cut off by a kill; a line is whole only with its end.
            end = data.rfind(b"\n") + 1
            whole = data[:end].decode().splitlines()
        except OSError as trouble:
            reason = trouble.strerror or trouble
            raise StorageError(f"the {kind} {path} cannot be read: {reason}. Choose another place.") from None
        except UnicodeDecodeError:
            raise self._foreign() from None
        if whole:
            self._check(whole[0], json.loads(first)[of])
        elif not first.encode().startswith(data):  # not the beginning of ours, so somebody else's file
            raise self._foreign()
        self.entries = [self._parsed(line) for line in whole[1:]]
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a", encoding="utf-8")
            _lock(self._file, self)
            if self.path.stat().st_size != len(data):  # written to between our reading and our lock
                self._file.close()
                raise self.in_use()
            if not whole:
                self._file.truncate(0)
                self.write(json.loads(first))
            elif end < len(data):
                os.truncate(self.path, end)  # what is whole is not touched
        except OSError as trouble:
            raise self._full(trouble) from None

    def write(self, entry: dict[str, Any]) -> None:
        """Append a line, at once."""
        try:
            self._file.write(json.dumps(entry) + "\n")
            self._file.flush()
        except OSError as error:
            raise self._full(error) from None

    def close(self) -> None:
        """Let go of the file."""
        with contextlib.suppress(OSError):  # a full disk, said already when the line was written
            self._file.close()

    def spoilt(self, entry: object) -> StorageError:
        """The error for a line that is whole but makes no sense."""
        return StorageError(
            f"the {self.kind} {self.path} has a line that cannot be used: {quote(entry)}. Remove the line or the file."
        )

    def in_use(self) -> StorageError:
        """The error for a file that another process writes to."""
        return StorageError(
            f"the {self.kind} {self.path} is in use by another process. Wait for it, or choose another place."
        )

    def _parsed(self, line: str) -> dict[str, Any]:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            raise self.spoilt(line) from None
        if not isinstance(entry, dict):
            raise self.spoilt(line)
        return entry

    def _check(self, line: str, ours: dict[str, Any]) -> None:
        try:
            found = json.loads(line)
            theirs = dict(found[self.of])
            version = found[self.kind]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise self._foreign() from None
        if version != VERSION:
            raise StorageError(
                f"{self.path} is a {self.kind} of version {quote(version)}, this is {VERSION}. Remove the file."
            )
        for name in sorted({*ours, *theirs}):
            if ours.get(name) != theirs.get(name):
                other = f"{'an' if self.of[0] in 'aeiou' else 'a'} {self.of}"
                raise StorageError(
                    f"the {self.kind} {self.path} belongs to {other} with {name} = {quote(theirs.get(name))}, this one "
                    f"has {quote(ours.get(name))}. Choose another place, or remove the file to start afresh."
                )

    def _foreign(self) -> StorageError:
        return StorageError(f"{self.path} is not a {self.kind}. Choose another place, or remove the file.")

    def _full(self, error: OSError) -> StorageError:
        return StorageError(
            f"the {self.kind} {self.path} cannot be written: {error.strerror or error}. What was finished is kept; "
            "make room and run the same command again."
        )


def _lock(file: Any, journal: Journal) -> None:
    """Two processes on one journal would mix their lines, so the second is refused."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise journal.in_use() from None
    except OSError:  # a file system without locks
        return
