"""Methods on runs of four steps, where their forced first and last steps leave little to skip or nothing."""

from __future__ import annotations

from functools import cache

import pytest
from kinds import HERE, NATIVE, sample
from zoo import entry

from budcache.baselines import BASELINES, record
from budcache.baselines.teacache import TeaCache
from budcache.baselines.tuning import Tuner
from budcache.errors import BudcacheError, SearchError

STEPS = 4


@cache
def recorded():
    kind = entry("flux")
    pipe, samples = kind.build(), [sample(kind, seed) for seed in (0, 1)]
    return pipe, samples, record(pipe, STEPS, samples)


@pytest.mark.slow
@pytest.mark.parametrize("method", HERE)
def test_every_method_meets_a_budget_of_four_steps_or_says_why_not(method):
    pipe, samples, full = recorded()
    try:
        made = BASELINES[method].calibrated(full)
        tuner = Tuner(pipe, made, samples, known=full)
        found = {budget: tuner.choice(budget).settings for budget in (2, 3)}
    except BudcacheError as error:
        assert method not in NATIVE, error
        assert str(error).endswith(".") and "\n" not in str(error)
        return
    for budget, settings in found.items():
        calls = settings[0][1]
        assert calls < STEPS and abs(calls - budget) <= 1


def test_where_nothing_can_be_skipped_a_sentence_says_so():
    """Of two steps a method that is always to compute the last one computes both."""

    class Ending(TeaCache):
        def variants(self):
            return [self]

    pipe, samples, _ = recorded()
    method = Ending(steps=2, coefficients=(1.0, 0.0))
    with pytest.raises(SearchError, match="teacache computes all of 2 steps whatever its settings"):
        Tuner(pipe, method, samples).choice(1)
