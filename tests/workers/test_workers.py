"""Jobs on workers find what one process finds, to the last bit; whoever dies is replaced."""

from __future__ import annotations

import json
import os
import signal

import pytest

import budcache
from budcache import PipelineError, SearchError, Workers
from budcache.errors import WorkerError
from budcache.events import Progress, WorkerTold
from budcache.models import prompts

pytestmark = pytest.mark.timeout(1200)  # processes that load torch and a pipeline take long to start on busy cores

STEPS = 8
TEXTS = prompts("tiny-flux", "calibration")
# Five samples to search on in runs of two, two and one, and two to judge by: no number of workers but one divides them.
SEARCH = {"steps": STEPS, "budgets": [3, 4], "prompts": TEXTS[:7], "selection": 2, "batch": 2}


def moving(ladder):
    """What a ladder does and how good it is, whatever it cost."""
    return [rung.model_dump(exclude={"origin": {"calls"}, "refined": {"__all__": {"calls"}}}) for rung in ladder]


def scores(ledger):
    """What a ledger knows, whatever it cost."""
    lines = [json.loads(line) for line in ledger.read_text().splitlines()[1:]]
    return [{key: value for key, value in line.items() if key != "calls"} for line in lines if "mask" in line]


@pytest.fixture(scope="module")
def alone(pipe, tmp_path_factory):
    """The search of one process, and its ledger."""
    ledger = tmp_path_factory.mktemp("alone") / "ledger.jsonl"
    return budcache.search(pipe, **SEARCH, refine="full", ledger=ledger), ledger


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_search_finds_what_one_process_finds(alone, team_of, tmp_path, count):
    told = []
    with team_of(count) as team:
        found = budcache.search(team, **SEARCH, refine="full", ledger=tmp_path / "l", watch=told.append)
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
LIMITS = budcache.strategies.Limits(evaluations=12)


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"strategy": "ladder", "reuse": "residual"}, id="residual"),
        pytest.param({"samples": MIXED, "prompts": ()}, id="mixed"),
        pytest.param(
            {"strategy": "anneal", "refine": "none", "limits": LIMITS, "budgets": 3},
            id="limits",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"strategy": "exhaustive", "steps": 5, "objective": "pixel", "teacher_steps": 10},
            id="pixel",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_every_kind_of_search_does(pipe, team_of, how):
    with team_of(2) as team:
        here, there = (budcache.search(where, **{**SEARCH, "selection": 1, **how}) for where in (pipe, team))
    assert there.model_dump_json() == here.model_dump_json()


def test_fits_and_alignments_do(pipe, three, alone):
    plain = budcache.Ladder.of([budcache.Policy(mask=rung.mask) for rung in alone[0]])
    fitted = [budcache.fit(where, plain, prompts=TEXTS[:5], batch=2) for where in (pipe, three)]
    assert fitted[1].model_dump_json() == fitted[0].model_dump_json()
    aligned = [budcache.align(where, fitted[0], prompts=TEXTS[:5], batch=2) for where in (pipe, three)]
    assert aligned[1].model_dump_json() == aligned[0].model_dump_json()


@pytest.mark.slow
def test_comparisons_search_there(pipe, cluster, tmp_path):
    more = {"calibration": TEXTS[:4], "methods": ["budcache-plain", "fewer-steps"], "timed": [], "batch": 2}
    ladders = []
    for name, workers in (("here", None), ("there", Workers(2, load="tiny-flux"))):
        folder = tmp_path / name
        budcache.compare(pipe, steps=STEPS, budgets=3, prompts=TEXTS[-1:], folder=folder, workers=workers, **more)
        ladders.append((folder / "budcache-plain.ladder.json").read_text())
    assert ladders[0] == ladders[1]


def test_a_worker_that_is_killed_is_replaced(alone, three, tmp_path):
    told, victim = [], three.fleet.members[1]

    def watch(event):
        told.append(event)
        if isinstance(event, WorkerTold) and event.sample_calls > before + 40 and victim.generation == generation:
            os.kill(victim.process, signal.SIGKILL)

    before, generation = victim.sample_calls, victim.generation
    found = budcache.search(three, **SEARCH, refine="full", ledger=tmp_path / "l", watch=watch)
    assert moving(found) == moving(alone[0])
    assert scores(tmp_path / "l") == scores(alone[1])
    states = [event.state for event in told if isinstance(event, WorkerTold) and event.worker == 1]
    assert states.count("lost") == states.count("ready") == 1
    assert states[-1] == "working"
    assert found.searched.calls >= alone[0].searched.calls


