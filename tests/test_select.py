"""Choosing between candidates by what they lose on a few samples."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from budcache.jobs.select import best

from budcache.calibration.calibration import geometric_mean


@dataclass(frozen=True)
class Known:
    """A candidate whose losses are known."""

    losses: tuple[float, ...]

    def finals(self, judge):
        return self.losses


class Judge:
    """Judges what it is told."""

    def typical_loss(self, finals):
        return geometric_mean(torch.tensor(finals, dtype=torch.float64))


def test_a_sample_that_is_lost_under_any_candidate_does_not_decide():
    plain, fitted = Known((1e-2, 1e-2, 0.50)), Known((1e-4, 1e-4, 0.55))
    assert sum(plain.losses) < sum(fitted.losses)
    assert best(Judge(), [plain, fitted]) is fitted


def test_of_equals_the_first_is_taken():
    first, second = Known((1e-3, 1e-1)), Known((1e-1, 1e-3))
    assert best(Judge(), [first, second]) is first
    assert best(Judge(), [second, first]) is second


def test_what_is_not_a_number_is_never_chosen():
    good = Known((0.5, 0.5))
    for bad in (math.nan, math.inf):
        assert best(Judge(), [Known((bad, 1e-9)), good]) is good


def test_a_perfect_sample_is_no_excuse():
    """A loss of nothing counts as very small, not as everything."""
    assert geometric_mean(torch.zeros(3)) > 0
    assert best(Judge(), [Known((0.0, 0.1)), Known((0.0, 0.01))]).losses == (0.0, 0.01)
