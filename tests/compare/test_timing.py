"""Speed-ups that noise cannot inflate, and leads that chance cannot decide."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budcache import Mask
from budcache.comparison import Entry, Lead, Measure, lead
from budcache.comparison.timing import PARTS, parts, speed

SECONDS = st.floats(1e-3, 1e3)


@given(st.integers(1, 60), st.integers(1, 8))
def test_parts_cover_all_samples_once_and_evenly(count, most):
    found = parts(count, most)
    assert [number for part in found for number in part] == list(range(count))
    assert len(found) == min(count, most)
    assert max(map(len, found)) - min(map(len, found)) <= 1


@st.composite
def timings(draw):
    count = draw(st.integers(1, 12))
    runs = min(PARTS, count)
    steps = draw(st.integers(2, 50))
    calls = draw(st.lists(st.integers(1, steps), min_size=count, max_size=count))
    seconds = draw(st.lists(SECONDS, min_size=count, max_size=count))
    return seconds, calls, draw(st.lists(SECONDS, min_size=runs, max_size=runs)), [steps] * runs


@given(timings())
def test_no_noise_makes_a_method_faster_than_its_calls_allow(timing):
    _, calls, _, full_calls = timing
    found = speed(*timing)
    assert found.low <= found.median <= found.high
    assert found.high <= max(most / n for n in calls for most in full_calls) * (1 + 1e-9)
    if len(set(calls)) == 1:
        assert found.median <= full_calls[0] / calls[0] * (1 + 1e-9)


def test_a_table_no_longer_prints_21_times_for_6_of_28_calls():
    """What happened: a full run was slowed down by something else on the machine."""
    found = speed([0.1] * 6, [6] * 6, [2.19] * 3, [28] * 3)
    assert found.median == pytest.approx(28 / 6)
    assert found.noisy


def test_on_a_quiet_machine_it_is_the_ratio_of_the_times():
    fixed, call = 0.2, 0.1  # seconds for prompt and decoder, and for a model call
    seconds, full = [fixed + 6 * call] * 6, fixed + 28 * call
    found = speed(seconds, [6] * 6, [full] * 3, [28] * 3)
    assert (found.median, found.low, found.high) == pytest.approx((full / seconds[0],) * 3)
    assert not found.noisy


def test_drift_does_not_matter_where_full_runs_are_timed_in_between():
    slower = [1.0, 1.0, 2.0, 2.0, 4.0, 4.0]  # as if others came to use the machine
    found = speed([0.8 * pace for pace in slower], [6] * 6, [3.0, 6.0, 12.0], [28] * 3)
    assert found.median == found.low == found.high == pytest.approx(3.0 / 0.8)
    assert not found.noisy


def test_a_threshold_that_varies_is_not_noise():
    calls = [4, 6, 8, 10, 5, 9]
    found = speed([0.1 + n / 10 for n in calls], calls, [2.9] * 3, [28] * 3)
    assert not found.noisy
    assert found.low < found.median < found.high


def test_one_slow_sample_of_many_does_not_move_the_speed_up():
    usual = speed([0.8] * 9, [6] * 9, [3.0] * 3, [28] * 3)
    disturbed = speed([0.8] * 8 + [20.0], [6] * 9, [3.0] * 3, [28] * 3)
    assert disturbed.median == usual.median
    assert not disturbed.noisy
    assert disturbed.low < usual.low


PSNR = Measure(name="psnr", title="PSNR", unit="dB", digits=2)
LPIPS = Measure(name="lpips", title="LPIPS", digits=4, higher=False)


def measured(values, name="psnr"):
    count = len(values)
    samples = {"calls": (2,) * count, "seconds": (1.0,) * count, "masks": (Mask.of(4, [0, 1]),) * count}
    return Entry(
        method="m", title="m", budget=2, full_seconds=(2.0,), full_calls=(4,), values={name: values}, **samples
    )


def test_a_lead_is_of_the_same_samples():
    """Samples differ by far more than methods do; sample by sample the difference is clear."""
    hard_and_easy = (20.0, 30.0, 40.0, 50.0)
    better = tuple(value + gain for value, gain in zip(hard_and_easy, (1.0, 1.2, 0.8, 1.0), strict=True))
    found = lead(measured(better), measured(hard_and_easy), PSNR)
    assert found.mean == pytest.approx(1.0)
    assert found.error == pytest.approx(math.sqrt(0.08 / 3) / 2)
    assert found.ahead is True
    assert lead(measured(hard_and_easy), measured(better), PSNR).ahead is False


def test_lower_is_better_where_it_is():
    assert lead(measured((0.1, 0.2), "lpips"), measured((0.3, 0.41), "lpips"), LPIPS).mean == pytest.approx(0.205)


@pytest.mark.parametrize(
    ("mean", "error", "ahead"),
    [(1.0, 0.4, True), (-1.0, 0.4, False), (1.0, 0.5, None), (-1.0, 0.6, None), (1.0, None, None), (0.0, 0.0, None)],
)
def test_within_two_standard_errors_nothing_is_decided(mean, error, ahead):
    assert Lead(mean, error).ahead is ahead


def test_what_was_not_measured_leads_nobody():
    assert lead(measured((1.0,)), measured((1.0,), "ssim"), PSNR) is None
