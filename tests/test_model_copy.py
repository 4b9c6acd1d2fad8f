"""A value that is changed in memory is checked as one that is made or read."""

from __future__ import annotations

import pytest

from budcache import Ladder, Policy, PolicyError, Quality
from budcache.policy import Origin, Refined

BLEND = Policy(mask="1010", weights=[[1.0], [1.2, -0.2]], sigmas=[1.0, 0.7, 0.4, 0.2, 0.0])
LADDER = Ladder.of([Policy(mask="1000"), BLEND])


@pytest.mark.parametrize(
    ("value", "change", "says"),
    [
        (BLEND, {"reuse": "residual"}, 'weights need reuse "output"'),
        (BLEND, {"mask": "1011"}, "3 computed steps need 3 rows of weights"),
        (BLEND, {"mask": "10"}, "2 steps need 3 sigmas, got 5"),
        (BLEND, {"weights": [[1.0]]}, "2 computed steps need 2 rows of weights, one a step, got 1"),
        (BLEND, {"weights": [[1.0, 0.0], [1.0]]}, "weights[0] has 2 values"),
        (BLEND, {"weights": [[1.0], [float("nan")]]}, "weights[1][0] is nan"),
        (BLEND, {"sigmas": (1.0, 0.7, 0.8, 0.2, 0.0)}, "sigmas must fall at every step"),
        (BLEND, {"sigmas": None, "reuse": "outputs"}, "reuse is 'outputs'"),
        (BLEND, {"version": 99}, "format version 99"),
        (BLEND, {"colour": "red"}, "unknown field 'colour'"),
        (BLEND, {"quality": {"psnr": "much"}}, "quality.psnr is 'much'"),
        (LADDER, {"rungs": (BLEND, Policy(mask="1000"))}, "budgets must rise"),
        (LADDER, {"rungs": (Policy(mask="100"), BLEND)}, "all rungs must have the same steps"),
        (LADDER, {"rungs": ()}, "rungs is"),
        (Quality(psnr=30.0), {"samples": -1}, "samples is -1"),
        (Quality(psnr=30.0), {"psnr": float("inf")}, "psnr is inf"),
        (Quality(psnr=30.0), {"used_to_choose": 1}, "used_to_choose is 1"),
        (Refined(how="fit"), {"calls": 1.5}, "calls is 1.5"),
        (Origin(model="tiny"), {"scheduler_settings": {"a": float("nan")}}, "cannot be written as JSON"),
    ],
    ids=lambda value: "" if isinstance(value, Policy | Ladder | Quality | Refined | Origin) else str(value)[:40],
)
def test_a_change_that_does_not_fit_is_refused_with_a_sentence(value, change, says):
    before = value.model_dump()
    with pytest.raises(PolicyError) as caught:
        value.model_copy(update=change)
    text = str(caught.value)
    assert says in text
    assert text.endswith(".") and text.isprintable()
    assert value.model_dump() == before


def test_a_change_that_fits_is_made_and_nothing_else():
    plain = BLEND.model_copy(update={"weights": None, "reuse": "residual", "quality": Quality(psnr=40.0)})
    assert plain == Policy(mask="1010", reuse="residual", sigmas=BLEND.sigmas, quality=Quality(psnr=40.0))
    assert BLEND.weights == ((1.0,), (1.2, -0.2))
    assert BLEND.model_copy(update={"mask": "1100"}).mask.computed == (0, 1)  # read as it is when it is made
    assert LADDER.model_copy(update={"rungs": LADDER.rungs[:1]}) == Ladder.of(LADDER.rungs[:1])
    origin = Origin(model="tiny").model_copy(update={"calls": 7})
    assert BLEND.model_copy(update={"origin": origin}).origin is origin


@pytest.mark.parametrize("value", [BLEND, LADDER, Quality(psnr=30.0)], ids=["policy", "ladder", "quality"])
def test_a_copy_without_a_change_is_the_same_value(value):
    for copy in (value.model_copy(), value.model_copy(update={}), value.model_copy(deep=True)):
        assert copy == value
        assert copy is not value
