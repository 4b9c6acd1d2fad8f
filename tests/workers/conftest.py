"""One local Ray cluster a session, and three workers on it that have loaded tiny-flux."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

MODEL = "tiny-flux"


@pytest.fixture(scope="session")
def cluster():
    import ray

    ray.init(address="local", num_cpus=4, object_store_memory=80 * 2**20, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


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
