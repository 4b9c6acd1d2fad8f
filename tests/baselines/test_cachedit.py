"""cache-dit where it is installed: its masks to the letter, and its dynamic cache skipping what it may."""

from __future__ import annotations

import pytest
import torch
from zoo import entry

from budcache import Mask, SearchError
from budcache.baselines import caching, tune
from budcache.baselines.cachedit import PRESETS, CacheDiT, CacheDiTPreset

cache_dit = pytest.importorskip("cache_dit")
FLUX = entry("flux")
STEPS = 12


@pytest.fixture(scope="module")
def pipe():
    return FLUX.build()


def run(pipe, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return pipe(num_inference_steps=STEPS, generator=generator, output_type="latent", **FLUX.kwargs())[0]


@pytest.mark.parametrize("preset", range(len(PRESETS)))
def test_a_preset_is_carried_out_to_the_letter(pipe, preset):
    before = run(pipe)
    with caching(pipe, CacheDiTPreset(steps=STEPS, preset=preset), STEPS) as runs:
        fast = run(pipe)
    wanted = Mask(tuple(map(bool, cache_dit.steps_mask(total_steps=STEPS, mask_policy=PRESETS[preset]))))
    assert runs.masks == [wanted]
    assert wanted.budget < STEPS
    assert not torch.equal(fast, before)
    assert torch.equal(run(pipe), before)


def test_a_preset_that_cache_dit_has_not_is_refused():
    with pytest.raises(SearchError, match="presets 0 to 3, not 4"):
        CacheDiTPreset(steps=STEPS, preset=4).mask()


def test_the_dynamic_cache_skips_more_the_more_it_may(pipe):
    before, calls, outs = run(pipe), [], []
    for threshold in (-1.0, 0.1, 1e3):
        with caching(pipe, CacheDiT(steps=STEPS, threshold=threshold, warmup=2), STEPS) as runs:
            outs.append(run(pipe))
        assert str(runs.masks[0]).startswith("11"), "a warm-up is computed"
        calls += runs.calls
    assert calls[0] == STEPS
    assert calls == sorted(calls, reverse=True)
    assert calls[-1] == 2
    assert torch.equal(outs[0], before)
    assert not torch.equal(outs[-1], before)
    assert torch.isfinite(outs[-1]).all()
    assert torch.equal(run(pipe), before), "nothing of it is left"


def test_the_dynamic_cache_is_tuned_to_a_budget(pipe):
    samples = [{**FLUX.kwargs(), "generator": torch.Generator().manual_seed(0)}]
    tuned = tune(pipe, CacheDiT(steps=STEPS), 6, samples)
    with caching(pipe, tuned, STEPS) as runs:
        run(pipe)
    assert abs(runs.calls[0] - 6) <= 1
