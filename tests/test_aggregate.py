"""Means: of losses, of arrivals, and how far a mean scatters."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budcache.aggregate import POWER, TINY, cared_for, geometric_mean, mean, near_worst, standard_error

errors = st.lists(st.just(0.0) | st.floats(1e-200, 1e6), min_size=1, max_size=8)


@given(errors)
def test_the_mean_is_the_mean_in_any_order(values):
    assert mean(values) == pytest.approx(statistics.fmean(values), rel=1e-12)
    assert mean(values[::-1]) == mean(values)
    assert mean([0.1] * 10) == 0.1  # no rounding adds up


@given(errors, st.floats(1e-9, 1e9))
def test_near_the_worst_is_a_power_mean(values, factor):
    together, worst = near_worst(values), max(values)
    assert mean(values) * (1 - 1e-12) <= together <= worst * (1 + 1e-12)
    assert together >= worst * len(values) ** (-1 / POWER) * (1 - 1e-12)
    assert near_worst(values[::-1]) == pytest.approx(together, rel=1e-12)
    scaled = near_worst([value * factor for value in values])
    assert scaled == pytest.approx(together * factor, rel=1e-12)  # however small: no power is lost
    assert near_worst(values[:1]) == values[0]


def test_a_sample_that_strays_far_counts_more_than_many_that_stray_a_little():
    even, uneven = [2.0] * 8, [9.0, *[1.0] * 7]
    assert mean(even) == mean(uneven)
    assert near_worst(uneven) > 2 * near_worst(even) == 4.0
    assert near_worst([3.0, 1.0, 2.0, 2.0]) == pytest.approx(((81 + 1 + 16 + 16) / 4) ** 0.25)


@given(st.lists(st.floats(1e-15, 1e6), min_size=1, max_size=8), st.floats(1e-3, 1e3))
def test_in_the_geometric_mean_every_sample_counts_relative_to_itself(values, factor):
    found = geometric_mean(values)
    assert found == pytest.approx(statistics.geometric_mean(values), rel=1e-9)
    assert geometric_mean([values[0] * factor, *values[1:]]) == pytest.approx(
        found * factor ** (1 / len(values)), rel=1e-9
    )


@given(st.lists(st.floats(1e-15, 1e6), min_size=1, max_size=8))
def test_care_for_the_worst_is_between_the_typical_error_and_the_mean(values):
    typical, worst = cared_for(values, "typical"), cared_for(values, "worst")
    assert typical == geometric_mean(values)
    assert typical * (1 - 1e-9) <= worst <= mean(values) * (1 + 1e-9)


def test_care_for_the_worst_prefers_many_small_losses_to_one_large_one():
    astray, even = [0.1, *[0.001] * 15], [0.01, *[0.002] * 15]
    assert cared_for(astray, "typical") < cared_for(even, "typical")
    assert cared_for(astray, "worst") > cared_for(even, "worst")
    assert cared_for([-0.1, 0.2], "worst") == pytest.approx(cared_for([0.0, 0.2], "worst")), "as in the geometric mean"
    assert cared_for([0.1, math.nan], "worst") == cared_for([0.1, math.inf], "worst") == math.inf


def test_a_perfect_sample_counts_as_very_small_not_as_everything():
    assert geometric_mean([0.0, 0.0]) == pytest.approx(TINY)
    assert 0 < geometric_mean([0.0, 0.01]) < geometric_mean([0.0, 0.1])


def test_what_is_not_a_number_is_not_hidden():
    assert math.isnan(geometric_mean([0.5, math.nan]))
    assert geometric_mean([0.5, math.inf]) == math.inf
    assert math.isnan(mean([0.5, math.nan]))


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=20))
def test_the_standard_error_is_that_of_the_textbook(values):
    expected = statistics.stdev(values) / math.sqrt(len(values))
    assert standard_error(values) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_a_single_sample_tells_nothing_of_scatter():
    assert standard_error([3.0]) is None
    assert standard_error([3.0, 3.0]) == 0.0
