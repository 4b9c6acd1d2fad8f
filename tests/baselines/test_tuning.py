"""Methods at their best: settings are chosen by quality at the budget, and cheaply."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kinds import STEPS, calibrated, known, run, sample

from budcache import Mask
from budcache.baselines import BASELINES, caching, record, trials
from budcache.baselines.dicache import DiCache
from budcache.baselines.l2p import L2P, learned
from budcache.baselines.magcache import MagCache
from budcache.baselines.pictures import ratio
from budcache.baselines.taylorseer import TaylorSeer
from budcache.baselines.teacache import TeaCache
from budcache.baselines.trials import Trial, Trials
from budcache.baselines.tuning import EACH, FEW, LAST, MORE, MOST, Tuner, halved, halving_runs
from budcache.metrics import psnr
from budcache.pipeline.trunk import blocks_of


def tuner(method, count=6, **more):
    kind, pipe, _ = known("flux")
    return Tuner(pipe, calibrated("flux", method), [sample(kind, seed) for seed in range(count)], **more)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=8), st.integers(1, 8))
def test_the_quality_of_a_setting_is_its_mean_psnr_unless_the_worst_count_more(ratios, count):
    usual, careful = Trial([], ratios, "typical"), Trial([], ratios, "worst")
    assert usual.quality(count) == pytest.approx(sum(ratios[:count]) / len(ratios[:count]), abs=1e-9)
    assert min(ratios[:count]) - 1e-9 <= careful.quality(count) <= usual.quality(count) + 1e-9


def test_with_care_for_the_worst_one_broken_picture_is_not_made_up_for_by_good_ones():
    astray, even = [45.0] * 15 + [10.0], [38.0] * 16
    assert Trial([], astray, "typical").quality(16) > Trial([], even, "typical").quality(16)
    assert Trial([], astray, "worst").quality(16) < Trial([], even, "worst").quality(16)


def test_all_knobs_that_the_authors_name_are_tried():
    taylor = TaylorSeer.published("FLUX.1-dev", 28)
    assert {(each.first, each.order) for each in taylor.variants()} == set(product((1, 2, 3, 4), repeat=2))
    magcache = MagCache.published("FLUX.1-dev")
    assert {each.longest for each in magcache.variants()} >= set(range(1, 7))
    retained = {str(each.tuned(-1.0).mask()) for each in magcache.variants()}
    assert retained == {"1" * 28}
    dicache = replace(DiCache.published("FLUX.1-dev"), deepest=2)
    assert {(each.difference, each.warmup, each.probe, each.last) for each in dicache.variants()} == set(
        product((False, True), (0.2, 0.1, 0.0), (1, 2), (True, False))
    )
    teacache = calibrated("wan-t2v", "teacache")
    assert [(each.projected, each.first, each.last) for each in teacache.variants()] == [
        (False, 1, True),
        (False, 1, False),
        (True, 5, False),
        (True, 5, True),
    ]
    assert [each.coefficients for each in teacache.variants()] == [teacache.coefficients] * 2 + [
        teacache.projection
    ] * 2
    assert teacache.projection != teacache.coefficients
    assert [each.last for each in calibrated("flux", "teacache").variants()] == [True, False], "it has but one signal"


@given(
    st.lists(st.lists(st.floats(-50, 50), min_size=32, max_size=32), min_size=1, max_size=40),
    st.integers(1, 32),
)
def test_who_is_chosen_was_compared_on_all_samples(ratios, samples):
    """The last few always meet on all of them, and nobody who does is better than whom they leave."""
    seen = dict.fromkeys(range(len(ratios)), 0)

    def quality(candidate, count):
        seen[candidate] = max(seen[candidate], count)
        return np.mean(ratios[candidate][:count])

    best = halved(range(len(ratios)), quality, samples)
    if len(ratios) == 1:
        return
    whole = [candidate for candidate, count in seen.items() if count == samples]
    assert len(whole) >= min(LAST, len(ratios))
    assert min(seen.values()) >= min(FEW, samples)
    assert quality(best, samples) == max(quality(candidate, samples) for candidate in whole)


@given(st.integers(2, 40), st.integers(1, 40), st.integers(1, 8))
def test_the_runs_that_choosing_takes_are_known_beforehand(candidates, samples, few):
    seen = dict.fromkeys(range(candidates), 0)

    def quality(candidate, count):
        seen[candidate] = max(seen[candidate], count)
        return candidate

    halved(range(candidates), quality, samples, few)
    assert sum(seen.values()) == halving_runs(candidates, samples, few)


@pytest.mark.parametrize(("care", "first"), [("typical", FEW), ("worst", MORE)])
def test_what_is_to_be_told_by_the_worst_meets_on_more_samples(care, first, monkeypatch):
    counts, run = [], Trials.run

    def noted(trials, setting, count):
        counts.append(count)
        return run(trials, setting, count)

    monkeypatch.setattr(Trials, "run", noted)
    tuner("taylorseer", MORE + 1, care=care).choice(3)
    assert min(counts) == first < max(counts) == MORE + 1


def test_probes_are_tried_as_far_as_the_trunk_is_deep():
    kind, pipe, _ = known("flux")
    blocks = len(blocks_of(pipe.transformer))
    found = DiCache.calibrated(record(pipe, STEPS, [sample(kind, 0)]))
    assert {each.probe for each in found.variants()} == ({1, 2} if blocks >= 4 else {1})


def test_a_variant_that_keeps_more_first_steps_than_the_budget_keeps_fewer():
    method = TeaCache(steps=8, coefficients=(1.0, 0.0), first=5)
    assert method.relaxed().first == 4
    assert replace(method, first=1).relaxed() is None


@pytest.mark.parametrize("batch", [1, 2])
def test_what_is_learned_without_a_part_has_seen_nothing_of_it(batch):
    kind, pipe, _ = known("flux")
    samples = [sample(kind, seed) for seed in range(4 * batch)]
    full = record(pipe, STEPS, samples, batch)
    assert full.runs == 4
    for part in range(2):
        rest = full.without(part, 2)
        runs = [run for run in range(4) if run % 2 != part]
        assert list(rest.samples) == [samples[run * batch + each] for run in runs for each in range(batch)]
        assert rest.traces == tuple(full.traces[run] for run in runs)
        assert len(rest.pictures) == len(rest.samples)
        assert [full.part_of(number, 2) == part for number in range(len(samples))] == [
            each not in list(rest.samples) for each in samples
        ]
        assert L2P.calibrated(rest).products != L2P.calibrated(full).products
    assert replace(L2P.calibrated(full.without(0, 2)), ridge=1e-2).relearned(full) == replace(
        L2P.calibrated(full), ridge=1e-2
    )


def test_with_two_branches_a_run_goes_with_all_its_traces():
    kind, pipe, _ = known("wan-t2v")
    full = record(pipe, STEPS, [sample(kind, seed) for seed in range(3)])
    assert (full.runs, full.branches, len(full.traces)) == (3, 2, 6)
    assert full.without(1, 3).traces == (*full.traces[:2], *full.traces[4:])


@pytest.mark.parametrize("learned_here", [True, False])
def test_who_learns_much_is_judged_on_samples_that_it_has_not_seen(learned_here, monkeypatch):
    kind, pipe, _ = known("flux")
    samples = [sample(kind, seed) for seed in range(5)]
    full = record(pipe, STEPS, samples)
    ran = []

    def noted(pipe, setting, steps):
        ran.append(setting)
        return caching(pipe, setting, steps)

    monkeypatch.setattr(trials, "caching", noted)
    method = replace(L2P.calibrated(full), interval=3)
    found = trials.Trials(pipe, samples, STEPS, full, 2, care="typical", learned_here=learned_here)
    found.run(method, 3)
    trial = found.run(method, 5)
    expected = {method.relearned(full.without(part, 4)) for part in range(4)} if learned_here else {method}
    assert set(ran) == expected
    for number in (0, 3, 4):
        itself = replace(full, samples=(samples[number],), pictures=(full.pictures[number],))
        alone = trials.Trials(pipe, [samples[number]], STEPS, itself, care="typical")
        as_learned = method.relearned(full.without(number % 4, 4)) if learned_here else method
        assert alone.run(as_learned, 1).ratios == pytest.approx(trial.ratios[number : number + 1], abs=0.05)


def test_the_best_of_all_masks_at_a_budget_is_chosen_by_its_pictures():
    """On all samples at once, so that there is no halving to go wrong; pictures are drawn and measured once more."""
    kind, pipe, _ = known("flux")
    tuning, count = tuner("taylorseer", count=2), 2
    ((chosen, calls),) = tuning.choice(4).settings
    assert calls == 4

    def pictures():
        runs = (pipe(**{**sample(kind, seed), "num_inference_steps": STEPS}, output_type="np") for seed in range(count))
        return [run.images[0] for run in runs]

    full, every = pictures(), {}
    for each in tuning._masks[4]:
        with caching(pipe, each, STEPS):
            every[repr(each)] = np.mean([psnr(*pair) for pair in zip(pictures(), full, strict=True)])
    assert len(every) > 2
    assert every[repr(chosen)] == pytest.approx(max(every.values()), abs=0.01)


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


def test_no_mask_is_left_out_for_the_settings_beside_it():
    """Where settings are more than are run, every mask is run with several of them, and the best mask with all."""
    tuning = tuner("l2p", count=2)
    settings = tuning._masks[4]
    masks = {setting.mask() for setting in settings}
    assert 1 < len(masks) < len(settings)
    best = tuning._best(settings)
    ran = [setting for setting in settings if setting in tuning.trials]
    assert set(Counter(setting.mask() for setting in ran if setting.mask() != best.mask()).values()) == {EACH}
    assert {setting.mask() for setting in ran} == masks
    assert len({setting.ridge for setting in ran[:EACH]}) > 1 < len({setting.history for setting in ran[:EACH]})
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


def test_broken_pictures_are_the_farthest():
    full = np.full((4, 4, 3), 0.5, np.float16)
    assert ratio(full * np.nan, full) == 0.0 < ratio(full * 0, full)
