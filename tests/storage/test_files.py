"""Files that are replaced whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from budcache.errors import FileError
from budcache.storage.files import replacing, write_json


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("old")
    return path


def test_the_new_takes_the_place_of_the_old_at_the_end(page):
    with replacing(page) as new:
        new.write_text("new")
        assert page.read_text() == "old"
        assert (new.parent, new.suffix) == (page.parent, ".html")
    assert page.read_text() == "new"
    assert names(page.parent) == ["page.html"]


def test_the_contents_are_synced_before_the_name_and_the_name_after(page, monkeypatch):
    """Or a power cut could leave the new name with nothing in it, or no name at all."""
    happened, stock, replace = [], os.fsync, type(page).replace

    def sync(descriptor):
        happened.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")  # noqa: PTH112
        stock(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(type(page), "replace", lambda *paths: (happened.append("name"), replace(*paths))[1])
    write_json(page, {"new": 1})
    assert happened in (["file", "name", "folder"], ["file", "name", "file"])  # where there is no /proc


def test_folders_are_made(tmp_path):
    with replacing(tmp_path / "a" / "b" / "page.html") as new:
        new.write_text("new")
    assert (tmp_path / "a" / "b" / "page.html").read_text() == "new"


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), FileError("another file")])
def test_an_error_inside_passes_and_leaves_the_old(page, error):
    with pytest.raises(type(error)) as caught, replacing(page) as new:
        new.write_text("half")
        raise error
    assert caught.value is error
    assert page.read_text() == "old"
    assert names(page.parent) == ["page.html"]


def test_a_full_disk_is_said_and_leaves_the_old(page):
    with pytest.raises(FileError, match=r"page\.html cannot be written: No space left on device\."), replacing(page):
        raise OSError(28, os.strerror(28))
    assert page.read_text() == "old"


def test_contents_that_cannot_be_are_a_wrong_value(tmp_path):
    with pytest.raises(ValueError, match="cannot be written"):
        write_json(tmp_path / "a.json", {"x": float("nan")})
    assert names(tmp_path) == []


KILLED = """
import os, sys, signal
from budcache.storage.files import replacing
with replacing(sys.argv[1]) as new:
    new.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_leaves_the_old(page):
    code = subprocess.run([sys.executable, "-c", KILLED, str(page)], check=False).returncode
    assert code == -signal.SIGKILL
    assert page.read_text() == "old"
