"""Journals: locked before they are read, synced line by line, whole after a kill."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from budcache.errors import BudcacheError, FileError, SearchError
from budcache.storage.journal import Journal

WORK = {"model": "toy"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deep" / "a.jsonl"


def test_it_is_locked_before_it_is_read(path, monkeypatch):
    """Or another process could write and close between our reading and our lock, and its line would be lost."""
    Journal(path, WORK).close()
    stock = Path.read_bytes
    refused = []

    def read(self):
        if self == path:
            with pytest.raises(FileError, match=r"in use by another process\. Wait for it, or choose another place"):
                Journal(path, WORK)
            refused.append(self)
        return stock(self)

    monkeypatch.setattr(Path, "read_bytes", read)
    Journal(path, WORK).close()
    assert refused == [path]


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_is_no_number_is_refused_and_not_written(path, number):
    """It is not JSON, and a journal that holds it may not be read again."""
    journal = Journal(path, WORK)
    journal.write({"loss": 1.0})
    with pytest.raises(FileError, match=r"cannot hold \{'loss'.* a number that is not finite\. Check the model"):
        journal.write({"loss": [number]})
    journal.write({"loss": 2.0})
    journal.close()
    again = Journal(path, WORK)
    assert again.entries == [{"loss": 1.0}, {"loss": 2.0}]
    again.close()


class Half:
    """A file that takes half of a line, once."""

    def __init__(self, file, error, stays=False):
        self.file, self.error, self.stays = file, error, stays

    def write(self, data):
        self.file.write(data[: len(data) // 2])
        self.write = self.file.write
        raise self.error

    def truncate(self, size):
        if self.stays:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self.file.truncate(size)

    def __getattr__(self, name):
        return getattr(self.file, name)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_half_a_line_is_taken_back_and_the_next_one_stands_alone(path, error):
    journal = Journal(path, WORK)
    journal.write({"loss": 1.0})
    before, journal._file = path.read_bytes(), Half(journal._file, error)
    with pytest.raises(FileError if isinstance(error, OSError) else KeyboardInterrupt):
        journal.write({"loss": 2.0})
    assert path.read_bytes() == before
    journal.write({"loss": 3.0})
    journal.close()
    again = Journal(path, WORK)
    assert again.entries == [{"loss": 1.0}, {"loss": 3.0}]
    again.close()


def test_where_half_a_line_stays_nothing_is_written_behind_it(path):
    journal = Journal(path, WORK)
    journal._file = Half(journal._file, OSError(errno.ENOSPC, "No space left on device"), stays=True)
    with pytest.raises(FileError, match="No space left"):
        journal.write({"loss": 2.0})
    left = path.read_bytes()
    with pytest.raises(FileError, match="cannot be written"):
        journal.write({"loss": 3.0})
    assert path.read_bytes() == left
    journal.close()


@pytest.mark.skipif(os.name == "nt", reason="an open file cannot be removed there")
def test_a_journal_whose_folder_vanished_is_said_at_the_next_line(path):
    journal = Journal(path, WORK)
    journal.write({"loss": 1.0})
    shutil.rmtree(path.parent)
    for _ in range(2):
        with pytest.raises(FileError, match=r"a\.jsonl is gone: it or its folder was removed"):
            journal.write({"loss": 2.0})
    journal.close()


def test_a_file_system_without_locks_is_said(path, monkeypatch):
    def acquire(*_, **__):
        raise NotImplementedError("no flock")

    monkeypatch.setattr("budcache.storage.journal.FileLock.acquire", acquire)
    with pytest.raises(FileError, match="its file system has no locks"):
        Journal(path, WORK)


def test_closed_by_another_thread_it_is_free_again(path):
    journal = Journal(path, WORK)
    thread = threading.Thread(target=journal.close)
    thread.start()
    thread.join()
    Journal(path, WORK).close()


def test_closing_twice_does_not_free_the_lock_of_another(path):
    first = Journal(path, WORK)
    first.close()
    second = Journal(path, WORK)
    first.close()
    with pytest.raises(FileError, match="in use"):
        Journal(path, WORK)
    second.close()


@pytest.mark.parametrize("work", [{"model": "other"}, WORK])
def test_a_refused_journal_is_free_again(path, work):
    Journal(path, WORK).close()
    if work == WORK:
        path.write_text(path.read_text() + "garbage\n")
    for _ in range(2):
        with pytest.raises(SearchError, match=r"belongs to a search with model|has a line that cannot be used"):
            Journal(path, work)


def test_every_line_is_synced_to_the_disk(path, monkeypatch):
    synced = []
    stock = os.fsync

    def sync(descriptor):
        stock(descriptor)
        synced.append(path.read_bytes().count(b"\n"))

    monkeypatch.setattr(os, "fsync", sync)
    journal = Journal(path, WORK)
    for number in range(3):
        journal.write({"number": number})
    journal.close()
    assert synced == [1, 1, 2, 3, 4]  # after the first line its folder, too


WRITING = """
import itertools, sys
from budcache.storage.journal import Journal
journal = Journal(sys.argv[1], {"model": "toy"})
for number in itertools.count(len(journal.entries)):
    journal.write({"number": number, "more": "x" * number})
    print(number, flush=True)
"""


def test_killed_again_and_again_it_loses_no_line(path):
    done = -1
    for lines in (1, 7, 30):
        command = [sys.executable, "-c", WRITING, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for _ in range(lines):
                done = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
    journal = Journal(path, WORK)
    journal.close()
    numbers = [entry["number"] for entry in journal.entries]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) > done


def test_trouble_with_the_file_is_an_error_of_the_system_too(tmp_path):
    with pytest.raises(OSError, match="folder or a device"):
        Journal(tmp_path, WORK)
    with pytest.raises(BudcacheError, match="cannot be written: File name too long"):
        Journal(tmp_path / ("long" * 70), WORK)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"cannot be written: (Not a directory|File exists)"):
        Journal(tmp_path / "file" / "a.jsonl", WORK)
