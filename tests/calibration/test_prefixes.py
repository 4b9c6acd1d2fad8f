"""States after computed prefixes: what is remembered saves calls and changes nothing (F4)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import SOLVERS, Residual, Toy

from budcache import Mask, SearchError
from budcache.calibration.calibration import Calibration
from budcache.calibration.prefixes import Memory, Prefixes
from budcache.numerics.memory import leaves, size_of
from budcache.numerics.rollout import State, compute, ended, reuse
from budcache.plan import Stretch
from budcache.policy import MAX_BLEND

STEPS = 7
masks = st.text("01", min_size=STEPS - 1, max_size=STEPS - 1).map(lambda rest: Mask.parse("1" + rest))
kinds = pytest.mark.parametrize("kind", [Toy, Residual])
each_solver = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)


def calibrated(kind=Toy, *samples, solver=SOLVERS["euler"]):
    runs = [kind(seed, count, solver, STEPS) for seed, count in enumerate(samples or (1,))]
    return Calibration(runs, residual=kind is Residual)


def way(mask, blends=()):
    """The stretches of a mask but for the last, some of them with a blend."""
    found = []
    for place, (step, end) in enumerate(mask.segments[:-1]):
        blend = blends[place] if place < len(blends) else None
        found.append(Stretch(step, end, None if blend is None else blend[: place + 1]))
    return tuple(found)


def walked(calibration, stretches, outputs):
    """The states at the end of some stretches, without any memory."""
    states = []
    for number, run in enumerate(calibration.runs):
        state = compute(run, State(run.noise), run.sigmas, outputs)
        for stretch in stretches:
            passed = reuse(run, state, stretch, run.sigmas, calibration.solver(number), calibration.residual)
            state = compute(run, ended(passed), run.sigmas, outputs)
        states.append(state)
    return states


blends = st.lists(st.none() | st.sampled_from([(1.2, -0.2), (0.9,), (1.0, 0.3, -0.3)]), max_size=4)


@kinds
@each_solver
@settings(max_examples=15)
@given(asked=st.lists(st.tuples(masks, blends), min_size=1, max_size=8), bound=st.sampled_from([0, 300, 2000, 10**9]))
def test_a_walk_ends_where_it_ends_without_memory(kind, solver, asked, bound):
    calibration = calibrated(kind, 2, 1, solver=solver)
    prefixes = Prefixes(calibration, outputs=3, memory=bound)
    for mask, some in asked:
        stretches = way(mask, () if kind is Residual else some)
        for found, right in zip(prefixes.at(stretches), walked(calibration, stretches, 3), strict=True):
            assert found.step == right.step == mask.computed[-1]
            assert torch.equal(found.x, right.x)
            assert len(found.outputs) == min(3, mask.budget)
            assert all(map(torch.equal, found.outputs, right.outputs))


@kinds
@settings(max_examples=30)
@given(asked=st.lists(masks, min_size=1, max_size=12))
def test_with_memory_every_prefix_is_computed_once(kind, asked):
    calibration = calibrated(kind)
    prefixes, before = Prefixes(calibration, memory=10**9), calibration.calls
    for mask in asked:
        prefixes.at(way(mask))
    known = {mask.computed[:place] for mask in asked for place in range(1, mask.budget + 1)}
    assert calibration.calls - before == len(known)


@settings(max_examples=30)
@given(asked=st.lists(masks, min_size=1, max_size=12))
def test_without_memory_only_the_last_walk_is_gone_on_with(asked):
    calibration = calibrated()
    prefixes, newest = Prefixes(calibration), None
    for mask in asked:
        before = calibration.calls
        prefixes.at(way(mask))
        goes_on = newest is not None and way(mask)[: len(newest)] == newest
        assert calibration.calls - before == mask.budget - (len(newest) + 1 if goes_on else 0)
        newest = way(mask)


def test_the_same_steps_with_another_blend_are_another_walk():
    calibration = calibrated()
    prefixes = Prefixes(calibration, outputs=2, memory=10**9)
    ends = [prefixes.at((Stretch(0, 2, blend), Stretch(2, 4)))[0].x for blend in (None, (1.0,), (0.9,), None)]
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])
    assert torch.equal(ends[0], ends[3])
    assert calibration.calls == STEPS + 1 + 3 * 2  # the first step is shared


@kinds
@settings(max_examples=20)
@given(asked=st.lists(masks, min_size=1, max_size=8), bound=st.integers(0, 3000))
def test_no_more_is_remembered_than_allowed(kind, asked, bound):
    prefixes = Prefixes(calibrated(kind, 2, 1), memory=bound)
    for mask in asked:
        prefixes.at(way(mask))
        held = list(prefixes._memory._known.values())
        once = {id(leaf): size_of(leaf) for leaf in leaves(held)}  # neighbours share tensors
        assert sum(once.values()) == prefixes._memory.size <= bound


def test_what_was_used_last_stays():
    memory = Memory(3 * 8)
    for key in "abc":
        memory.put(key, torch.zeros(1, dtype=torch.float64))
    for key in "defg":  # each pushes one out; what is asked for again and again never gets old
        assert memory.get("a") is not None
        memory.put(key, torch.zeros(1, dtype=torch.float64))
        assert len(memory) == 3
    assert memory.get("a") is not None
    assert [memory.get(key) is not None for key in "bcdefg"] == [False] * 4 + [True] * 2


def test_what_does_not_fit_at_all_is_not_remembered():
    memory = Memory(4)
    memory.put("large", torch.zeros(2))
    assert (memory.get("large"), len(memory), memory.size) == (None, 0, 0)
    nothing = Memory(0)
    nothing.put("empty", [])
    assert nothing.get("empty") is None


def test_what_is_forgotten_is_computed_again():
    calibration = calibrated()
    prefixes, stretches = Prefixes(calibration, memory=10**9), way(Mask.parse("1010100"))
    first = prefixes.at(stretches)
    before = calibration.calls
    assert prefixes.at(stretches) is first
    assert calibration.calls == before
    prefixes.forget()
    assert torch.equal(prefixes.at(stretches)[0].x, first[0].x)
    assert calibration.calls == before + 3


@pytest.mark.parametrize("outputs", [0, MAX_BLEND + 1])
def test_no_more_outputs_are_kept_than_a_policy_blends(outputs):
    with pytest.raises(SearchError, match=f"blends 1 to {MAX_BLEND} outputs, not {outputs}"):
        Prefixes(calibrated(), outputs)
