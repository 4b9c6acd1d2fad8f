"""The lowest versions that `pyproject.toml` allows, in an environment of their own: do they really work?

torch stays the one of `constraints.txt`: others bring gigabytes of CUDA. The tests of values, search and serving run.

    python -m soak.lowest                # installs into .venv-lowest, then tests
"""

from __future__ import annotations

import os
import re
import subprocess
import venv
from pathlib import Path
from typing import Any

from soak.common import main, project, require

ROOT = Path(__file__).parent.parent
HOME = ROOT / ".venv-lowest"
TORCH = "torch==2.13.0"
# What the tests themselves need, at any version; of the extras those without which tests cannot be imported.
TOOLS = ("pytest>=8", "pytest-timeout", "hypothesis", "peft>=0.17", "imageio==2.34", "imageio-ffmpeg==0.5")
TESTS = (
    *("tests/test_policy.py", "tests/test_mask.py", "tests/test_plan.py", "tests/storage", "tests/jobs/test_search.py"),
    *("tests/pipeline/test_serving.py", "tests/pipeline/test_recording.py", "tests/records"),
    "tests/models/test_tiny_flux.py",  # whose text encoder older versions of transformers load as random numbers
)


def pinned() -> list[str]:
    """Every dependency at its lower bound."""
    lowest = [re.sub(r">=", "==", each) for each in project()["dependencies"] if not each.startswith("torch>")]
    return [TORCH, *lowest]


def soak(seed: int, count: int) -> dict[str, Any]:
    """One environment; there is no chance in it."""
    if not (HOME / "bin" / "python").exists():
        venv.create(HOME, with_pip=True)
    python, environment = str(HOME / "bin" / "python"), {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment.pop("PIP_CONSTRAINT", None)
    install = [python, "-m", "pip", "install", "--quiet", "--no-compile", *pinned(), *TOOLS]
    done = subprocess.run(install, env=environment, capture_output=True, text=True)
    require(done.returncode == 0, f"the lowest versions do not go together: {done.stderr[-1500:]}")
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--no-deps", "-e", str(ROOT)], env=environment, check=True
    )
    tested = [python, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *TESTS]
    done = subprocess.run(tested, cwd=ROOT, env=environment, capture_output=True, text=True)
    require(done.returncode == 0, done.stdout[-3000:])
    return {"versions": pinned(), "tests": done.stdout.strip().splitlines()[-1]}


if __name__ == "__main__":
    main("lowest", __doc__, soak, 1)
