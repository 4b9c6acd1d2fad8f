"""Jobs on workers find what one process finds, to the last bit."""

from __future__ import annotations

import pytest

import budcache
from budcache import PipelineError, SearchError, Workers
from budcache.errors import WorkerError
from budcache.events import Progress, WorkerTold
from budcache.strategies import Limits
from budcache.workers.fleet import Fleet
from budcache.workers.team import Team, check_same

from .same import MODEL, SEARCH, STEPS, TEXTS, scores

pytestmark = pytest.mark.slow  # they start a cluster


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_search_finds_what_one_process_finds(alone, team_of, tmp_path, count):
    told = []
    with team_of(count) as team:
        found = budcache.search(team, **SEARCH, ledger=tmp_path / "l", watch=told.append)
    assert found.model_dump_json() == alone[0].model_dump_json()
    assert scores(tmp_path / "l") == scores(alone[1])
    assert found.searched.calls == alone[0].searched.calls
    workers = [event for event in told if isinstance(event, WorkerTold)]
    assert {event.worker for event in workers} == set(range(count))
    assert {event.state for event in workers} == {"working"}
    done = [event.sample_calls for event in told if isinstance(event, Progress)]
    assert done == sorted(done)
    assert done[-1] == found.searched.calls


MIXED = [{"prompt": text, "guidance_scale": 2.0 + i % 2} for i, text in enumerate(TEXTS[:4])]
FEW = {"steps": STEPS, "budgets": 3, "prompts": TEXTS[:4], "selection": 1, "batch": 2}
KINDS = {
    "residual": {"strategy": "ladder", "reuse": "residual"},
    "mixed": {"samples": MIXED, "prompts": ()},
    "limits": {"strategy": "anneal", "refine": "none", "limits": Limits(evaluations=12)},
    "pixel": {"strategy": "exhaustive", "steps": 4, "budgets": 2, "objective": "pixel", "teacher_steps": 8},
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_search_does(pipe, team_of, kind):
    with team_of(2) as team:
        here, there = (budcache.search(where, **{**FEW, **KINDS[kind]}) for where in (pipe, team))
    assert there.model_dump_json() == here.model_dump_json()


def test_fits_and_alignments_do(pipe, three, alone):
    plain = budcache.Ladder.of([budcache.Policy(mask=rung.mask) for rung in alone[0]])
    fitted = [budcache.fit(where, plain, prompts=TEXTS[:5], batch=2) for where in (pipe, three)]
    assert fitted[1].model_dump_json() == fitted[0].model_dump_json()
    aligned = [budcache.align(where, fitted[0], prompts=TEXTS[:5], batch=2) for where in (pipe, three)]
    assert aligned[1].model_dump_json() == aligned[0].model_dump_json()


@pytest.mark.slow
def test_comparisons_search_there(pipe, cluster, three, tmp_path):
    """Workers are started once for all of a comparison's searches, or are there already."""
    more = {"calibration": TEXTS[:4], "methods": ["budcache-plain", "authors"], "timed": [], "batch": 2}
    ladders, told = [], []
    for name, workers in (("here", None), ("there", Workers(1, load=MODEL)), ("team", three)):
        folder = tmp_path / name
        options = {**more, "watch": told.append if name == "there" else None, "workers": workers}
        budcache.compare(pipe, steps=STEPS, budgets=3, prompts=TEXTS[-1:], folder=folder, **options)
        ladders.append([path.read_text() for path in sorted(folder.glob("*.ladder.json"))])
    assert ladders[0] == ladders[1] == ladders[2]
    states = [event.state for event in told if isinstance(event, WorkerTold)]
    assert states.count("ready") == 1
    assert {event.job for event in told if isinstance(event, WorkerTold)} == {"compare"}


# What is refused


def of_somebody_who_has_this_file():
    """Workers do not have it: they were not started here."""


def test_what_goes_wrong_in_a_worker_is_said_here_and_does_not_end_it(cluster):
    def broken():
        raise OSError("no such disk")

    with Fleet(cluster, Workers(1)) as fleet:
        actor, process = fleet.members[0].actor, fleet.members[0].process
        for load, error, text in (
            (broken, OSError, "no such disk"),
            (lambda: 3, PipelineError, r"returned a int\. Return a diffusers pipeline"),
            ("no-such-model", PipelineError, "there is no model 'no-such-model'"),
            (
                of_somebody_who_has_this_file,
                WorkerError,
                r"cannot read what it was sent: ModuleNotFoundError.*installed on all machines",
            ),
        ):
            with pytest.raises(error, match=text):
                Team(fleet, load)
        assert cluster.get(actor.where.remote())[1] == process
    with pytest.raises(cluster.exceptions.RayActorError):  # nobody is left behind
        while True:  # Ray ends a worker some time after it was told to; `timeout` of pytest ends one that stays
            cluster.get(actor.where.remote())


def test_an_argument_that_the_pipeline_does_not_take_is_refused(three):
    with pytest.raises(PipelineError, match=r"FluxPipeline takes no argument 'hight'\. .* height\?$"):
        budcache.search(three, **SEARCH, call={"hight": 64})
    with pytest.raises(PipelineError, match="takes no argument 'no_such_thing'"):
        budcache.fit(three, some_policy(), prompts=TEXTS[:4], call={"no_such_thing": 1})


def some_policy():
    return budcache.Policy(mask="10100100")


def test_a_pipeline_of_this_process_is_not_sent(pipe):
    with pytest.raises(PipelineError, match=r"cannot be sent to workers.*Workers\(load=\.\.\.\)"):
        budcache.search(pipe, **SEARCH, workers=Workers(1))
    with pytest.raises(PipelineError, match="workers cannot load 3"):
        budcache.search(3, **SEARCH, workers=Workers(1))


def test_workers_with_another_model_than_the_one_that_is_here_are_refused(pipe, three):
    check_same(pipe, three)
    other = budcache.load(MODEL)
    other.scheduler = type(other.scheduler).from_config(other.scheduler.config, shift=2.5)
    with pytest.raises(PipelineError, match="another pipeline than the one that was given: its scheduler_settings is"):
        check_same(other, three)


def test_gradients_have_no_workers(three):
    for where, workers in ((three, None), (MODEL, Workers(2))):
        with pytest.raises(SearchError, match=r"by gradients one update follows the other.*Leave workers out"):
            budcache.align(where, some_policy(), prompts=TEXTS[:4], workers=workers)


def test_more_workers_than_room_are_refused_at_once(cluster, run_here, tmp_path):
    with (
        pytest.raises(
            WorkerError, match=r"no room for 1 worker: the cluster has 4 CPUs and 0 GPUs on 2 machines.*takes 3"
        ),
        Workers(1, cpus=3).started(MODEL),
    ):
        pass
    options = ("search", MODEL, "-b", 3, "--out", tmp_path / "a.json", "--workers", "ray", "--worker-count", 5)
    code, _, errors = run_here(*options)
    assert (code, "Traceback" in errors) == (2, False)
    assert "budcache: there is no room for 5 workers" in errors
    assert "so 4 fit. Ask for fewer or smaller ones, or leave the number out." in " ".join(errors.split())


def test_who_finds_all_places_taken_waits_and_says_so(three, cluster):
    with (
        Fleet(cluster, Workers(1)),
        pytest.raises(
            WorkerError, match=r"no room for a worker for 1 s: it has 0 CPUs .* free.*fewer or smaller workers"
        ),
        Fleet(cluster, Workers(1, patience=1)),
    ):
        pass


def test_another_cluster_than_the_one_at_hand_is_refused(cluster):
    with pytest.raises(WorkerError, match=r"connected to the Ray cluster at .* already.*ray\.shutdown\(\)"):
        budcache.search(MODEL, **SEARCH, workers=Workers(1, "10.0.0.1:6379"))
