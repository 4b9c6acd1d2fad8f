"""What carries out policies elsewhere does what budcache does."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from budcache import Ladder, Origin, Policy
from budcache.exports import runtime
from budcache.numerics.rollout import rollout
from budcache.plan import Plan, own_levels
from budcache.rows import Features, Row
from exports.policies import LEVELS, STEPS, policies

number = st.floats(-1.5, 1.5, width=32)


@st.composite
def fitted(draw) -> Policy:
    """Any policy with rows, whose weights may look at the sample, or with weights."""
    mask = "1" + "".join(draw(st.lists(st.sampled_from("01"), min_size=1, max_size=7)))
    rows, calls = [], mask.count("1")
    for place in range(calls):
        outputs = draw(st.lists(number, min_size=1, max_size=place + 1))
        triple = st.tuples(number, number, number)
        slopes = draw(st.lists(triple, min_size=len(outputs) + 1, max_size=len(outputs) + 1))
        looks = Features(middle=draw(triple), spread=draw(st.tuples(*[st.floats(0.2, 2.0)] * 3)), slopes=tuple(slopes))
        row = Row(outputs=tuple(outputs), noise=draw(number), features=looks if draw(st.booleans()) else None)
        rows.append(row)
    sigmas = (*(1 - k / len(mask) for k in range(len(mask))), 0.0)
    if draw(st.booleans()):
        return Policy(mask=mask, sigmas=sigmas, weights=tuple(row.outputs for row in rows))
    return Policy(mask=mask, sigmas=sigmas, rows=tuple(rows))


class Model:
    """A velocity that turns."""

    def compute(self, x, sigma):
        v = torch.sin(3 * x + sigma) + 0.5 * x
        return v, v


def elsewhere(policy: Policy, x: torch.Tensor) -> torch.Tensor:
    """The loop of an exported sampler."""
    found = runtime.read_policy(json.dumps(policy.model_dump(mode="json", exclude_none=True)))
    levels, run = runtime.levels_of(found), runtime.Runner(found, lambda x: x, _each)
    for here, there in pairwise(levels):
        x = run.step(x, Model().compute(x, torch.tensor(here, dtype=torch.float64))[0], there - here)
    return x


def _each(values, like):
    return like.new_tensor(values).reshape(-1, *[1] * (like.ndim - 1))


@settings(max_examples=50)
@given(fitted(), st.integers(1, 3))
def test_a_run_elsewhere_ends_where_a_rollout_does(policy, samples):
    x = torch.randn(samples, 2, 3, generator=torch.Generator().manual_seed(0)).double()
    expected = rollout(Model(), x, Plan.of(policy, torch.tensor(policy.sigmas, dtype=torch.float64)))
    assert torch.allclose(elsewhere(policy, x), expected, rtol=1e-9, atol=1e-9)


def test_where_samples_are_written_into_one_array_the_noise_is_remembered():
    policy = Policy(mask="101", sigmas=(1.0, 0.7, 0.3, 0.0), rows=[Row(outputs=(1.0,)), Row(outputs=(1.0,), noise=0.5)])
    found = runtime.read_policy(json.dumps(policy.model_dump(mode="json", exclude_none=True)))
    run, x, v = runtime.Runner(found, lambda x: x), torch.ones(3), torch.ones(3)
    for _ in range(2):
        x[:] = run.step(x, v, -0.25)
    assert x.tolist() == [1.0] * 3  # 1 - 2 * 0.25 + 0.5 of the noise that it began with


@pytest.mark.parametrize("kind", ["plain", "levels", "weights", "rows", "features"])
def test_levels_are_those_of_the_computed_steps(kind):
    policy = policies()[kind].model_dump(mode="json", exclude_none=True)
    full = policies()[kind].sigmas or LEVELS
    computed = [k for k, bit in enumerate(policy["mask"]) if bit == "1"]
    assert runtime.levels_of(policy, LEVELS) == [full[k] for k in (*computed, STEPS)]


falling = st.lists(st.floats(0.001, 1.0), min_size=4, max_size=4, unique=True).map(
    lambda found: (*sorted(found, reverse=True), 0.0)
)


@given(falling, falling, falling)
def test_own_levels_move_as_in_serving(sigmas, made, full):
    policy = Policy(mask="1010", sigmas=sigmas, origin=Origin(levels=made))
    found = policy.model_dump(mode="json", exclude_none=True)
    assert runtime.own_levels(found, full) == list(own_levels(policy, full))
    moved = own_levels(policy, full)
    assert runtime.levels_of(found, full) == [moved[0], moved[2], 0.0]
    assert runtime.levels_of(found) == [sigmas[0], sigmas[2], 0.0]


@pytest.mark.parametrize(
    ("text", "budget", "words"),
    [
        ("nonsense", 0, "not JSON"),
        ("[" * 100_000, 0, "not JSON"),
        ("[1, 2]", 0, "no mask"),
        ('{"mask": "0110"}', 0, "no mask"),
        ('{"mask": [1, 0]}', 0, "no mask"),
        ('{"rungs": [{"mask": "10"}, {"mask": "11"}]}', 0, r"\[1, 2\]"),
        ('{"mask": "101"}', 3, r"\[2\]"),
        ('{"mask": "10", "reuse": "residual"}', 0, "magcache"),
        ('{"mask": "101", "rows": [{"outputs": [1.0]}]}', 0, "rows"),
    ],
)
def test_a_text_that_is_no_policy_is_refused(text, budget, words):
    with pytest.raises(ValueError, match=words):
        runtime.read_policy(text, budget)


def test_a_ladder_is_read_by_budget():
    ladder = Ladder.of([Policy(mask="100"), Policy(mask="110")])
    text = json.dumps(ladder.model_dump(mode="json", exclude_none=True))
    assert runtime.read_policy(text, 2)["mask"] == "110"
    with pytest.raises(ValueError, match="4 noise levels, there are none"):
        runtime.levels_of(runtime.read_policy(text, 2))
