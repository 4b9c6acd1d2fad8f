"""What all soaks share: options, one JSON line of result, and jobs in processes that can be killed."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["MEMORY", "ZOO", "Broken", "ended", "forked", "main", "peak_bytes", "project", "require"]

# Where the tests keep tiny pipelines of every kind; some soaks run on them.
ZOO = [str(Path(__file__).parent.parent / "tests" / part) for part in ("pipeline", "")]

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # a folder in memory, for many small files


class Broken(AssertionError):
    """A promise that was not kept."""


def require(holds: object, what: str) -> None:
    """Unlike `assert`, also under `python -O`."""
    if not holds:
        raise Broken(what)


def main(name: str, about: str | None, soak: Callable[[int, int], Mapping[str, Any]], count: int) -> None:
    """A script: `--seed` and `--count`, one JSON line, exit code 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=count, help=f"how many; {count} is the whole soak")
    asked = parser.parse_args()
    begin = time.monotonic()
    try:
        found = dict(soak(asked.seed, asked.count))
    except Broken as error:
        found = {"broken": str(error)}
    told = {"soak": name, "seed": asked.seed, "count": asked.count, **found}
    told |= {"seconds": round(time.monotonic() - begin, 1), "python": platform.python_version()}
    sys.stdout.write(json.dumps(told) + "\n")
    sys.exit(1 if told.get("broken") else 0)


def forked(job: Callable[[], Any], said: Path) -> int:
    """Start a job in a process of its own, with everything loaded; what goes wrong in it is written to a file.

    Weights lie in the same memory as here, so results are the same to the last bit. This process must not have started
    threads, and must not have computed gradients: neither survives a fork.
    """
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        job()
        code = 0
    except BaseException as error:  # whatever it is, this process ends here
        said.write_text(f"{type(error).__name__}: {error}")
    finally:
        os._exit(code)


def ended(child: int, after: float | None = None) -> int:
    """Wait for a process, and kill it after some seconds; its exit code, or the signal as a negative number."""
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)  # of one that has ended already nothing is left but its code
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def project() -> dict[str, Any]:
    """What `pyproject.toml` says of the project."""
    try:
        import tomllib
    except ImportError:  # Python 3.10
        import tomli as tomllib

    text = (Path(__file__).parent.parent / "pyproject.toml").read_text()
    found: dict[str, Any] = tomllib.loads(text)["project"]
    return found


def peak_bytes() -> int:
    """The most memory that this process has had."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
