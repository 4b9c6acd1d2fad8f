from __future__ import annotations

import sys

import pytest
from comparing import METHODS, started


@pytest.fixture
def brief(monkeypatch):
    """Timing ends after the fewest pairs that there may be, also on a busy machine."""
    from budcache.comparison import timing

    monkeypatch.setattr(timing, "SECONDS", 0.0)
    monkeypatch.setattr(timing, "MANY_PAIRS", timing.LEAST_PAIRS)


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A tiny pipeline in a folder, with prompts beside it."""
    from zoo import entry

    home = tmp_path_factory.mktemp("home")
    entry("flux").build().save_pretrained(home / "tiny")
    (home / "measured.txt").write_text("a cat\nred <b>\n")
    (home / "learned.txt").write_text("a house\na tree\na boat\nthe sea\n")
    return home


@pytest.fixture(scope="session")
def command(model):
    """The comparison that several tests run; in all of them it must end the same."""
    return [
        *("compare", model / "tiny", "--steps", 6, "--budgets", "2,3", "--methods", ",".join(METHODS)),
        *("--prompts", model / "measured.txt", "--calibration", model / "learned.txt"),
        *("--height", 32, "--width", 32, "--batch", 2, "--timed", "none"),
    ]


@pytest.fixture(scope="session")
def compared(command, tmp_path_factory):
    """A comparison that nobody disturbed: its folder, and what was printed."""
    folder = tmp_path_factory.mktemp("compared")
    process = started(*command, "--out", folder / "out", cwd=folder)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    return folder / "out", output, errors


@pytest.fixture
def run_here(monkeypatch, capsys):
    """The command in this process: exit code, output and errors."""
    from budcache.cli import main

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["budcache", *map(str, arguments)])
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        return code, *capsys.readouterr()

    return run
