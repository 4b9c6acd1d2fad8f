"""One Ray cluster of two nodes a session, three workers on it that have loaded tiny-flux, and what one process finds.

Processes that load torch and a pipeline take seconds to start, so as few of them as possible are started.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path

import pytest

from .same import MODEL, SEARCH

os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's workers let everybody else go first: long tests on busy cores
NODE = {"num_cpus": 2, "object_store_memory": 80 * 2**20, "include_dashboard": False}


def pytest_collection_modifyitems(items):
    """All in one process where tests run in several (`--dist loadgroup`), and patience with busy cores."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.xdist_group("workers"))
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def nodes():
    """A cluster of two nodes of two CPUs, to which this process is connected."""
    import ray
    from ray.cluster_utils import Cluster

    # A machine that does not answer five times is lost: here within three seconds, usually within fifteen.
    quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500}
    cluster = Cluster(initialize_head=True, head_node_args=NODE | {"_system_config": quick})
    try:
        cluster.add_node(**NODE)
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(scope="session")
def cluster(nodes):
    """Ray, connected to it."""
    import ray

    return ray


@pytest.fixture(scope="session")
def three(cluster):
    from budcache import Workers

    with Workers(3).started(MODEL) as team:
        yield team


@pytest.fixture
def team_of(three):
    """The first few of the three, as if the others were not there."""

    @contextmanager
    def team_of(count):
        everybody = three.fleet.members
        three.fleet.members = everybody[:count]
        try:
            yield three
        finally:
            three.fleet.members += everybody[count:]

    return team_of


@pytest.fixture(scope="session")
def pipe():
    """The same model in this process."""
    import budcache
    from budcache.pipeline.placing import realigned

    return realigned(budcache.load(MODEL))


@pytest.fixture(scope="session")
def alone(pipe, tmp_path_factory):
    """The search of one process, and its ledger."""
    import budcache

    ledger = tmp_path_factory.mktemp("alone") / "ledger.jsonl"
    return budcache.search(pipe, **SEARCH, ledger=ledger), ledger
