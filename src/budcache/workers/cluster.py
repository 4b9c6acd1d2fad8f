"""The cluster: a running one by its address, or one that is started on this machine for a job."""

from __future__ import annotations

import itertools
import logging
import math
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from budcache.errors import WorkerError
from budcache.wording import quote

if TYPE_CHECKING:
    from budcache.workers.options import Workers

__all__ = ["GOES_ON", "asking", "check_address", "check_there", "connected", "engine", "lost", "machines"]

STORE = 128 * 2**20  # bytes for what goes between processes: matrices, no latents
ANSWERS = 5.0  # seconds in which a machine that is there answers
# Seconds without an answer after which a cluster is lost. After 60, Ray would end this process without a word of ours.
LOST = 15.0
# How often to connect from outside where Ray says this. All but the last: the process that was to serve a client died
# at its start, and the words depend on when. It is forked from a process with threads of gRPC, and some of those forks
# go wrong; the next one is another. The last: nobody answered for half a minute, on a busy machine or at a wrong port.
TRIES = {
    "Starting Ray client server failed": 5,
    "psutil.ZombieProcess": 5,
    "Proxy failed to Connect to backend": 5,
    "a session that has already been cleaned up": 5,
    "Failed to serialize response": 5,
    "connection timeout": 2,
}
GOES_ON = "What was scored is in the ledger, if there is one, and the same job goes on from there"


class _Silent(ConnectionError):
    """Nobody answers at an address."""


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
    os.environ.setdefault("RAY_CLIENT_RECONNECT_GRACE_PERIOD", str(int(LOST)))
    ray, address = engine(), workers.address
    if ray.is_initialized():
        _check_same(ray, address)
        yield ray
        return
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        cpus = max(math.ceil((workers.count or 1) * workers.cpus), os.cpu_count() or 1)
        options |= {"num_cpus": cpus, "object_store_memory": STORE, "include_dashboard": False}
    elif address != "auto":
        check_address(address)
    try:
        _connect(ray, address, options)
        yield ray
    finally:  # also where Ctrl-C came while it was being started
        with suppress(Exception):  # a client whose cluster is lost: that was said already
            ray.shutdown()


def _connect(ray: Any, address: str | None, options: dict[str, Any]) -> None:
    """Connect, and where a cluster has no server for this client or is too busy to answer, try again (`TRIES`)."""
    for tried in itertools.count(1):
        try:
            ray.init(address=address or "local", **options)
            return
        except Exception as error:  # errors of many libraries, gRPC's own among them
            if tried >= max((tries for words, tries in TRIES.items() if words in str(error)), default=1):
                raise WorkerError(_why_not(address, error)) from None
            with suppress(Exception):  # it is not connected, and may say so
                ray.shutdown()


def machines(ray: Any) -> list[dict[str, float]]:
    """What each machine of the cluster has: CPUs, GPUs."""
    with asking():
        return [node["Resources"] for node in ray.nodes() if node["Alive"]]


@contextmanager
def asking() -> Iterator[None]:
    """Calls of a client whose cluster does not answer any more are told as what they are: the cluster is lost."""
    try:
        yield
    except Exception as error:
        # Once it has given up, Ray raises a plain Exception.
        if isinstance(error, ConnectionError) or "Ray Client is not connected" in str(error):
            raise lost(error) from None
        raise


def check_there(ray: Any) -> None:
    """Raise a sentence where the cluster is lost, or this machine is no longer part of it."""
    try:
        if not ray.util.client.ray.is_connected():  # a client's own calls fail where its cluster is lost
            _wait_for(ray.get_runtime_context().gcs_address)
        me, nodes = ray.get_runtime_context().get_node_id(), ray.nodes()
    except Exception as error:  # whatever it is: who is there answers
        raise lost(error) from None
    if not any(node["Alive"] for node in nodes if node["NodeID"] == me):
        raise lost("this machine is no longer part of it")


def lost(reason: object) -> WorkerError:
    """What is said where there is no cluster any more."""
    why = " ".join(str(reason).split()).rstrip(".")
    return WorkerError(f"the Ray cluster is lost ({why}). {GOES_ON}, with another cluster or none.")


def _wait_for(address: str) -> None:
    """Wait until the cluster's head answers, or raise what is wrong with it."""
    end = time.monotonic() + LOST
    while True:
        try:
            return _answers(address)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(1)


def _answers(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWERS).close()
    except (OSError, UnicodeError) as error:  # the second: a host that cannot be one
        raise _Silent(f"nobody answers at {address}: {getattr(error, 'strerror', None) or error}") from None


def check_address(address: str) -> None:
    """Refuse what is no address, and one where nobody answers: Ray would wait for a minute, or end this process."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise WorkerError(
            f"{quote(address)} is no address of a cluster. Write auto, HOST:PORT or ray://HOST:PORT, with a port "
            "from 1 to 65535."
        )
    try:
        _answers(f"{host}:{port}")
    except OSError as error:
        raise WorkerError(_why_not(address, error)) from None


def _check_same(ray: Any, address: str | None) -> None:
    """Refuse another cluster than the one that this process is connected to: Ray knows one at a time."""
    here = ray.get_runtime_context().gcs_address
    known = address in (None, "auto", here) or (address.startswith("ray://") and ray.util.client.ray.is_connected())
    if not known:
        raise WorkerError(
            f"this process is connected to the Ray cluster at {here} already, so it cannot use {quote(address)}. Leave "
            "the address out, or call ray.shutdown() before."
        )


def _why_not(address: str | None, error: Exception) -> str:
    """Why there is no connection, and what to try next."""
    lines = re.sub(r'.*details = "([^"]*)".*', r"\1", str(error), flags=re.DOTALL).strip().splitlines()  # gRPC's own
    said = lines[-1:] if any("Traceback" in line for line in lines) else lines  # a server repeats its own errors whole
    reason = " ".join(" ".join(said).split()).split(". ")[0].rstrip(".:")
    if address is None:
        return f"a Ray cluster cannot be started here: {reason}. Free memory or disk space, or use a running cluster."
    if isinstance(error, _Silent):
        hint = "Check the address, or start a cluster with `ray start --head`"
    elif address.startswith("ray://"):
        hint = "Set RAY_AUTH_MODE=token here if the cluster asks for a token, and check that versions are the same"
    elif address == "auto":
        hint = "Start one with `ray start --head`, or give its address"
    else:
        hint = (
            "Set RAY_AUTH_MODE=token here if the cluster asks for a token, and make this machine part of the cluster "
            "(`ray start --address=HOST:PORT`) or come from outside (ray://HOST:PORT)"
        )
    where = "found on this machine" if address == "auto" else f"reached at {address}"
    return f"a Ray cluster cannot be {where}: {reason}. {hint}."
