"""The method that docs/baselines.md adds is added here, to the letter."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "baselines.md"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page's three blocks of code as modules."""
    folder = tmp_path_factory.mktemp("page")
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for name, code in zip(("drift", "drift_run", "drift_contract"), blocks, strict=True):
        (folder / f"{name}.py").write_text(code, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield importlib.import_module


@pytest.mark.slow
def test_the_example_runs_at_about_half_of_the_calls(page, capsys):
    ran = page("drift_run")
    assert ran.method.threshold != ran.Drift.threshold
    (calls,) = ran.runs.calls
    assert 3 <= calls <= 7
    assert str(ran.runs.masks[0]) in capsys.readouterr().out
    assert ran.image.size == ran.pipe("a green triangle", num_inference_steps=1).images[0].size


@pytest.mark.slow
def test_the_example_keeps_the_contract(page):
    contract = page("drift_contract").TestDrift
    tests = [name for name in dir(contract) if name.startswith("test_")]
    assert len(tests) > 10
    for name in tests:
        getattr(contract(), name)()
