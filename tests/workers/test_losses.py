"""Whoever dies is replaced, alone or with a whole machine, and what is found stays the same."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

import budcache
from budcache import Workers
from budcache.errors import WorkerError
from budcache.events import Scored, WorkerTold
from budcache.jobs.setup import Teaching
from budcache.workers.fleet import Fleet
from budcache.workers.shards import Shards
from budcache.workers.worker import Opening

from .conftest import NODE
from .same import MODEL, SEARCH, moving, scores

pytestmark = pytest.mark.slow


def told_of(told, *workers):
    """What was told of some workers."""
    return [event.state for event in told if isinstance(event, WorkerTold) and event.worker in workers]


def test_a_worker_that_is_killed_is_replaced(alone, three, tmp_path):
    told, victim = [], three.fleet.members[1]
    before, alive = victim.sample_calls, [victim.process]

    def watch(event):
        told.append(event)
        if isinstance(event, WorkerTold) and event.sample_calls > before + 40 and alive:
            os.kill(alive.pop(), signal.SIGKILL)

    found = budcache.search(three, **SEARCH, ledger=tmp_path / "l", watch=watch)
    assert moving(found) == moving(alone[0])
    assert scores(tmp_path / "l") == scores(alone[1])
    states = told_of(told, 1)
    assert states.count("lost") >= states.count("ready") >= 1  # now and then Ray loses who is to take the place, too
    assert states[-1] == "working"
    assert found.searched.calls >= alone[0].searched.calls


@pytest.mark.slow
def test_workers_of_a_lost_machine_are_replaced(alone, three, nodes, tmp_path):
    """The machine dies with all that runs on it, in the middle of the search; there is room on a third one."""
    lost = next(iter(nodes.worker_nodes))
    raylet = lost.all_processes["raylet"][0].process.pid
    victims = [member.number for member in three.fleet.members if psutil.Process(member.process).ppid() == raylet]
    assert 1 <= len(victims) <= 2
    nodes.add_node(**NODE)
    told = []

    def watch(event):
        told.append(event)
        if isinstance(event, Scored) and lost in nodes.worker_nodes:
            nodes.remove_node(lost, allow_graceful=False)

    found = budcache.search(three, **SEARCH, ledger=tmp_path / "l", watch=watch)
    assert moving(found) == moving(alone[0])
    assert scores(tmp_path / "l") == scores(alone[1])
    states = told_of(told, *victims)
    assert states.count("lost") >= states.count("ready") >= len(victims)


@pytest.mark.slow
def test_who_dies_too_often_ends_the_job_and_one_process_goes_on(alone, pipe, cluster, tmp_path):
    ledger, workers = tmp_path / "ledger.jsonl", Workers(1, retries=0)
    with workers.started(MODEL) as team:

        def watch(event):
            if isinstance(event, Scored):
                os.kill(team.fleet.members[0].process, signal.SIGKILL)

        with pytest.raises(WorkerError, match=r"worker 0 on .* died 1 time in a row.*goes on from there"):
            budcache.search(team, **SEARCH, ledger=ledger, watch=watch)
    known = scores(ledger)
    assert known == scores(alone[1])[: len(known)]
    assert known
    found = budcache.search(pipe, **SEARCH, ledger=ledger)
    assert moving(found) == moving(alone[0])
    assert found.searched.earlier > 0


def starving(mark):
    """What loads tiny-flux so that it runs out of memory once, whoever is first: in the middle of a full run."""

    def load():
        from pathlib import Path

        pipe, calls = budcache.load(MODEL), []

        def hook(*_):
            calls.append(1)
            if len(calls) == 5 and not Path(mark).exists():
                Path(mark).touch()
                raise MemoryError("on purpose")

        pipe.transformer.register_forward_pre_hook(hook)
        return pipe

    return load


def test_a_worker_that_runs_out_of_memory_is_replaced(alone, cluster, tmp_path):
    told = []
    with Workers(1).started(starving(str(tmp_path / "mark"))) as team:
        found = budcache.search(team, **SEARCH, ledger=tmp_path / "l", watch=told.append)
    assert (tmp_path / "mark").exists()
    assert told_of(told, 0).count("lost") >= 1
    assert moving(found) == moving(alone[0])
    assert scores(tmp_path / "l") == scores(alone[1])


# Without a model, so that workers start in a second: each answers with its run's number and the question's.


OPENING = Opening(None, Teaching(), 0, {number: {} for number in range(5)})
EXPECTED = [[(question, number) for number in range(5)] for question in (7, 8)]


def counter(dies=False, starves=()):
    """A worker that only counts; defined in here, so that it is sent as it is."""

    class Counter:
        def load(self, source, threads, gpus):
            pass

        def where(self):
            return "here", os.getpid()

        def work(self, key, opening, numbers, questions):
            from budcache.workers.worker import Report

            if set(numbers) & set(starves):
                from budcache.workers.worker import Starved

                raise Starved("on purpose")
            if dies and questions:
                os.kill(os.getpid(), signal.SIGKILL)
            facts = dict.fromkeys(opening.calls, "known") if opening is not None else {}
            return Report(facts, [[(question, number) for number in numbers] for question in questions], 1)

    return Counter


def test_where_there_is_no_room_for_another_the_others_take_over(nodes, cluster):
    told, coming = [], [nodes.add_node(**NODE | {"num_cpus": 4}) for _ in range(2)]
    try:
        with Fleet(cluster, Workers(2, cpus=4, patience=300), told.append, kind=counter()) as fleet:
            shards = Shards(fleet, OPENING, None)
            shards.teach()
            assert list(shards.ask([7, 8])) == EXPECTED
            nodes.remove_node(coming.pop(), allow_graceful=False)  # nobody waits for the 300 s
            while len(fleet.members) == 2:  # processes outlive their machine for a moment
                assert list(shards.ask([7, 8])) == EXPECTED
            lost = next(event.worker for event in told if event.state == "gone")
            assert told_of(told, lost)[-2:] == ["lost", "gone"]
            nodes.remove_node(coming.pop(), allow_graceful=False)
            with pytest.raises(WorkerError, match="no room for a worker"):
                while True:
                    list(shards.ask([7, 8]))
    finally:
        for node in coming:
            nodes.remove_node(node)


def test_retries_have_a_limit(cluster):
    told = []
    with Fleet(cluster, Workers(1, cpus=0.5, retries=2), told.append, kind=counter(dies=True)) as fleet:
        shards = Shards(fleet, OPENING, None)
        shards.teach()
        with pytest.raises(WorkerError, match=r"worker 0 on here died 3 times in a row.*goes on from there"):
            list(shards.ask([7, 8]))
    assert told_of(told, 0).count("lost") == 3


def test_who_runs_out_of_memory_again_and_again_says_so_even_if_others_answer_in_between(cluster):
    told, said = [], r"ran out of memory 3 times in a row \(on purpose\).*a smaller batch"
    hands = Fleet(cluster, Workers(1, cpus=0.5, retries=2), told.append, kind=counter(starves=[2]))
    with hands as fleet, pytest.raises(WorkerError, match=said):
        Shards(fleet, OPENING, None).teach()
    states = told_of(told, 0)
    assert states.count("lost") >= 3  # now and then Ray loses one by itself
    assert "working" in states


def test_who_cannot_take_a_place_gives_it_up(cluster):
    def refuse(member):
        raise ValueError("another version")

    told = []
    with Fleet(cluster, Workers(2, cpus=0.5), told.append, kind=counter()) as fleet:
        fleet.load("anything")
        fleet.check = refuse
        shards = Shards(fleet, OPENING, None)
        shards.teach()
        os.kill(fleet.members[0].process, signal.SIGKILL)
        assert list(shards.ask([7, 8])) == EXPECTED
        assert told_of(told, 0)[-2:] == ["lost", "gone"]
        os.kill(fleet.members[0].process, signal.SIGKILL)
        with pytest.raises(ValueError, match="another version"):
            list(shards.ask([7, 8]))
