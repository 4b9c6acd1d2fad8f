"""The errors of stretches from inner products alone, against the same by hand on the latents."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from runs import recorded

from budcache import Mask, Policy, SearchError
from budcache.aggregate import mean
from budcache.records.gram import Grams
from budcache.records.paths import ShortestPaths, longest_stretch, progress
from budcache.records.stretches import MAX_STEPS, NONE, Stretches
from budcache.refine.equations import Equations


def by_hand(known, step, end, before, ridge=1e-3):
    """The best blend of one stretch on the full runs' own trajectories, by the normal equations that fits use."""
    parts = []
    for number, run in enumerate(known.runs):
        x = known.trajectory(number)
        outputs = [run.compute(x[k], run.sigmas[k])[0] for k in (step, *reversed(before))]
        push = float(run.sigmas[end] - run.sigmas[step])
        moves = torch.stack([(push * v).flatten(1) for v in outputs], 1)
        parts.append(Equations.of(moves, (x[end] - x[step]).flatten(1)))
    equations = Equations.join(parts)
    weights = equations.solve(ridge, balance=1.0)
    return weights, mean(equations.errors(weights).tolist())


@pytest.mark.parametrize(
    ("step", "end", "before"), [(0, 3, ()), (2, 5, (0,)), (4, 9, (0, 1)), (7, 10, (2, 6)), (9, 10, (3, 4))]
)
def test_the_error_of_a_stretch_is_that_of_a_fit_on_the_full_run(step, end, before):
    known, grams = recorded()
    stretches = Stretches(grams)
    weights, error = by_hand(known, step, end, before)
    assert stretches.errors(step)[1][stretches.row(step, before), end] == pytest.approx(error, rel=1e-6)
    computed = (*before, step, *((end,) if end < grams.steps else ()))
    mask = Mask.of(grams.steps, (0, *(k for k in computed if k)))
    if mask.computed == tuple(computed):  # a path that begins at step 0
        assert stretches.blends(mask)[len(before)] == pytest.approx(weights, rel=1e-5)


def test_without_a_fit_the_error_is_that_of_repeating_the_output():
    known, grams = recorded()
    stretches = Stretches(grams, fitted=False)
    for step, end in ((0, 4), (3, 10)):
        errors = []
        for number, run in enumerate(known.runs):
            x = known.trajectory(number)
            v = run.compute(x[step], run.sigmas[step])[0]
            errors.append(float((x[step] + (run.sigmas[end] - run.sigmas[step]) * v - x[end]).square().mean()))
        assert stretches.errors(step)[1][0, end] == pytest.approx(mean(errors), rel=1e-6)


def test_a_step_that_follows_at_once_costs_nothing():
    _, grams = recorded()
    assert max(Stretches(grams, fitted=False).errors(k)[1][0, k + 1] for k in range(grams.steps)) < 1e-12


def test_longer_stretches_than_the_longest_are_left_out():
    _, grams = recorded()
    stretches = Stretches(grams, longest=3)
    errors = stretches.errors(2)[1]
    assert np.isfinite(errors[:-1, 3:6]).all()
    assert np.isinf(errors[:, 6:]).all() and np.isinf(errors[:, :3]).all()
    assert np.isinf(stretches.errors(5)[1][stretches.row(5, (0, 1))]).all()  # from 1 to 5 is too long
    assert np.isfinite(stretches.errors(5)[1][stretches.row(5, (0, 2)), 6:9]).all()


def test_products_that_no_vectors_have_are_refused_with_a_sentence():
    with pytest.raises(SearchError, match="contradict each other"):
        Stretches(Grams(np.linspace(1, 0, 5), -np.ones((2, 9, 9)))).errors(3)


def test_outputs_that_are_all_zero_make_no_trouble():
    levels = np.linspace(1, 0, 6)
    errors = Stretches(Grams(levels, np.zeros((2, 11, 11)))).errors(3)[1]
    assert errors[:-1, 4:].max() == 0


def test_runs_of_too_many_steps_are_refused_with_a_sentence():
    steps = MAX_STEPS + 1
    grams = Grams(np.linspace(1, 0, steps + 1), np.zeros((1, 2 * steps + 1, 2 * steps + 1)))
    with pytest.raises(SearchError, match="search with the strategy ladder"):
        Stretches(grams)
    Stretches(grams, fitted=False)


@pytest.mark.parametrize("fitted", [True, False])
@pytest.mark.parametrize("power", [-0.5, 0.0, 0.5])
def test_shortest_paths_are_those_of_trying_all(fitted, power):
    _, grams = recorded(steps=8)
    find = ShortestPaths(Stretches(grams, fitted))
    found = find((1, 2, 3, 4, 8), power, count=2)
    for budget, masks in found.items():
        every = [Mask.of(8, (0, *rest)) for rest in combinations(range(1, 8), budget - 1)]
        costs = sorted(find.cost(mask, power) for mask in every)
        assert [find.cost(mask, power) for mask in masks] == pytest.approx(costs[:2], rel=1e-9, abs=1e-15)
        assert all(mask.budget == budget for mask in masks)


@pytest.mark.parametrize("budgets", [(1,), (2,), (3, 7), (4, 5), (28,)])
def test_leaving_long_stretches_out_leaves_a_path_for_every_budget(budgets):
    _, grams = recorded(steps=28, samples=1)
    found = ShortestPaths.through(grams, budgets)(budgets, 0.5)
    assert [masks[0].budget for masks in found.values()] == list(budgets)


def test_leaving_long_stretches_out_does_not_change_the_best_paths():
    _, grams = recorded(steps=28, samples=2)
    budgets = (4, 6, 8, 12)
    assert longest_stretch(28, budgets) == 14
    assert longest_stretch(8, (3, 4)) == 8  # where masks are few, none is left out
    assert ShortestPaths.through(grams, budgets)(budgets, 0.5) == ShortestPaths(Stretches(grams))(budgets, 0.5)


def test_what_the_full_runs_say_holds_on_the_model():
    """Masks and weights from the full runs alone, rolled: far nearer to them than as many evenly spaced plain steps."""
    known, grams = recorded(steps=12, samples=4)
    find = ShortestPaths(Stretches(grams))
    for budget in (3, 4, 6):
        (mask,) = find([budget], 0.5)[budget]
        blended = Policy(mask=mask, weights=find.stretches.blends(mask))
        uniform = Policy(mask=Mask.uniform(12, budget))
        losses = [mean(known.losses(known.finals(policy))) for policy in (blended, uniform)]
        assert losses[0] < losses[1] / 5


def test_progress_goes_from_noise_to_data_for_every_kind_of_levels():
    for levels in (np.linspace(1, 0, 5), np.array([14.6, 3.0, 0.5, 0.0]), np.linspace(0, 1, 5)):
        found = progress(levels)
        assert found[0] == 0
        assert found[-1] == 1
        assert (np.diff(found) > 0).all()


def test_the_first_step_has_no_predecessors():
    _, grams = recorded()
    assert Stretches(grams).errors(0)[0] == {(NONE, NONE): 0}
    assert list(Stretches(grams).errors(2)[0]) == [(0, NONE), (1, 0)]
