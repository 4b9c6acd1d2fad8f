"""A cluster that is lost to somebody who came from outside (`ray://`): whatever Ray raises there is one sentence."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from budcache import Workers
from budcache.errors import WorkerError
from budcache.jobs.setup import Teaching
from budcache.workers.cluster import _why_not, check_there, machines
from budcache.workers.fleet import Fleet, Member
from budcache.workers.shards import Shards
from budcache.workers.worker import Opening

# What a client raises while it tries to come back, and once it has given up.
ERRORS = [ConnectionError("Failed to reconnect"), Exception("Ray Client is not connected. Please connect.")]
KINDS = ("RayActorError", "WorkerCrashedError", "NodeDiedError", "OutOfMemoryError", "ObjectLostError")


class Gone:
    """An engine or an actor of which every call fails; a message that was sent, when it is looked up."""

    def __init__(self, error, late=False):
        self.error, self.late = error, late

    def __getattr__(self, name):
        return self

    def __call__(self, *_, **__):
        if self.late:
            return self
        raise self.error

    def __hash__(self):
        raise self.error


def fleet_without(error, late):
    kinds = {name: type(name, (Exception,), {}) for name in (*KINDS, "RaySystemError", "RayTaskError")}
    there = SimpleNamespace(
        exceptions=SimpleNamespace(**kinds), nodes=lambda: [{"Alive": True, "Resources": {"CPU": 4}}]
    )
    fleet = Fleet(there, Workers(2))
    fleet.ray = SimpleNamespace(exceptions=there.exceptions, nodes=Gone(error), wait=Gone(error), kill=Gone(error))
    fleet.members = [Member(number, Gone(error, late)) for number in range(2)]
    return fleet


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_every_way_to_notice_it_is_a_sentence(error, late):
    fleet = fleet_without(error, late)
    shards = Shards(fleet, Opening(None, Teaching(), 0, {0: {}, 1: {}}), None)
    for ask in (shards.teach, lambda: machines(fleet.ray), lambda: check_there(fleet.ray), lambda: fleet.load("a")):
        with pytest.raises(WorkerError, match=r"the Ray cluster is lost \(.*goes on from there") as caught:
            ask()
        assert "\n" not in str(caught.value)
    # Afterwards nothing takes the place of the sentence.
    shards.forget(None)
    shards.forget_finals(0)
    shards.close()
    fleet.end()
    assert fleet.members == []


def test_what_a_server_says_of_itself_is_not_repeated_whole():
    error = ConnectionAbortedError(
        'Initialization failure: Traceback:\n  File "a.py"\nRuntimeError: It failed. See log.'
    )
    assert "reached at ray://a:1: RuntimeError: It failed. Set" in _why_not("ray://a:1", error)
