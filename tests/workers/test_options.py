"""What workers may be, what is refused, and what is said where Ray is not installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import budcache
from budcache import PipelineError, SearchError, Workers
from budcache.errors import WorkerError
from budcache.events import WorkerTold
from budcache.jobs.watching import Crew
from budcache.workers.cluster import check_address


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
    ("workers", "machines", "most", "count", "gpus"),
    [
        (Workers(), [{"CPU": 8}], None, 8, 0),
        (Workers(), [{"CPU": 8}], 3, 3, 0),
        (Workers(cpus=4), [{"CPU": 10}], None, 2, 0),
        (Workers(cpus=3), [{"CPU": 4}, {"CPU": 5}], None, 2, 0),
        (Workers(cpus=0.1), [{"CPU": 0.3}], None, 3, 0),
        (Workers(), [{"CPU": 64, "GPU": 8}, {"CPU": 64}], None, 8, 1),
        (Workers(), [{"CPU": 4, "GPU": 8}], None, 4, 1),
        (Workers(gpus=0.25), [{"CPU": 64, "GPU": 2}], None, 8, 0.25),
        (Workers(gpus=0), [{"CPU": 6, "GPU": 2}], None, 6, 0),
        (Workers(5), [{"CPU": 6}], 2, 5, 0),
    ],
)
def test_there_are_as_many_as_there_is_room_for(workers, machines, most, count, gpus):
    found = workers.on(machines, most)
    assert (found.count, found.gpus) == (count, gpus)


@pytest.mark.parametrize(
    ("workers", "machines", "text"),
    [
        (
            Workers(5),
            [{"CPU": 2}, {"CPU": 2}],
            "no room for 5 workers: the cluster has 4 CPUs and 0 GPUs on 2 machines",
        ),
        (Workers(cpus=9), [{"CPU": 8}, {"CPU": 8}], "each worker takes 9 and 0, so 0 fit"),
        (Workers(2, gpus=1), [{"CPU": 8, "GPU": 1}], "each worker takes 1 and 1, so 1 fit. Ask for fewer"),
        (Workers(gpus=1), [{"CPU": 8}], "no room for 1 worker"),
    ],
)
def test_more_than_there_is_room_for_are_refused(workers, machines, text):
    with pytest.raises(WorkerError, match=text):
        workers.on(machines)


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("head:port", "'head:port' is no address of a cluster. Write auto, HOST:PORT or ray://HOST:PORT"),
        ("ray://", "is no address of a cluster"),
        ("ray://head", "is no address of a cluster"),
        (":6379", "is no address of a cluster"),
        ("head:65536", "with a port from 1 to 65535"),
        ("no-such-host.invalid:6379", r"reached at no-such-host.invalid:6379: nobody answers.*Check the address"),
        ("127.0.0.1:1", r"nobody answers at 127\.0\.0\.1:1: Connection refused\. Check the address"),
        ("ray://127.0.0.1:1", r"reached at ray://127\.0\.0\.1:1: nobody answers.* `ray start --head`\.$"),
        ("[::1]:1", r"nobody answers at \[::1\]:1"),
        ("a..b:6379", r"nobody answers at a\.\.b:6379"),
    ],
)
def test_an_address_where_nobody_answers_is_refused_at_once(address, text):
    with pytest.raises(WorkerError, match=text):
        check_address(address)


def test_a_bar_shows_every_worker_and_of_many_the_least_and_the_most():
    crew = Crew()
    assert str(crew) == ""
    for worker, calls in ((1, 30), (0, 40)):
        crew.hear(WorkerTold("search", worker, 2, "working", 1, calls, "here"))
    assert str(crew) == "2 workers: 40+30"
    crew.hear(WorkerTold("search", 0, 2, "gone", 1, 40, "here"))
    assert str(crew) == "1 worker: 30"
    for worker in range(9):
        crew.hear(WorkerTold("search", worker, 9, "working", 1, 10 + worker, "here"))
    assert str(crew) == "9 workers: 10 to 18 each"


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


def test_the_command_refuses_alignment_by_gradients_before_anybody_is_started(run_here, tmp_path):
    budcache.Ladder.of([budcache.Policy(mask="10100100")]).save(tmp_path / "plain.json")
    options = (
        "--method",
        "gradient",
        "--model",
        "tiny-flux",
        "-n",
        4,
        "--out",
        tmp_path / "a.json",
        "--workers",
        "ray",
    )
    code, _, errors = run_here("align", tmp_path / "plain.json", *options)
    assert code == 2
    assert errors.startswith(
        "budcache: by gradients one update follows the other, so workers would wait for each other."
    )


def test_what_lies_on_this_disk_is_named_to_workers_by_its_whole_path(tmp_path, monkeypatch):
    """They run in another folder."""
    from budcache.cli.common import loader
    from budcache.models import located

    (tmp_path / "model").mkdir()
    (tmp_path / "tiny-flux").mkdir()
    (tmp_path / "turbo").mkdir()
    (tmp_path / "style.safetensors").touch()
    monkeypatch.chdir(tmp_path)
    assert located("model") == located("./model") == located(Path("model")) == str(tmp_path / "model")
    assert located("tiny-flux") == "tiny-flux"
    assert located("./tiny-flux") == str(tmp_path / "tiny-flux")
    assert located("owner/name") == "owner/name"
    assert loader("model", None, None, "style.safetensors", 1.0).args[::3] == (
        str(tmp_path / "model"),
        str(tmp_path / "style.safetensors"),
    )
    assert loader("tiny-flux", None, None, "turbo", 1.0).args[::3] == ("tiny-flux", "turbo")
    assert loader("tiny-flux", None, None, None, 1.0).args[::3] == ("tiny-flux", None)
