"""The cluster: a running one by its address, or one that is started on this machine for a job."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from budcache.errors import WorkerError

if TYPE_CHECKING:
    from budcache.workers.options import Workers

__all__ = ["connected", "engine"]

STORE = 128 * 2**20  # bytes for what goes between processes: matrices, no latents


def engine() -> Any:
    """Ray, or a sentence that says what to install."""
    try:
        import ray
    except ImportError:
        raise WorkerError(
            "workers need Ray, which is not installed. Install it here and on every machine of the cluster: "
            "pip install 'budcache[scale]'."
        ) from None
    return ray


@contextmanager
def connected(workers: Workers) -> Iterator[Any]:
    """Ray, connected to the cluster; who is connected already stays so."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # a worker without GPUs may look at them
    ray = engine()
    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if workers.address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        cpus = max(math.ceil((workers.count or 1) * workers.cpus), os.cpu_count() or 1)
        options |= {"num_cpus": cpus, "object_store_memory": STORE, "include_dashboard": False}
    try:
        ray.init(address=workers.address or "local", **options)
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0].split(". ")[0].rstrip(".")
        where = f"reached at {workers.address}" if workers.address else "started here"
        raise WorkerError(
            f"a Ray cluster cannot be {where}: {reason}. Check the address, or start one with `ray start --head`."
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()
