"""The command, started in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

COMMAND = Path(sys.executable).parent / ("budcache.exe" if os.name == "nt" else "budcache")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "100", "NO_COLOR": "1"}
METHODS = ["fewer-steps", "uniform", "teacache", "budcache-plain", "budcache"]
BUDGETS = (2, 3)


def started(*arguments, cwd):
    return subprocess.Popen(
        [str(COMMAND), *map(str, arguments)],
        cwd=cwd,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
