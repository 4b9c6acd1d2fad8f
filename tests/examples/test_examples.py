"""The examples, as they are, on small models."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

from budcache import Ladder
from budcache.jobs.recipes import recipe
from budcache.models import EMBEDDED

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = ["--height", "32", "--width", "32", "--steps", "8", "--budgets", "3", "4", "--count", "2"]
SCRIPTS = {  # of an example: what it is run on here, and what it draws
    "flux": ("tiny-flux", ["--steps", "8", "--budgets", "3", "4", "--count", "3"], "flux.png"),
    "qwen_image": ("qwen-image", SMALL, "qwen_image.png"),
    "z_image": ("z-image-cfg", SMALL, "z_image.png"),
    "wan": ("tiny-wan", [*SMALL, "--frames", "5"], "wan.webp"),
}


def test_every_script_is_run():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SCRIPTS)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script(name, tmp_path, monkeypatch, capsys):
    model, options, drawn = SCRIPTS[name]
    if model not in EMBEDDED:
        from zoo import entry

        entry(model).build().save_pretrained(tmp_path / "model")
        model = tmp_path / "model"
    monkeypatch.chdir(tmp_path)
    size = ["--height", "64", "--width", "64"] if name == "flux" else []
    monkeypatch.setattr(sys, "argv", [name, "--model", str(model), *options, *size])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert "4 of 8 calls" in capsys.readouterr().out
    assert Ladder.load(f"{name}.ladder.json").budgets == (3, 4)
    assert Path(drawn).stat().st_size > 100 and Path(f"{name}.ledger.jsonl").exists()


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_names_what_its_recipe_names(name):
    text, found = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8"), recipe(name.replace("_", "-"))
    assert f'default="{found.model}"' in text
    assert f'"--budgets", type=int, nargs="+", default={list(found.budgets)}' in text
    for option in ("steps", "count", "height", "width"):
        assert f'"--{option}", type=int, default={getattr(found, option)}' in text


@pytest.mark.slow
def test_the_notebook(tmp_path, monkeypatch):
    book = json.loads((EXAMPLES / "budcache.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPS", "10")
    names: dict = {}
    for cell in cells:
        exec(compile("".join(cell["source"]), "notebook", "exec"), names)
    assert names["handle"].stats().last_run_calls == 3
    assert Ladder.load("notebook.ladder.json") == names["ladder"]