def test_who_dies_too_often_ends_the_job_and_one_process_goes_on(alone, pipe, cluster, tmp_path):
    ledger, workers = tmp_path / "ledger.jsonl", Workers(1, retries=0)
    with workers.started("tiny-flux") as team:

        def watch(event):
            if isinstance(event, budcache.events.Scored):
                os.kill(team.fleet.members[0].process, signal.SIGKILL)

        with pytest.raises(WorkerError, match=r"worker 0 on .* died 1 time in a row.*goes on from there"):
            budcache.search(team, **SEARCH, refine="full", ledger=ledger, watch=watch)
    known = scores(ledger)
    assert known == scores(alone[1])[: len(known)]
    assert known
    found = budcache.search(pipe, **SEARCH, refine="full", ledger=ledger)
    assert moving(found) == moving(alone[0])
    assert found.searched.earlier > 0


def test_no_actor_is_left_behind(cluster):
    with pytest.raises(ZeroDivisionError), Workers(1).started("tiny-flux") as team:
        actor = team.fleet.members[0].actor
        1 / 0  # noqa: B018
    with pytest.raises(cluster.exceptions.RayActorError):
        cluster.get(actor.where.remote())


# What is refused


def test_what_goes_wrong_in_a_worker_is_said_here(cluster):
    def broken():
        raise OSError("no such disk")

    for load, error, text in (
        (broken, OSError, "no such disk"),
        (lambda: 3, PipelineError, r"returned a int\. Return a diffusers pipeline"),
        ("no-such-model", PipelineError, "there is no model 'no-such-model'"),
        (alone_policy, WorkerError, r"cannot read what it was sent: ModuleNotFoundError.*installed on all machines"),
    ):
        with pytest.raises(error, match=text), Workers(1).started(load):
            pass


def test_an_argument_that_the_pipeline_does_not_take_is_refused(three):
    with pytest.raises(PipelineError, match=r"FluxPipeline takes no argument 'hight'\. .* height\?$"):
        budcache.search(three, **SEARCH, call={"hight": 64})
    with pytest.raises(PipelineError, match="takes no argument 'no_such_thing'"):
        budcache.fit(three, alone_policy(), prompts=TEXTS[:4], call={"no_such_thing": 1})


def alone_policy():
    return budcache.Policy(mask="10100100")


def test_a_pipeline_of_this_process_is_not_sent(pipe, cluster):
    with pytest.raises(PipelineError, match=r"cannot be sent to workers.*Workers\(load=\.\.\.\)"):
        budcache.search(pipe, **SEARCH, workers=Workers(1))
    with pytest.raises(PipelineError, match="workers cannot load 3"):
        budcache.search(3, **SEARCH, workers=Workers(1))


def test_workers_with_another_model_than_the_one_that_is_here_are_refused(pipe, cluster):
    def other():
        pipe = budcache.load("tiny-flux")
        pipe.scheduler = type(pipe.scheduler).from_config(pipe.scheduler.config, shift=2.5)
        return pipe

    with (
        pytest.raises(PipelineError, match="another pipeline than the one that was given: its scheduler_settings is"),
        Workers(1, load=other).started(pipe),
    ):
        pass


def test_gradients_have_no_workers(three):
    with pytest.raises(SearchError, match="one update follows the other"):
        budcache.align(three, alone_policy(), prompts=TEXTS[:4])


def test_a_cluster_without_room_is_a_sentence(cluster):
    with (
        pytest.raises(WorkerError, match=r"no room for a worker for 1 s.*each worker takes 64 and 0"),
        Workers(1, cpus=64, patience=1).started("tiny-flux"),
    ):
        pass


def test_the_command_finds_the_same(run_here, three, pipe, tmp_path):
    out = tmp_path / "found.json"
    options = ["--budgets", 3, "--steps", STEPS, "--count", 4, "--batch", 2, "--out", out]
    code, _, errors = run_here("search", "tiny-flux", *options, "--workers", "ray", "--worker-count", 2)
    assert (code, "Traceback" in errors) == (0, False)
    here = budcache.search(pipe, steps=STEPS, budgets=3, prompts=TEXTS[:4], batch=2)
    assert budcache.Ladder.load(out).model_dump_json() == here.model_dump_json()
