"""What workers may be, what is refused, and what is said where Ray is not installed."""

from __future__ import annotations

import sys

import pytest

import budcache
from budcache import PipelineError, SearchError, Workers
from budcache.errors import WorkerError


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"count": 0}, "0 workers do nothing"),
        ({"count": 1.5}, "must be whole"),
        ({"cpus": 0}, "cannot have 0 CPUs"),
        ({"gpus": -1}, "cannot have -1 GPUs"),
        ({"gpus": 1.5}, r"cannot have 1\.5 GPUs. Give it a part of one, or whole ones"),
        ({"cpus": float("nan")}, "cannot have nan CPUs"),
        ({"retries": -1}, "Choose 0 retries"),
        ({"patience": 0}, "a second or more"),
    ],
)
def test_what_cannot_be_is_refused(options, text):
    with pytest.raises(SearchError, match=text):
        Workers(**options)


@pytest.mark.parametrize(
    ("workers", "resources", "most", "count", "gpus"),
    [
        (Workers(), {"CPU": 8}, None, 8, 0),
        (Workers(), {"CPU": 8}, 3, 3, 0),
        (Workers(cpus=4), {"CPU": 10}, None, 2, 0),
        (Workers(), {"CPU": 64, "GPU": 8}, None, 8, 1),
        (Workers(gpus=0.25), {"CPU": 64, "GPU": 2}, None, 8, 0.25),
        (Workers(gpus=0), {"CPU": 6, "GPU": 2}, None, 6, 0),
        (Workers(5), {"CPU": 2}, 2, 5, 0),
        (Workers(cpus=9), {"CPU": 2}, None, 1, 0),
    ],
)
def test_there_are_as_many_as_there_is_room_for(workers, resources, most, count, gpus):
    found = workers.on(resources, most)
    assert (found.count, found.gpus) == (count, gpus)


def test_threads_are_whole():
    assert [Workers(cpus=cpus).threads for cpus in (0.5, 1, 2, 2.5)] == [1, 1, 2, 2]


def test_without_ray_a_sentence_says_what_to_install(monkeypatch, run_here, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(WorkerError, match=r"pip install 'budcache\[scale\]'"):
        budcache.search("tiny-flux", steps=8, budgets=3, prompts=["a", "b"], workers=Workers(2))
    code, _, errors = run_here("search", "tiny-flux", "-b", 3, "--workers", "ray", "--out", tmp_path / "a.json")
    assert code == 2
    assert "pip install 'budcache[scale]'" in errors


def test_a_name_is_for_workers():
    with pytest.raises(PipelineError, match=r"'tiny-flux' is a name, not a pipeline\. Load it with budcache\.load"):
        budcache.search("tiny-flux", steps=8, budgets=3, prompts=["a", "b"])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--worker-count", "2"], "there are no workers. Add --workers ray."),
        (["--gpus-per-worker", "0.5"], "--gpus-per-worker is 0.5, but there are no workers"),
        (["--workers", "here"], "--workers 'here' is no cluster"),
        (["--workers", "ray", "--cpus-per-worker", "0"], "cannot have 0 CPUs"),
    ],
)
def test_the_command_refuses(run_here, tmp_path, options, text):
    code, _, errors = run_here("search", "tiny-flux", "-b", 3, "--out", tmp_path / "a.json", *options)
    assert code == 2
    assert text in " ".join(errors.split())


def test_what_it_will_cost_needs_no_cluster(run_here):
    code, out, _ = run_here("search", "tiny-flux", "-b", 3, "-n", 4, "--workers", "ray", "--dry-run")
    assert code == 0
    assert "sample-calls" in out
