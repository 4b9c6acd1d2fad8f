"""What is shown to newcomers: `budcache demo`, made small, and the Python of the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import budcache
from budcache import Ladder, models
from budcache.cli import demo
from budcache.comparison import Comparison
from budcache.comparison.settings import Settings
from budcache.jobs.setup import Setup


def test_what_the_demo_says_is_so(monkeypatch, run_here, tmp_path):
    small = {"STEPS": 5, "BUDGETS": (2, 3), "COMPARED": (2, 3), "PLAIN": ("uniform",), "TUNED": ("magcache",)}
    for name, value in {**small, "CALIBRATION": 6, "SETTINGS": None}.items():
        monkeypatch.setattr(demo, name, value)
    code, output, errors = run_here("demo", "--out", tmp_path, "--prompts", 2)
    assert code == 0, errors
    found, report = Comparison.load(tmp_path / "comparison.json"), (tmp_path / "comparison.html").read_text()
    assert found.entry("budcache", 3).learned_on == 6
    assert found.entry("magcache", 3).learned_on == 6, "as many as ours"
    assert found.entry("budcache", 3).speed.pairs >= 5
    assert found.entry("magcache", 3).speed.text == "not timed"
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


def test_the_demo_has_settings_of_every_method_that_it_shows():
    """Chosen beforehand on the prompts that it searches on, by `benchmarks/tune_demo.py`."""
    settings = Settings.load(demo.SETTINGS)
    pipe = budcache.load(demo.MODEL)
    texts = models.prompts(demo.MODEL, "calibration")[: demo.CALIBRATION]
    origin = Setup(pipe, demo.STEPS).origin([{"prompt": text} for text in texts], seed=0)
    assert settings.origin["prompts_hash"] == origin.prompts_hash
    settings.check(demo.STEPS, origin.model)
    assert {"teacache", "magcache", "lemica", "dicache", "ertacache", "taylorseer", "l2p"} <= set(demo.TUNED)
    for method in demo.TUNED:
        for budget in demo.COMPARED:
            found = settings.find(method, budget)
            assert found.samples == demo.CALIBRATION
            (setting, calls), *others = found.settings
            assert setting.steps == demo.STEPS
            assert calls == budget or any((each - budget) * (calls - budget) < 0 for _, each in others)
            if setting.static:
                assert setting.mask().budget == calls
    assert demo.SETTINGS.stat().st_size < 100_000


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
