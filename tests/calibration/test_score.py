"""The score of a mask, sample by sample."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from budcache.aggregate import mean, near_worst
from budcache.calibration.score import Score

SCORE = Score((0.1, 0.4), (None, None, (0.2, 0.9), (0.1, 0.4)))


def test_the_loss_is_the_mean_and_an_arrival_is_near_the_worst():
    assert SCORE.loss == mean((0.1, 0.4)) == 0.25
    assert SCORE.arrival(2) == near_worst((0.2, 0.9)) > 0.55
    assert SCORE.arrival(-1) == SCORE.arrival(3) == near_worst(SCORE.losses)


def test_nothing_arrives_at_a_step_that_is_behind():
    with pytest.raises(ValueError, match="step 1 is not behind the last computed one"):
        SCORE.arrival(1)


def test_a_score_is_a_value():
    assert Score((0.1, 0.4), SCORE.arrivals) == SCORE
    assert len({SCORE, Score((0.1, 0.4), SCORE.arrivals), Score((0.4, 0.1), SCORE.arrivals)}) == 2
    with pytest.raises(FrozenInstanceError):
        SCORE.losses = ()
