"""What is shown to newcomers: `budcache demo`, made small, and the Python of the documentation."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import budcache
from budcache import Ladder, models
from budcache.baselines import TUNABLE
from budcache.cli import demo
from budcache.comparison import Comparison
from budcache.comparison.settings import Settings
from budcache.jobs.setup import Setup


@pytest.mark.slow
def test_what_the_demo_says_is_so(brief, monkeypatch, run_here, tmp_path):
    small = {"steps": 7, "budgets": (2, 3), "compared": (2, 3), "plain": ("uniform",), "tuned": ("magcache",)}
    monkeypatch.setattr(demo, "PICTURES", replace(demo.PICTURES, **small, calibration=6, settings=None, published=None))
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
    plain = budcache.search(pipe, steps=7, budgets=(2, 3), prompts=texts, refine="none", batch=8, progress=False)
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
    show = demo.PICTURES
    settings = Settings.load(show.settings)
    pipe = budcache.load(show.model)
    texts = models.prompts(show.model, "calibration")[: show.calibration]
    origin = Setup(pipe, show.steps).origin([{"prompt": text} for text in texts], seed=0)
    assert settings.origin["prompts_hash"] == origin.prompts_hash
    settings.check(show.steps, origin, "typical")
    assert {"teacache", "magcache", "lemica", "dicache", "ertacache", "taylorseer", "l2p"} <= set(show.tuned)
    for method in show.tuned:
        for budget in show.compared:
            found = settings.find(method, budget)
            assert found.samples == TUNABLE[method].learned_on(show.calibration)
            (setting, calls), *others = found.settings
            assert setting.steps == show.steps
            assert calls == budget or any((each - budget) * (calls - budget) < 0 for _, each in others)
            if setting.static:
                assert setting.mask().budget == calls
    assert show.settings.stat().st_size < 100_000
    published = Ladder.load(show.published)
    assert set(show.compared) <= set(published.budgets)
    assert {(rung.reuse, rung.steps, rung.origin.prompts) for rung in published} == {("residual", show.steps, 2)}


@pytest.mark.slow
def test_the_demo_of_videos_shows_clips(monkeypatch, run_here, tmp_path):
    """On a random Wan in a folder; what methods with settings say on a trained one is not known beforehand."""
    from zoo import entry

    entry("wan-t2v").build().save_pretrained(tmp_path / "model")

    class Random(demo.Show):
        def texts(self, split, count):
            return [f"{split} {number}" for number in range(count)]

    small = {"steps": 5, "budgets": (2, 3), "compared": (2, 3), "model": str(tmp_path / "model"), "calibration": 2}
    facts = {**asdict(demo.VIDEOS), **small, "settings": tmp_path / "none.json", "batch": 1}
    monkeypatch.setattr(demo, "VIDEOS", Random(**facts))
    # Wan's own size would take hours here.
    monkeypatch.setattr(demo, "open_pipeline", lambda *_: _small(budcache.load(tmp_path / "model")))
    code, output, errors = run_here("demo", "--video", "--out", tmp_path / "out", "--prompts", 2)
    assert code == 0, errors
    found, report = (
        Comparison.load(tmp_path / "out" / "comparison.json"),
        (tmp_path / "out" / "comparison.html").read_text(),
    )
    assert list(found.methods) == ["fewer-steps", "uniform", "budcache-plain", "budcache"]
    assert [measure.name for measure in found.measures] == ["psnr", "worst-frame", "steadiness", "ssim"]
    assert "All clips play together." in report and 'class="play"' in report
    assert "video = pipe(" in output


def _small(pipe):
    """The pipeline with other defaults: 9 frames of 32 x 32."""

    class Small(type(pipe)):
        def __call__(self, prompt=None, num_inference_steps=50, num_frames=9, **more):
            more = {"height": 32, "width": 32, "max_sequence_length": 16, **more}
            return super().__call__(
                prompt=prompt, num_inference_steps=num_inference_steps, num_frames=num_frames, **more
            )

    pipe.__class__ = Small
    return pipe


@pytest.mark.slow
def test_the_documented_python_runs(brief, tmp_path):
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
