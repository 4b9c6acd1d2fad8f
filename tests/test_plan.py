"""The plan: what a policy means for one run, whole or from the middle."""

from __future__ import annotations

import itertools
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budcache import Mask, Origin, Policy, PolicyError
from budcache.plan import Plan, Stretch, own_levels

weights = st.floats(-2, 2)


@st.composite
def policies(draw, most=14):
    """Any mask, with plain or residual reuse or with a row of weights for each computed step."""
    mask = Mask.parse("1" + draw(st.text("01", max_size=most - 1)))
    kind = draw(st.sampled_from(["plain", "residual", "blend"]))
    if kind != "blend":
        return Policy(mask=mask, reuse="residual" if kind == "residual" else "output")
    rows = [draw(st.lists(weights, min_size=1, max_size=min(row + 1, 4))) for row in range(mask.budget)]
    return Policy(mask=mask, weights=rows)


@st.composite
def parts(draw):
    """A policy, and a run of a part of its steps."""
    policy = draw(policies())
    begin = draw(st.integers(0, policy.steps - 1))
    return policy, begin, draw(st.integers(begin + 1, policy.steps))


def levels(policy):
    return tuple(1 - k / policy.steps for k in range(policy.steps + 1))


@given(parts())
def test_the_stretches_tile_the_run(part):
    policy, begin, end = part
    plan = Plan.of(policy, levels(policy), begin, end)
    assert [k for stretch in plan for k in range(stretch.step, stretch.end)] == list(range(begin, end))
    assert all(stretch.step < stretch.end for stretch in plan)
    assert (plan.begin, plan.end) == (begin, end)
    assert plan.levels == levels(policy)
    assert plan.reuse == policy.reuse


@given(parts())
def test_what_is_computed_is_what_the_mask_computes_and_the_first_step(part):
    policy, begin, end = part
    plan = Plan.of(policy, levels(policy), begin, end)
    assert plan.computed == tuple(k for k in range(begin, end) if policy.mask[k] or k == begin)
    assert plan.calls == len(plan.stretches) == len(plan.computed)
    assert plan.calls == sum(policy.mask.bits[begin:end]) + (not policy.mask[begin])


@given(parts())
def test_a_blend_is_used_where_all_that_it_was_fitted_with_is_at_hand(part):
    """Outputs that this run and the whole one both compute; what the run computes of its own accord is another's."""
    policy, begin, end = part
    plan = Plan.of(policy, levels(policy), begin, end)
    rows = dict(zip(policy.mask.computed, policy.weights or (), strict=False))
    left_out = 0
    for stretch in plan:
        seen = sum(policy.mask.bits[begin : stretch.step + 1])
        row = rows.get(stretch.step)
        fits = row is not None and len(row) <= seen
        assert stretch.blend == (row if fits else None)
        left_out += row is not None and not fits
    assert plan.plain == left_out
    assert plan.outputs == max((len(stretch.blend) for stretch in plan if stretch.blend), default=1)


@given(policies())
def test_a_whole_run_is_the_policy_itself(policy):
    plan = Plan.of(policy, levels(policy))
    assert [(stretch.step, stretch.end) for stretch in plan] == list(policy.mask.segments)
    assert plan.calls == policy.budget
    assert plan.plain == 0
    assert tuple(stretch.blend for stretch in plan) == (policy.weights or (None,) * policy.budget)
    assert plan == Plan.of(policy, levels(policy), 0, policy.steps)


def test_a_run_from_the_middle_by_hand():
    policy = Policy(mask="110100", weights=[[1.0], [1.2, -0.2], [1.5, -0.6, 0.1]])
    # Step 2 is computed although the mask reuses it; the blend of step 3 looks back on steps 1 and 0.
    assert Plan.of(policy, (), 2) == Plan((), (Stretch(2, 3), Stretch(3, 6)), plain=1)
    assert Plan.of(policy, (), 1) == Plan((), (Stretch(1, 3), Stretch(3, 6)), plain=2)
    assert Plan.of(policy, (), 0, 3) == Plan((), (Stretch(0, 1, (1.0,)), Stretch(1, 3, (1.2, -0.2))))


@given(parts(), parts())
def test_equal_plans_are_one_key(one, other):
    plans = [Plan.of(policy, levels(policy), begin, end) for policy, begin, end in (one, one, other)]
    assert plans[0] == plans[1]
    assert hash(plans[0]) == hash(plans[1])
    same = (plans[0].stretches, plans[0].levels, plans[0].reuse) == (
        plans[2].stretches,
        plans[2].levels,
        other[0].reuse,
    )
    assert (plans[0] == plans[2]) == (same and plans[0].plain == plans[2].plain)
    assert len(set(plans)) == 1 + (plans[0] != plans[2])


def test_a_plan_cannot_be_changed():
    given = [1.0, 0.5, 0.0]
    plan = Plan.of(Policy(mask="11"), given)
    given[0] = 2.0
    assert plan.levels == (1.0, 0.5, 0.0)
    for thing, name in ((plan, "levels"), (plan, "plain"), (plan.stretches[0], "end")):
        with pytest.raises(FrozenInstanceError):
            setattr(thing, name, 1)


@pytest.mark.parametrize(("begin", "end"), [(-1, 3), (3, 3), (2, 1), (0, 5), (4, None)])
def test_a_run_that_does_not_fit_is_refused(begin, end):
    with pytest.raises(PolicyError, match=rf"a run from step {begin} to {end or 4} does not fit a policy of 4 steps\."):
        Plan.of(Policy(mask="1010"), (), begin, end)


# Own levels at another size


MADE = (1.0, 0.8, 0.5, 0.2, 0.0)
OWN = Policy(mask="1010", sigmas=[0.9, 0.8, 0.35, 0.1, 0.0], origin=Origin(levels=MADE))


def test_own_levels_stay_where_the_pipeline_has_the_levels_they_were_made_with():
    assert own_levels(OWN, MADE) is OWN.sigmas
    assert own_levels(OWN, tuple(level * (1 + 1e-6) for level in MADE)) is OWN.sigmas
    for unknown in (None, Origin()):
        assert own_levels(OWN.model_copy(update={"origin": unknown}), (1.0, 0.9, 0.8, 0.7, 0.0)) == OWN.sigmas


def test_own_levels_move_with_the_pipelines():
    there = (1.0, 0.9, 0.7, 0.4, 0.0)
    assert own_levels(OWN, there) == pytest.approx((0.95, 0.9, 0.55, 0.2, 0.0))
    same = OWN.model_copy(update={"sigmas": MADE})
    assert own_levels(same, there) == pytest.approx(there), "what was the pipeline's is the pipeline's"


@given(st.lists(st.floats(0.01, 1.0), min_size=4, max_size=4, unique=True))
def test_moved_levels_still_fall_and_end_at_zero(values):
    there = (*sorted((round(v, 3) + i * 1e-3 for i, v in enumerate(sorted(values))), reverse=True), 0.0)
    moved = own_levels(OWN, there)
    assert all(a > b for a, b in itertools.pairwise(moved)) and moved[-1] == 0
