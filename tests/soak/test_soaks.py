"""The soaks, in short: the same code as `make soak`, few times each. See `docs/reliability.md`."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from soak import disks, failures, startup, threads, total, writes, zoo
from soak.common import Broken, require

ROOT = Path(__file__).parent.parent.parent
posix = pytest.mark.skipif(os.name == "nt", reason="no such signals and limits there")


def test_a_broken_promise_is_an_error():
    require(1, "kept")
    with pytest.raises(Broken, match="half a file"):
        require(0, "half a file")


@posix
def test_files_are_whole_after_kills_and_a_ledger_cut_at_every_byte_goes_on():
    found = writes.soak(seed=1, count=1)
    assert found["kills"] == len(writes.KINDS)
    assert found["ledger"]["cuts"] > 1000


@posix
def test_trouble_with_disks_is_a_sentence_and_loses_nothing():
    found = disks.soak(seed=1, count=1)
    assert found["troubles"] == len(disks.TROUBLE) * len(writes.KINDS) + 4


@pytest.mark.slow
@posix
def test_nothing_is_left_of_failures_inside_of_a_pipeline():
    assert failures.soak(seed=1, count=25)["failures"] == 25


def test_threads_on_shared_networks_draw_what_one_thread_draws():
    found = threads.soak(seed=1, count=48)
    assert found["runs"] == 48
    assert found["switched"]["budget"] > 8
    assert found["switched"]["ladder"] > 8
    assert [sum(each.values()) for each in found["misused"].values()] == [2, 2]


def test_kinds_of_the_zoo_keep_the_promises_of_few():
    found = zoo.soak(seed=1, count=2)
    assert found["kinds"] == 2
    assert found["use"] == 2


@posix
@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("kills", 5), ("hostile", 500), ("release", 1)])
def test_those_that_take_a_process_of_their_own(name, count):
    """They fork, limit their memory or build: not within a process that tests share."""
    command = [sys.executable, "-m", f"soak.{name}", "--count", str(count)]
    borrowing = {**os.environ, "BUDCACHE_SOAK_BORROW": "1"}
    done = subprocess.run(command, cwd=ROOT, env=borrowing, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


def test_parts_add_up():
    parts = [
        {"soak": "a", "seed": 0, "count": 2, "runs": 2, "kinds": {"x": {"refused": 1, "slowest_ms": 3}}},
        {"soak": "a", "seed": 1, "count": 3, "runs": 3, "kinds": {"x": {"refused": 2, "slowest_ms": 2}}, "broken": "b"},
    ]
    (found,) = total.total([json.dumps(part) for part in parts])
    assert found == {
        "soak": "a",
        "seed": "0, 1",
        "count": 5,
        "runs": 5,
        "parts": 2,
        "broken": "b",
        "kinds": {"x": {"refused": 3, "slowest_ms": 3}},
    }


def test_of_a_time_that_was_taken_twice_the_least_counts():
    parts = [{"soak": "a", "import": {"seconds": 2.0, "of_processor": 0.3}, "seconds": 4},
             {"soak": "a", "import": {"seconds": 1.0, "of_processor": 0.4}, "seconds": 5}]  # fmt: skip
    (found,) = total.total([json.dumps(part) for part in parts])
    assert found == {"soak": "a", "import": {"seconds": 1.0, "of_processor": 0.3}, "seconds": 9, "parts": 2}


@pytest.mark.parametrize("limit", [0.0, math.inf])
def test_a_start_that_takes_longer_than_it_may_is_broken(limit, monkeypatch):
    """How long starts take is for `make soak` to judge; here it is whether they run, and whether the limit counts."""
    monkeypatch.setattr(startup, "LIMIT", limit)
    found = startup.soak(seed=0, count=1)
    assert {"bare", "import", "help"} <= found.keys()
    assert ("import takes" in found.get("broken", "")) == (limit == 0.0)
