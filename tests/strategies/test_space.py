"""The space of masks of one budget, and its moves."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budcache import Mask, SearchError
from budcache.strategies import Space


@st.composite
def places(draw, most=14):
    """A space and a mask of it."""
    steps = draw(st.integers(1, most))
    space = Space(steps, draw(st.integers(1, steps)))
    return space, space.random(Random(draw(st.integers(0, 2**32))))


def move(here, there):
    """What a move took away and what it brought."""
    return set(here.computed) - set(there.computed), set(there.computed) - set(here.computed)


@given(places(most=10))
def test_it_has_as_many_masks_as_it_says(place):
    space, mask = place
    masks = list(space)
    assert len(masks) == len(space) == len(set(masks))
    assert all(one in space for one in masks)
    assert mask in masks


@given(places())
def test_it_knows_what_is_not_in_it(place):
    space, mask = place
    assert mask in space
    assert str(mask) not in space
    assert Mask.full(space.steps + 1) not in space
    for budget in {1, space.steps} - {space.budget}:
        assert Mask.uniform(space.steps, budget) not in space


@given(places())
def test_neighbours_are_all_the_masks_one_move_away(place):
    space, mask = place
    found = space.neighbours(mask)
    assert len(found) == len(set(found)) == (space.budget - 1) * (space.steps - space.budget)
    for other in found:
        assert other in space
        gone, come = move(mask, other)
        assert len(gone) == len(come) == 1
        assert mask in space.neighbours(other)


@given(places(most=9))
def test_no_neighbour_is_left_out(place):
    space, mask = place
    near = {other for other in space if len(move(mask, other)[0]) == 1}
    assert set(space.neighbours(mask)) == near == set(space.swaps(mask))


@given(places())
def test_shifts_move_one_step_to_the_one_beside_it(place):
    space, mask = place
    found = space.shifts(mask)
    assert len(found) == len(set(found))
    assert set(found) <= set(space.swaps(mask))
    for other in found:
        (gone,), (come,) = move(mask, other)
        assert abs(gone - come) == 1
        assert mask in space.shifts(other)
    beside = {other for other in space.swaps(mask) if abs(min(move(mask, other)[0]) - min(move(mask, other)[1])) == 1}
    assert set(found) == beside


@given(places(), st.integers(1, 5))
def test_a_window_keeps_the_near_moves(place, window):
    space, mask = place

    def far(other):
        (gone,), (come,) = move(mask, other)
        return abs(gone - come)

    found = space.neighbours(mask, window)
    assert found == [other for other in space.neighbours(mask) if far(other) <= window]
    assert set(space.neighbours(mask, 1)) == set(space.shifts(mask))
    assert space.neighbours(mask, space.steps) == space.neighbours(mask)


@given(places(), st.integers(0, 2**32))
def test_a_random_neighbour_is_one(place, seed):
    space, mask = place
    found = space.neighbour(mask, Random(seed))
    assert found in space
    assert found in space.neighbours(mask) or (found == mask and not space.neighbours(mask))


def test_a_random_neighbour_comes_by_either_operator():
    """Swap reaches everywhere; Shift doubles the chance of what is near, so near moves come more often."""
    space, mask, rng = Space(12, 2), Mask.of(12, (0, 5)), Random(0)
    drawn = [space.neighbour(mask, rng).computed[1] for _ in range(3000)]
    assert set(drawn) == set(range(1, 12)) - {5}
    near = sum(step in (4, 6) for step in drawn) / len(drawn)
    assert 0.5 < near < 0.7  # half of them by Shift, and 2 of 10 by Swap: 0.6


@given(places())
def test_where_there_is_a_swap_there_is_a_shift(place):
    """So neither operator ever comes up with nothing where the other has something."""
    space, mask = place
    assert bool(space.shifts(mask)) == bool(space.swaps(mask)) == (1 < space.budget < space.steps)


def test_where_there_is_no_move_the_mask_stays():
    assert Space(4, 1).neighbour(Mask.parse("1000"), Random(0)) == Mask.parse("1000")
    assert Space(4, 4).neighbour(Mask.full(4), Random(0)) == Mask.full(4)


@given(places(), st.integers(0, 2**32), st.data())
def test_random_masks_keep_a_computed_prefix(place, seed, data):
    space, _ = place
    fresh = data.draw(st.integers(1, space.budget))
    mask = space.random(Random(seed), fresh)
    assert mask in space
    assert mask.computed[:fresh] == tuple(range(fresh))
    assert mask == space.random(Random(seed), fresh)


def test_random_masks_reach_everything():
    space, rng = Space(6, 3), Random(1)
    assert {space.random(rng) for _ in range(500)} == set(space)
    assert {space.random(rng, 2) for _ in range(200)} == {mask for mask in space if mask[1]}


@given(places())
def test_the_uniform_mask_is_in_the_space(place):
    space, _ = place
    mask = space.uniform()
    assert mask in space
    lengths = [end - begin for begin, end in mask.segments]
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize(("steps", "budget"), [(4, 0), (4, 5), (0, 0), (0, 1), (4, -1)])
def test_no_space_without_masks(steps, budget):
    with pytest.raises(SearchError, match=f"budget of {budget} does not fit {steps} steps"):
        Space(steps, budget)
