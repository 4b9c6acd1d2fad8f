"""How long `import budcache` and `budcache --help` take, each in a new process. What they load is tested elsewhere.

Each may take half a second of processor time.

    python -m soak.startup               # ten times each; the least counts, the others waited for other programs
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from typing import Any

from soak.common import main, require

LIMIT = 0.5  # seconds
HELP = "import sys; sys.argv = ['budcache', '--help']; from budcache.cli import main; main()"
PROGRAMS = {"bare": "pass", "import": "import budcache", "help": HELP}


def soak(seed: int, count: int) -> dict[str, Any]:
    """Seconds by the clock and of processor time, the least of so many; there is no chance in it."""
    found = {name: _timed(program, count) for name, program in PROGRAMS.items()}
    slow = [f"{name} takes {each['of_processor']} s" for name, each in found.items() if each["of_processor"] > LIMIT]
    return found | ({"broken": "; ".join(slow)} if slow else {})


def _timed(program: str, count: int) -> dict[str, float]:
    clock, processor = [], []
    for _ in range(1 + count):  # the first one may have to compile and to read from the disk
        before, begin = _processor(), time.monotonic()
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        require(done.returncode == 0, done.stderr[-500:])
        clock.append(time.monotonic() - begin)
        processor.append(_processor() - before)
    return {"seconds": round(min(clock[1:]), 3), "of_processor": round(min(processor[1:]), 3)}


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main("startup", __doc__, soak, 10)
