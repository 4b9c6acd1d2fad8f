from __future__ import annotations

import gc
import importlib
import os
import sys

import pytest
from hypothesis import settings

# One thread: results do not depend on the machine, and parallel test runs do not fight for its cores.
# Said by environment, so that tests of plain values need not import torch.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("budcache", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("budcache")


def pytest_collection_finish():
    """Leave what is imported by now out of garbage collection: half a million objects, in each of very many of them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def loaded_where_asked():
    """Under BUDCACHE_TEST_MISALIGNED, weights of loaded pipelines are shifted; `alignment.py` says why."""
    if not os.environ.get("BUDCACHE_TEST_MISALIGNED"):
        yield
        return
    from alignment import LOADED, placed
    from diffusers import DiffusionPipeline

    stock = DiffusionPipeline.from_pretrained.__func__
    with pytest.MonkeyPatch.context() as patch:
        shifting = classmethod(lambda cls, *args, **options: placed(stock(cls, *args, **options), LOADED))
        patch.setattr(DiffusionPipeline, "from_pretrained", shifting)
        yield


@pytest.fixture
def run_here(monkeypatch, capsys):
    """The command in this process, where the large libraries are loaded already: exit code, output and errors."""
    from budcache.cli import main

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["budcache", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, *capsys.readouterr()

    return run


@pytest.fixture(scope="session")
def commands():
    """Every command by its name, with its options."""
    from typer.main import get_command

    from budcache.cli import COMMANDS
    from budcache.cli.common import app

    for module, _ in COMMANDS.values():
        importlib.import_module(f"budcache.cli.{module}")
    return get_command(app).commands


@pytest.fixture(scope="session")
def device():
    """Another device than the CPU: torch's lazy one, which every build has, is a real one of its own."""
    import torch

    pytest.importorskip("torch._lazy.ts_backend").init()
    return torch.device("lazy", 0)
