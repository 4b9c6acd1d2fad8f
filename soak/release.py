"""A release, as its users get it: built without a network, checked, installed alone, and then drawn with.

    python -m soak.release               # builds, checks and tries the wheel in an environment of its own
    BUDCACHE_SOAK_BORROW=1 python -m soak.release    # quicker, and without any network

`build`, `hatchling` and `twine` have to be installed. The fresh environment takes its dependencies from the index that
pip is configured for, pinned by `constraints.txt`; or it borrows those of this environment, but not budcache.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from pathlib import Path
from typing import Any

from soak.common import main, project, require

ROOT = Path(__file__).parent.parent
TRIED = """
import json, sys
import budcache
assert budcache.__file__.startswith(sys.prefix), budcache.__file__
for name in ("tiny-flux", "tiny-wan"):
    pipe = budcache.load(name)
    pipe.set_progress_bar_config(disable=True)
    ladder = budcache.search(pipe, steps=4, budgets=[2], prompts=["red apple", "cat face"], progress=False)
    ladder.save(sys.argv[1])
    with budcache.applied(pipe, sys.argv[1], budget=2) as handle:
        made = pipe("red apple", num_inference_steps=4)
    assert handle.stats().last_run_calls == 2
    assert len(made[0]) == 1
print(json.dumps({"version": budcache.__version__}))
"""


def soak(seed: int, count: int) -> dict[str, Any]:
    """One release; there is no chance in it."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        built = _built(home / "dist")
        tried = _tried(built["wheel"], home)
        sizes = {f"{kind}_mb": round(path.stat().st_size / 1e6, 1) for kind, path in built.items()}
    return {**sizes, "twine": "passed", **tried}


def _built(out: Path) -> dict[str, Path]:
    """Both kinds, with the network off: pip has no index, and a proxy that is not there."""
    off = {"PIP_NO_INDEX": "1", "https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"}
    _run([sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT], **off)
    (wheel,), (source,) = out.glob("*.whl"), out.glob("*.tar.gz")
    _run([sys.executable, "-m", "twine", "check", "--strict", wheel, source])
    names = zipfile.ZipFile(wheel).namelist()
    embedded = [name for name in names if name.endswith(".safetensors")]
    require(len(embedded) >= 8, f"the wheel lacks models: {embedded}")
    require("budcache/py.typed" in names, "the wheel has no types")
    return {"wheel": wheel, "sdist": source}


def _tried(wheel: Path, home: Path) -> dict[str, Any]:
    python = _installed(wheel, home / "fresh")
    offline = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    said = _run([python, "-c", TRIED, home / "a.json"], cwd=home, **offline)
    _run(
        [python.with_name("budcache"), "generate", "tiny-flux", "--prompt", "red apple", "--out", home / "a.png"],
        cwd=home,
        **offline,
    )
    require((home / "a.png").stat().st_size > 0, "the command draws nothing")
    version = project()["version"]
    found = json.loads(said.splitlines()[-1])
    require(found["version"] == version, f"the wheel says {found['version']}, pyproject.toml {version}")
    return {"drew": ["tiny-flux", "tiny-wan"], **found}


def _installed(wheel: Path, home: Path) -> Path:
    """The interpreter of a fresh environment that has the wheel."""
    venv.create(home)
    python = home / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", wheel]
    if os.environ.get("BUDCACHE_SOAK_BORROW"):
        _run([*install, "--no-deps", "--no-index"])
        # A folder named in such a file is looked at last, and .pth files in it, as those of editable installs, are not.
        (site,) = home.glob("lib/python*/site-packages")
        (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    else:
        _run(install, PIP_CONSTRAINT=str(ROOT / "constraints.txt"))
    return python


def _run(command: list[Any], cwd: Path | None = None, **environment: str) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True
    )
    require(done.returncode == 0, f"{' '.join(map(str, command[:4]))}: {done.stdout[-500:]} {done.stderr[-1500:]}")
    return done.stdout


if __name__ == "__main__":
    main("release", __doc__, soak, 1)
