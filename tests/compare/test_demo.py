"""What is shown to newcomers: `budcache demo`, made small, and the Python of the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import budcache
from budcache import Ladder, models
from budcache.cli import demo
from budcache.comparison import Comparison


def test_what_the_demo_says_is_so(monkeypatch, run_here, tmp_path):
    small = {"STEPS": 5, "BUDGETS": (2, 3), "COMPARED": (2, 3), "METHODS": ("uniform", "magcache")}
    for name, value in {**small, "CALIBRATION": 6, "TUNING": 2}.items():
        monkeypatch.setattr(demo, name, value)
    code, output, errors = run_here("demo", "--out", tmp_path, "--prompts", 2)
    assert code == 0, errors
    found, report = Comparison.load(tmp_path / "comparison.json"), (tmp_path / "comparison.html").read_text()
    assert found.entry("budcache", 3).learned_on == 6
    assert found.entry("magcache", 3).learned_on == 2
    assert (
        "<dd>budcache: 6 prompts; the thresholds of others: 2 prompts; budcache, plain reuse: 6 prompts</dd>" in report
    )
    assert "published search" not in report
    # "budcache, plain reuse" is what it is in every comparison: a search without a fit, not ours without its weights.
    texts = models.prompts("tiny-flux", "calibration")[:6]
    pipe = budcache.load("tiny-flux")
    plain = budcache.search(pipe, steps=5, budgets=(2, 3), prompts=texts, refine="none", batch=8, progress=False)
    ours = Ladder.load(tmp_path / "budcache.ladder.json")
    assert plain[2].mask != ours[2].mask, "both have the same mask, so this would tell nothing"
    for budget in (2, 3):
        assert found.entry("budcache-plain", budget).usual_mask == plain[budget].mask
        assert found.entry("budcache", budget).usual_mask == ours[budget].mask
    assert "of the others shown" in report
    assert "of the others shown" in " ".join(output.split())
    assert "budcache.applied(pipe, &#39;budcache.ladder.json&#39;, budget=3)" in report
    assert Ladder.load(tmp_path / "budcache.ladder.json").budgets == (2, 3)


def test_the_documented_python_runs(tmp_path):
    pipe = budcache.load("tiny-flux")
    pipe.set_progress_bar_config(disable=True)
    names = {"pipe": pipe, "prompts": ["red apple", "cat face"], "budcache": budcache, "folder": tmp_path}
    text = (Path(__file__).parents[2] / "docs" / "compare.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert any(".published(" in block for block in blocks)
    assert any("budcache.compare(" in block for block in blocks)
    for block in blocks:
        exec(block, names)
    assert [measure.name for measure in names["found"].measures] == ["psnr", "ssim"]
    assert names["runs"].masks[-1] == names["BASELINES"]["magcache"].published("FLUX.1-dev").mask(28)
