"""The paper's experiments at the smallest size: each ends well, keeps its results, and judges claims by its numbers."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2] / "benchmarks" / "paper"
SCRIPTS = (
    *("main_table", "transfer", "prompt_set", "low_budget", "few_steps"),
    *("model_size", "convergence", "intensity", "steps"),
)


@pytest.fixture(scope="module")
def paper():
    """A script's module by its name."""
    sys.path.insert(0, str(HOME))
    yield importlib.import_module
    sys.path.remove(str(HOME))


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A tiny pipeline with prompts beside it, and a place for results."""
    from zoo import entry

    home = tmp_path_factory.mktemp("paper")
    entry("flux").build().save_pretrained(home / "tiny")
    (home / "prompts.txt").write_text("\n".join(f"prompt {number}" for number in range(12)))
    return home


@pytest.fixture
def run(paper, home, capsys):
    """Run a script; returns its JSON line and what it told whoever waits."""

    def run(name):
        options = [
            "--quick",
            "--model",
            home / "tiny",
            "--prompts",
            home / "prompts.txt",
            "--height",
            32,
            "--width",
            32,
        ]
        options += ["--steps", 5, "--budgets", 2, "--evaluation", 1, "--threads", 1, "--folder", home / "out" / name]
        options += ["--target", home / "tiny"] if name == "model_size" else []
        capsys.readouterr()
        paper(name).main(list(map(str, options)))
        out, told = capsys.readouterr()
        return json.loads(out.splitlines()[-1]), told

    return run


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_experiment_ends_well_and_keeps_its_result(name, run, home):
    result, _ = run(name)
    assert result["experiment"] == name
    assert result["quick"]
    assert result["claims"]
    for table in result["tables"]:
        assert table["rows"]
        assert {len(row) for row in table["rows"]} == {len(table["columns"])}
    kept = home / "out" / name
    assert json.loads((kept / "result.json").read_text()) == result
    assert all((kept / figure).stat().st_size > 0 for figure in result["figures"])


def test_a_second_run_searches_nothing_again(run):
    first, _ = run("convergence")
    second, told = run("convergence")
    assert second == first
    assert "searching" not in told


def test_the_page_leaves_smoke_runs_out_unless_asked(run, paper, home, tmp_path):
    run("convergence")
    page = tmp_path / "results.md"
    paper("collect").main(["--folder", str(home / "out"), "--out", str(page)])
    assert "Not run yet: `python benchmarks/paper/convergence.py`" in page.read_text()
    paper("collect").main(["--folder", str(home / "out"), "--out", str(page), "--quick"])
    assert "Annealing as printed lowers the loss" in page.read_text()
    assert (tmp_path / "images" / "paper-convergence.png").exists()


@pytest.mark.parametrize(
    ("cases", "verdict"),
    [
        ({"a": True, "b": True}, "holds"),
        ({"a": False}, "does not hold"),
        ({"a": True, "b": False}, "holds in 1 of 2 cases, not in: b"),
        ({}, "could not be tested"),
    ],
)
def test_a_claim_is_judged_by_its_cases(paper, cases, verdict):
    assert paper("telling").Claim("Table 1", "Something", cases).verdict == verdict


def test_ipndm_as_a_scheduler_is_the_solver(paper):
    import torch

    from budcache.solvers import ipndm2

    scheduler = paper("transfer").IPNDM2(shift=3.0)
    for _ in range(2):  # the past of one run is not the next one's
        scheduler.set_timesteps(5)
        sigmas, past = scheduler.sigmas, None
        x = y = torch.ones(1, 3)
        for k, t in enumerate(scheduler.timesteps):
            v = torch.full_like(x, float(k + 1))
            x = scheduler.step(v, t, x, return_dict=False)[0]
            y, past = ipndm2(y, v, sigmas[k], sigmas[k + 1], past)
        assert torch.allclose(x, y, atol=1e-6)
