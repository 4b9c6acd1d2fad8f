"""The rules of the methods, without a pipeline: published masks, fits with known answers, exact paths."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from budcache import Mask, PipelineError, SearchError
from budcache.baselines import BASELINES, Record
from budcache.baselines.ertacache import ERTACache, rescaled
from budcache.baselines.installed import DiffusersMagCache, DiffusersTaylorSeer
from budcache.baselines.lemica import PUBLISHED, LeMiCa, path
from budcache.baselines.magcache import MagCache, resampled
from budcache.baselines.record import Trace
from budcache.baselines.taylorseer import Series, TaylorSeer
from budcache.baselines.teacache import TeaCache, fit
from budcache.baselines.tuning import tune


def magcache(model: str, **settings: float) -> Mask:
    from dataclasses import replace

    return replace(MagCache.published(model), **settings).mask()


def test_magcache_on_flux_gives_the_published_masks():
    assert str(MagCache.published("FLUX.1-dev").mask()) == "1110010001010000010000010010"
    assert str(magcache("FLUX.1-dev", outlier=None)) == "1110010001000001000001000010"
    assert str(DiffusersMagCache.published("FLUX.1-dev").mask()) == "1111110101000100010001001011"


@pytest.mark.parametrize(("threshold", "longest", "calls"), [(0.12, 2, 25), (0.12, 4, 21), (0.24, 6, 18)])
@pytest.mark.parametrize("model", ["Wan2.1-T2V-1.3B", "Wan2.1-T2V-14B"])
def test_magcache_on_wan_makes_the_published_calls(model, threshold, longest, calls):
    assert magcache(model, threshold=threshold, longest=longest).budget == calls


def test_magcache_resamples_its_ratios_by_the_nearest_step():
    assert resampled((1.0, 2.0, 3.0), 5) == (1.0, 1.0, 2.0, 3.0, 3.0)
    assert len(MagCache.published("FLUX.1-dev").mask(50)) == 50


def test_magcache_skips_no_more_in_a_row_than_allowed():
    mask = MagCache(steps=20, ratios=(1.0,) * 20, threshold=9.0, longest=3, retention=0.1).mask()
    assert str(mask) == "11000100010001000100"


def test_taylorseer_computes_the_published_steps():
    assert TaylorSeer.published("FLUX.1-dev").mask().computed == (0, 1, 2, 8, 14, 20, 26, 32, 38, 44)
    assert TaylorSeer.published("Wan2.1").mask().computed == tuple(range(0, 50, 5))
    assert [TaylorSeer(steps=28, interval=n).mask().budget for n in (4, 5, 6)] == [9, 8, 7]
    assert DiffusersTaylorSeer(steps=12).mask().computed == (0, 1, 2, 4, 9)


@given(st.integers(1, 3), st.lists(st.floats(-3, 3), min_size=2, max_size=2), st.integers(1, 6), st.integers(1, 6))
def test_taylor_series_continue_straight_lines_exactly(order, line, gap, ahead):
    series = Series(order)
    for step in (0, gap, 2 * gap, 3 * gap):
        series.see(step, torch.tensor(line[0] + line[1] * step, dtype=torch.float64))
    assert series.at(3 * gap + ahead).item() == pytest.approx(line[0] + line[1] * (3 * gap + ahead), abs=1e-9)


def test_taylor_series_of_order_two_miss_a_parabola_by_the_known_amount():
    """Differences look back: the first derivative lags by half a gap on each side, so k^2 is short by gap * ahead."""
    series = Series(2)
    for step in (0, 4, 8):
        series.see(step, torch.tensor(float(step**2)))
    assert series.at(11).item() == 11**2 - 4 * 3
    rough = Series(1)
    rough.see(0, torch.tensor(0.0))
    rough.see(4, torch.tensor(16.0), difference=False)
    assert rough.at(7).item() == 16.0


def brute(errors: np.ndarray, budget: int) -> tuple[float, ...]:
    last = len(errors) - 1
    ways = [(0, *inner, last) for inner in itertools.combinations(range(1, last), budget - 2)]
    costs = [
        sorted((0.0 if j == i + 1 else errors[i][j] for i, j in itertools.pairwise(way)), reverse=True) for way in ways
    ]
    return tuple(min(cost for cost in costs if not math.isinf(cost[0])))


@given(st.data())
def test_lemicas_path_is_the_lexicographic_minimax(data):
    steps = data.draw(st.integers(2, 9))
    budget = data.draw(st.integers(2, steps))
    # Few different values, so that ties down to the last segment are common.
    flat = data.draw(st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0]), min_size=steps**2, max_size=steps**2))
    errors = np.reshape(flat, (steps, steps))
    way = path(errors.tolist(), budget)
    assert len(way) == budget and way[0] == 0 and way[-1] == steps - 1
    made = sorted((0.0 if j == i + 1 else errors[i][j] for i, j in itertools.pairwise(way)), reverse=True)
    assert tuple(made) == brute(errors, budget)


def test_lemica_prefers_a_larger_sum_to_a_larger_worst():
    errors = np.full((5, 5), 9.0)
    errors[0][2], errors[2][4], errors[0][3] = 3.0, 3.0, 4.0
    assert path(errors.tolist(), 3) == (0, 2, 4)  # 3 + 3 rather than 4 + 0
    assert path(errors.tolist(), 5) == (0, 1, 2, 3, 4)


def test_lemica_says_what_its_segments_cannot_reach():
    errors = np.full((6, 6), np.inf)
    errors[np.arange(4), np.arange(4) + 2] = 1.0
    with pytest.raises(SearchError, match="3 computed steps reaches the end of 6"):
        path(errors.tolist(), 3)
    nearest = LeMiCa(steps=6, errors=tuple(map(tuple, errors))).at_budget(2, 6)
    assert nearest.mask().budget == 4  # 0, 2, 4, 5


@pytest.mark.parametrize("model", PUBLISHED)
def test_lemicas_published_sets_begin_and_end_computed(model):
    sizes = {"FLUX.1-dev": [10, 15, 20, 26], "Wan2.1-T2V-1.3B": [14, 17, 20, 25], "Wan2.1-T2V-14B": [17, 20]}
    sizes["Z-Image-Turbo"] = [5, 6, 7]  # of 9 steps
    method = LeMiCa.published(model)
    assert [len(each) for each in method.sets] == sizes[model]
    for size in sizes[model]:
        mask = tune(None, method, size, []).mask()
        assert mask.budget == size and mask[0] and mask[len(mask) - 1]
        assert max(j - i for i, j in itertools.pairwise(mask.computed)) <= 7


def test_teacaches_polynomial_is_found_again():
    wanted = (3.0, -2.0, 1.5, 0.25, 0.1)
    x = np.linspace(0.01, 1.0, 40)
    y = np.polyval(wanted, x)
    y[3], x[7] = np.nan, np.nan
    assert fit(x, y) == pytest.approx(wanted)
    with pytest.raises(SearchError, match="only 4 pairs"):
        fit(x[10:14], y[10:14])


def traced(residuals: np.ndarray, change: float = 1.0) -> Trace:
    """The trace of a run whose residuals are known, shape [K, values]."""
    steps = len(residuals)
    nothing = np.full(steps, np.nan)
    norms = np.abs(residuals).mean(1)
    return Trace(
        branch=0,
        signal=nothing,
        output=nothing,
        ratio=np.concatenate([[1.0], norms[1:] / norms[:-1]]),
        size=norms,
        mean=residuals.mean(1),
        distance=np.abs(residuals[:, None] - residuals[None]).mean(2),
        gram=residuals @ residuals.T / residuals.shape[1],
        change=np.full(steps, change),
        left=residuals @ residuals.T / residuals.shape[1],
        projected=nothing,
    )


def test_magcache_takes_its_ratios_from_a_record():
    growing = np.outer(1.1 ** np.arange(6), [1.0, -2.0, 0.5])
    record = Record(6, "FluxTransformer2DModel", (traced(growing), traced(growing)))
    assert MagCache.calibrated(record).ratios == pytest.approx((1.0, *[1.1] * 5))


def test_ertacache_refreshes_where_the_cached_residual_is_too_far_off():
    level = np.array([1.0, 1.0, 1.0, 2.0, 2.0, 2.1])
    record = Record(6, "FluxTransformer2DModel", (traced(level[:, None] * np.array([[1.0, -1.0]])),))
    method = ERTACache.calibrated(record)
    assert str(method.tuned(0.3).mask()) == "100100"
    assert str(method.tuned(0.01).mask()) == "100101"
    assert str(method.tuned(method.knob.most).mask()) == "111111"


def test_ertacaches_regression_is_exact_where_steps_are_scaled_and_shifted_copies():
    base = np.random.default_rng(0).normal(size=50)
    residuals = np.stack([base, 2 * base + 3, 0.5 * base - 1])
    method = ERTACache.calibrated(Record(3, "FluxTransformer2DModel", (traced(residuals),)))
    assert (method.slopes[0][0][1], method.offsets[0][0][1]) == pytest.approx((2, 3))
    assert (method.slopes[0][1][2], method.offsets[0][1][2]) == pytest.approx((0.25, -1.75))


@given(st.lists(st.floats(0.05, 1.0), min_size=2, max_size=12))
def test_rescaled_levels_fall_from_the_first_to_the_last(shares):
    sigmas = torch.linspace(1, 0, len(shares) + 1) ** 1.5
    new = rescaled(sigmas, shares)
    assert new[0] == sigmas[0] and new[-1] == sigmas[-1]
    assert (new.diff() < 0).all()
    assert (new >= sigmas - 1e-6).all()  # who takes less is behind until the end


def test_rescaled_levels_share_out_what_is_left():
    assert rescaled(torch.linspace(1, 0, 5), [1.0, 0.5, 1.0, 1.0]).tolist() == pytest.approx(
        [1.0, 0.75, 0.625, 0.3125, 0.0]
    )
    same = torch.linspace(1, 0, 5)
    assert torch.equal(rescaled(same, [1.0] * 4), same)


def test_unknown_constants_name_the_known_ones():
    with pytest.raises(PipelineError, match=r"FLUX.1-dev.*not for 'FLUX.9'"):
        TeaCache.published("FLUX.9")
    with pytest.raises(PipelineError, match="50 steps, not 28"):
        LeMiCa.published("FLUX.1-dev", 28)
    with pytest.raises(PipelineError, match="no published constants"):
        ERTACache.published("FLUX.1-dev")


def test_dynamic_methods_have_no_mask_to_show():
    with pytest.raises(SearchError, match="decides while it runs"):
        TeaCache.published("FLUX.1-dev").mask()


def test_every_method_names_itself_and_its_knob():
    for name, method in BASELINES.items():
        assert method.name == name
        assert method.knob.name in method.__dataclass_fields__
