"""Methods at their best: settings are chosen by quality at the budget, and cheaply."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kinds import STEPS, calibrated, known, run, sample

from budcache import Mask
from budcache.baselines import BASELINES, caching
from budcache.baselines import tuning as tuning_module
from budcache.baselines.dicache import DiCache
from budcache.baselines.l2p import L2P, learned
from budcache.baselines.magcache import MagCache
from budcache.baselines.taylorseer import TaylorSeer
from budcache.baselines.teacache import TeaCache
from budcache.baselines.tuning import FEW, MOST, Tuner
from budcache.pipeline.trunk import blocks_of


def tuner(method, count=6, **more):
    kind, pipe, _ = known("flux")
    return Tuner(pipe, calibrated("flux", method), [sample(kind, seed) for seed in range(count)], **more)


def test_all_knobs_that_the_authors_name_are_tried():
    taylor = TaylorSeer.published("FLUX.1-dev", 28)
    assert {(each.first, each.order) for each in taylor.variants()} == {(f, o) for f in (1, 2, 3) for o in (1, 2)}
    magcache = MagCache.published("FLUX.1-dev")
    assert {each.longest for each in magcache.variants()} >= set(range(1, 7))
    retained = {str(each.tuned(-1.0).mask()) for each in magcache.variants()}
    assert retained == {"1" * 28}
    dicache = replace(DiCache.published("FLUX.1-dev"), deepest=2)
    assert {(each.difference, each.warmup, each.probe) for each in dicache.variants()} == {
        (kind, share, probe) for kind in (False, True) for share in (0.2, 0.1, 0.0) for probe in (1, 2)
    }
    teacache = calibrated("wan-t2v", "teacache")
    assert [(each.projected, each.first, each.last) for each in teacache.variants()] == [
        (False, 1, True),
        (True, 5, False),
    ]
    assert teacache.variants()[1].coefficients == teacache.projection != teacache.coefficients
    assert len(calibrated("flux", "teacache").variants()) == 1, "it has but one signal"


def test_probes_are_tried_as_far_as_the_trunk_is_deep():
    from budcache.baselines import record

    kind, pipe, _ = known("flux")
    blocks = len(blocks_of(pipe.transformer))
    found = DiCache.calibrated(record(pipe, STEPS, [sample(kind, 0)]))
    assert {each.probe for each in found.variants()} == ({1, 2} if blocks >= 4 else {1})


def test_a_variant_that_keeps_more_first_steps_than_the_budget_keeps_fewer():
    method = TeaCache(steps=8, coefficients=(1.0, 0.0), first=5)
    assert method.relaxed().first == 4
    assert replace(method, first=1).relaxed() is None


def test_a_record_is_split_into_what_is_learned_on_and_what_is_chosen_by():
    from budcache.baselines import record

    kind, pipe, _ = known("flux")
    samples = [sample(kind, seed) for seed in range(5)]
    full = record(pipe, STEPS, samples)
    learn, choose = full.split()
    assert [list(part.samples) for part in (learn, choose)] == [samples[:4], samples[4:]]
    assert (len(learn.traces), len(choose.traces)) == (4, 1)
    assert (len(learn.latents), len(choose.latents)) == (4, 1)
    part, whole = L2P.calibrated(learn), L2P.calibrated(full)
    assert part.products != whole.products
    assert replace(part, ridge=1e-2).relearned(full) == replace(whole, ridge=1e-2)
    assert choose.split() == (choose, choose), "one run serves for both"


def test_the_best_of_all_masks_at_a_budget_is_chosen():
    """On all samples at once, so that there is no halving to go wrong."""
    tuning = tuner("taylorseer", count=FEW)
    ((chosen, calls),) = tuning.choice(4).settings
    assert calls == 4
    every = {repr(each): tuning._trial(each, FEW).quality(FEW) for each in tuning._masks[4]}
    assert len(every) > 2
    assert every[repr(chosen)] == max(every.values())


def test_a_budget_between_masks_has_a_setting_on_either_side():
    tuning = tuner("lemica", count=2)
    tuning._masks = {3: tuning._masks[3], 6: tuning._masks[6]}
    assert [calls for _, calls in tuning.choice(5).settings] == [6, 3]
    assert [calls for _, calls in tuning.choice(3).settings] == [3]
    assert [calls for _, calls in tuning.choice(2).settings] == [3], "nothing lies below"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["teacache", "dicache"])
def test_a_threshold_has_settings_on_both_sides(method):
    kind, pipe, _ = known("flux")
    found = tuner(method).choice(4)
    (nearest, calls), *others = found.settings
    assert abs(calls - 4) <= 1
    assert others == sorted(others, key=lambda each: abs(each[1] - 4))
    if calls != 4:
        assert any((each[1] - 4) * (calls - 4) < 0 for each in others)
    with caching(pipe, nearest, STEPS) as runs:
        for seed in range(6):
            run(kind, pipe, seed)
    assert np.mean(runs.calls) == pytest.approx(calls), "the calls that it tells are those that it makes"


def test_what_it_took_is_told_and_the_next_budget_is_cheaper():
    spent = []
    tuning = tuner("magcache", spent=spent.append)
    first = tuning.choice(4)
    assert first.sample_calls == sum(spent) == tuning.sample_calls
    assert first.sample_calls <= 6 * STEPS + MOST * 6 * 4  # full runs, and at most all masks on all samples
    again = tuning.choice(4)
    assert (again.settings, again.sample_calls) == (first.settings, 0)


def test_no_mask_is_left_out_for_the_settings_beside_it(monkeypatch):
    """Where settings are more than are run, every mask is run with some of them, and the best mask with all."""
    tuning = tuner("l2p")
    settings = tuning._masks[4]
    masks = {setting.mask() for setting in settings}
    assert 1 < len(masks) < len(settings)
    monkeypatch.setattr(tuning_module, "MOST", len(masks))
    best = tuning._best(settings)
    ran = [setting for setting in settings if repr(setting) in tuning._trials]
    assert {setting.mask() for setting in ran} == masks
    assert [each for each in settings if each.mask() == best.mask()] == [
        each for each in ran if each.mask() == best.mask()
    ]
    assert len(ran) < len(settings)


def test_weights_of_l2p_are_those_of_least_squares():
    features = np.random.default_rng(0).normal(size=(6, 400))
    features[5] = 2.0 * features[3] - 0.5 * features[0]
    products = features @ features.T / 400
    assert learned(products, [3, 0], 5, 1e-9) == pytest.approx([2.0, -0.5], abs=1e-6)
    assert learned(products, [3, 0], 5, 1e9) == pytest.approx([1.0, 0.0], abs=1e-6), "held back, it repeats the newest"


def test_l2p_computes_the_steps_that_taylorseer_does():
    method = L2P(steps=28, products=(), interval=5, first=2)
    assert method.mask() == TaylorSeer(steps=28, interval=5, first=2).mask()


def test_on_wan_forced_steps_are_counted_in_calls_of_both_branches():
    """int(2 * 28 * 0.2) = 11 calls, of which the first branch makes 6."""
    ratios = (1.0,) * 28
    magcache = MagCache(steps=28, ratios=ratios, threshold=9.0, longest=99, retention=0.2, strict=True)
    assert magcache.mask() == Mask.of(28, range(6))
    assert replace(magcache, strict=False).mask() == Mask.of(28, range(6))  # 5.6 rounds to 6 on FLUX
    assert replace(magcache, retention=0.19).mask() == Mask.of(28, range(5))


def test_thresholds_of_videos_from_pictures_are_the_published_ones():
    assert TeaCache.published("Wan2.1-I2V-480P-ret").threshold in (0.2, 0.3)
    assert TeaCache.published("Wan2.1-I2V-480P").steps == 40
    assert TeaCache.published("Wan2.1-T2V-14B").steps == 50


def test_every_static_method_lists_more_than_one_mask():
    for name in ("magcache", "taylorseer", "l2p", "ertacache", "lemica"):
        assert BASELINES[name].static
        assert len(tuner(name, count=1)._masks) > 2, name
