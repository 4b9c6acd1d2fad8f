"""Journals: what long work has found so far, written down line by line, so that a killed run can go on."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from io import FileIO
from operator import index
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from budcache.errors import JournalError
from budcache.storage.files import sync_folder
from budcache.wording import quote

__all__ = ["Journal", "whole_lines"]

VERSION = 1
_DIGEST = re.compile(r"[0-9a-f]{12,64}")


def whole_lines(path: str | os.PathLike[str]) -> list[str]:
    """The lines of a journal that are whole, without taking it over.

    The last one may have been cut off by a kill, or is being written: a line is whole only with its end.
    """
    if Path(path).is_fifo():
        raise OSError(errno.EINVAL, "it is a pipe")
    return _whole(Path(path).read_bytes()).decode().split("\n")[:-1]


def _whole(data: bytes) -> bytes:
    return data[: data.rfind(b"\n") + 1]


class Journal:
    """An append-only file of JSON lines; its first line says of what work.

    One process at a time has it open, from before it is read until it is closed. The lock is a file of its own beside
    the journal, hidden and empty; it stays when the lock is let go, as it is when a process is killed.

    Args:
        path: the file; made if it is not there.
        work: what determines the lines: model, prompts, steps, seeds. A journal of other work is refused.
        kind: what sort of journal it is: the name of the first line's own field.
        of: what the work is called, for people to read.
        folder: where a journal is one of several files of the same work, what to remove to start that work afresh.

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
        folder: Path | None = None,
    ) -> None:
        self.path, self.kind, self.of, self.folder = Path(path), kind, of, folder
        first = {kind: VERSION, of: dict(work)}
        with ExitStack() as held:
            held.callback(self._locked().release)
            whole = self._read(first)
            self._file, self._whole = self._appending(whole), whole
            self._failed: JournalError | None = None
            held.callback(_close, self._file)
            if not whole:
                self.write(first)
                sync_folder(self.path.parent)  # or a power cut could take the name away, and all lines with it
            self._held = held.pop_all()

    def write(self, entry: dict[str, Any]) -> None:
        """Append a line, at once: it is on the disk when this returns, or no part of it is."""
        if self._failed is not None:
            raise self._failed
        try:
            line = json.dumps(entry, allow_nan=False, default=index)
        except ValueError:  # nan is not JSON, and whoever reads it back could not go on with it
            raise JournalError(
                f"the {self.kind} {self.path} cannot hold {quote(entry)}: it has a number that is not finite. Check "
                "the model and its number format (float16 overflows where bfloat16 does not)."
            ) from None
        data = line.encode() + b"\n"
        try:
            self._append(data)
        except BaseException as error:
            self._take_back()
            if not isinstance(error, OSError):  # Ctrl-C
                raise
            raise self._unwritable(error) from None
        self._whole += len(data)
        if os.fstat(self._file.fileno()).st_nlink == 0:  # written to a file that nobody will ever find
            self._failed = JournalError(
                f"the {self.kind} {self.path} is gone: it or its folder was removed while this was at work. Run the "
                "same command again; it begins afresh."
            )
            raise self._failed

    def _append(self, data: bytes) -> None:
        while data:
            data = data[self._file.write(data) :]
        os.fsync(self._file.fileno())

    def _take_back(self) -> None:
        """Half a line must not stay: the next one would be joined to it, and neither could be read."""
        try:
            self._file.truncate(self._whole)
        except OSError as error:
            self._failed = self._unwritable(error)

    def close(self) -> None:
        """Let go of the file."""
        self._held.close()

    def spoilt(self, entry: object) -> JournalError:
        """The error for a line that is whole but makes no sense."""
        return JournalError(
            f"the {self.kind} {self.path} has a line that cannot be used: {quote(entry)}. Remove the line, or "
            f"{self._begin_afresh}."
        )

    def _locked(self) -> FileLock:
        """Two processes on one journal would mix their lines, so the second is refused."""
        try:
            if self.path.exists() and not self.path.is_file():
                raise JournalError(f"{self.path} is a folder or a device, not a {self.kind}. Choose another place.")
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Not bound to a thread: a journal may be closed by another one than opened it.
            beside = self.path.with_name(f".{self.path.name}.lock")
            lock = FileLock(beside, timeout=0, thread_local=False)
            lock.acquire()
        except JournalError:
            raise
        except Timeout:
            raise JournalError(
                f"the {self.kind} {self.path} is in use by another process. Wait for it, or choose another place."
            ) from None
        except NotImplementedError:  # a file system without locks
            raise JournalError(
                f"the {self.kind} {self.path} cannot be locked: its file system has no locks. Choose a place on "
                "another one."
            ) from None
        except OSError as error:
            raise self._unwritable(error) from None
        return lock

    def _read(self, first: dict[str, Any]) -> int:
        """Check that what there is is ours, and take in its entries; how many bytes of it are whole lines."""
        try:
            data = self.path.read_bytes() if self.path.exists() else b""
        except OSError as error:
            reason = error.strerror or error
            raise JournalError(f"the {self.kind} {self.path} cannot be read: {reason}. Choose another place.") from None
        end = len(_whole(data))
        try:
            whole = data[:end].decode().split("\n")[:-1]
        except UnicodeDecodeError:
            raise self._foreign() from None
        header = json.dumps(first, default=index)  # numpy's whole numbers, too
        if whole:
            self._check(whole[0], json.loads(header)[self.of])
        elif not header.encode().startswith(data):  # not the beginning of ours, so somebody else's file
            raise self._foreign()
        self.entries = [self._parsed(line) for line in whole[1:]]
        return end

    def _appending(self, whole: int) -> FileIO:
        try:
            # Without a buffer: what a full disk does not take would wait there, and be written later.
            file = self.path.open("ab", buffering=0)
            file.truncate(whole)
        except OSError as error:
            raise self._unwritable(error) from None
        return file

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
            raise JournalError(
                f"{self.path} is a {self.kind} of version {quote(version)}, this is {VERSION}. Choose another "
                f"place, or {self._begin_afresh}."
            )
        # A digest says least, and differs wherever a setting does that samples share: it comes last.
        for name in sorted({*ours, *theirs}, key=lambda name: (bool(_DIGEST.fullmatch(str(ours.get(name)))), name)):
            if ours.get(name) != theirs.get(name):
                raise self._of_other_work(name, theirs, ours)

    def _of_other_work(self, name: str, theirs: dict[str, Any], ours: dict[str, Any]) -> JournalError:
        what = f"{self.kind} {self.path}" if self.folder is None else f"folder {self.folder}"
        other = f"{'an' if self.of[0] in 'aeiou' else 'a'} {self.of}"
        shown = name if name.isprintable() and len(name) <= 40 else quote(name)
        had, has = (quote(work[name]) if name in work else "none" for work in (theirs, ours))
        apart = f"with {shown} = {had}, this one has {has}"
        if all(_DIGEST.fullmatch(str(work.get(name))) for work in (theirs, ours)):  # which would say nothing to anybody
            apart = f"with other {shown.removesuffix('_hash').replace('_', ' ')} than this one"
        return JournalError(f"the {what} belongs to {other} {apart}. Choose another place, or {self._begin_afresh}.")

    def _foreign(self) -> JournalError:
        return JournalError(f"{self.path} is not a {self.kind}. Choose another place, or {self._begin_afresh}.")

    @property
    def _begin_afresh(self) -> str:
        place = "the file" if self.folder is None else f"the folder {self.folder}, with all that is in it,"
        return f"remove {place} to start afresh"

    def _unwritable(self, error: OSError) -> JournalError:
        return JournalError(
            f"the {self.kind} {self.path} cannot be written: {error.strerror or error}. What was finished is kept; "
            "make room and run the same command again."
        )


def _close(file: FileIO) -> None:
    with suppress(OSError):  # a full disk, said already when the line was written
        file.close()
