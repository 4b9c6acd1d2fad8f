"""Fitting: the closed form does what it says, and every search works with it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import SOLVERS, STEPS, Toy, calibration

from budcache import Mask, Policy, SearchError
from budcache.aggregate import mean
from budcache.calibration.calibration import Calibration
from budcache.calibration.scoring import PlainScorer
from budcache.numerics.rollout import rollout
from budcache.numerics.solvers import euler, ipndm2
from budcache.plan import Plan
from budcache.refine.equations import Equations
from budcache.refine.fit import FittedScorer
from budcache.strategies import Anneal, LadderSearch, Polished, drive

MASK = Mask.parse("110100100100")
masks = st.text("01", min_size=STEPS - 1, max_size=STEPS - 1).map(lambda rest: Mask.parse("1" + rest))
each_solver = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)


def fit(known, mask, **options):
    return FittedScorer(known, **options).fit(mask).weights


def losses(known, mask, rows=None):
    """What every sample loses under a policy, really rolled."""
    return known.losses(known.finals(Policy(mask=mask, weights=rows)))


@each_solver
def test_a_fitted_policy_is_nearer_to_the_teacher_on_samples_it_has_not_seen(solver):
    rows = fit(calibration(range(24), solver), MASK)
    unseen = calibration(range(100, 116), solver)
    assert mean(losses(unseen, MASK, rows)) < 0.5 * mean(losses(unseen, MASK))


def test_it_costs_one_pass():
    toys = [Toy(seed) for seed in range(3)]
    known = Calibration(toys)
    before = known.calls
    fit(known, MASK)
    assert known.calls - before == 3 * MASK.budget


def test_rows_grow_with_the_outputs_there_are():
    rows = fit(calibration(range(4)), MASK, outputs=3)
    assert [len(row) for row in rows] == [1, 2, 3, 3, 3]


def of_least_squares(known, end, target):
    """The one weight of the stretch from the first step to `end` that brings it nearest to the teacher at `target`."""
    above = below = 0.0
    for number, run in enumerate(known.runs):
        move = (run.sigmas[end] - run.sigmas[0]) * run.field(run.noise, run.sigmas[0])
        above += float((move * (known.trajectory(number)[target] - run.noise)).sum())
        below += float((move * move).sum())
    return above / below


def test_a_strong_ridge_is_plain_reuse_and_a_weak_one_is_least_squares():
    known, mask = calibration(range(8)), Mask.parse("100010010000")
    for row in fit(known, mask, ridge=1e9, balance=0):
        torch.testing.assert_close(torch.tensor(row), torch.eye(len(row))[0], atol=1e-6, rtol=0)
    (first,), *_ = fit(known, mask, ridge=0.0, balance=0)
    assert first == pytest.approx(of_least_squares(known, 4, 4))
    assert first != pytest.approx(1.0, abs=0.01)


def test_the_other_target_is_the_final_latent_as_if_the_blend_were_kept_to_the_end():
    known, mask = calibration(range(8)), Mask.parse("100010010000")
    to_next, to_final = (fit(known, mask, ridge=0.0, balance=0, target=target) for target in ("next", "final"))
    assert to_final[0][0] == pytest.approx(of_least_squares(known, STEPS, STEPS))
    assert to_final[0] != pytest.approx(to_next[0])
    alone = Mask.parse("1" + "0" * (STEPS - 1))  # where the next step is the end there is no difference
    assert fit(known, alone, target="final") == fit(known, alone, target="next")


def test_balance_lets_every_sample_count_by_its_own_measure():
    """Least squares serves the few that stray far; balanced, the product of all errors is smaller."""
    runs, mask = [Toy(seed) for seed in range(12)], Mask.parse("100000010000")
    for run in runs[:2]:
        run.noise = run.noise * 3
    known, errors = Calibration(runs), {}
    for balance in (0.0, 1.0):
        policy = Policy(mask=mask, weights=fit(known, mask, ridge=0.0, balance=balance))
        errors[balance] = [
            float((rollout(run, run.noise, Plan.of(policy, run.sigmas, 0, 7)) - known.trajectory(i)[7]).square().mean())
            for i, run in enumerate(runs)
        ]
    assert sum(errors[0.0]) < sum(errors[1.0])
    assert sum(map(math.log, errors[1.0])) < sum(map(math.log, errors[0.0]))


def test_batches_and_single_samples_fit_the_same():
    single = calibration(range(4))
    together = Toy(0)
    together.noise = torch.cat([run.noise for run in single.runs])
    rows = fit(Calibration([together]), MASK)
    for ours, theirs in zip(rows, fit(single, MASK), strict=True):
        assert ours == pytest.approx(theirs)


def test_the_full_mask_needs_no_blend():
    for row in fit(calibration(range(4)), Mask.full(STEPS)):
        torch.testing.assert_close(torch.tensor(row), torch.eye(len(row))[0], atol=1e-3, rtol=0)


# The score of a mask is that of its fitted reuse.


@each_solver
@settings(max_examples=8)
@given(asked=st.lists(masks, min_size=1, max_size=6), bound=st.integers(1, 4000))
def test_scores_do_not_depend_on_what_is_remembered(solver, asked, bound):
    known = Calibration([Toy(0, 2, solver), Toy(1, 1, solver)])
    all_kept, some_kept, none_kept = (FittedScorer(known, memory=memory) for memory in (10**9, bound, 0))
    for mask in asked:
        score = none_kept.score(mask)
        assert all_kept.score(mask) == score
        assert some_kept.score(mask) == score
        assert all_kept.fit(mask).weights == none_kept.fit(mask).weights == some_kept.fit(mask).weights
        assert known.prefixes(some_kept.scope)._memory.size <= bound


@each_solver
@pytest.mark.parametrize("target", ["next", "final"])
@settings(max_examples=8)
@given(mask=masks, outputs=st.integers(1, 4), balance=st.sampled_from([0.0, 1.0]))
def test_the_loss_is_that_of_following_the_weights(solver, target, mask, outputs, balance):
    known = Calibration([Toy(0, 2, solver), Toy(1, 1, solver)])
    fitted = FittedScorer(known, outputs=outputs, balance=balance, target=target)
    found = fitted.fit(mask)
    assert fitted.score(mask).losses == found.losses == losses(known, mask, found.weights)
    assert fitted.score(mask).weights == found.weights and found.rows is None


@each_solver
@pytest.mark.parametrize("target", ["next", "final"])
@settings(max_examples=5)
@given(mask=masks.filter(lambda mask: not mask[STEPS - 1]))
def test_arrivals_are_those_of_really_following_the_fitted_stretch(solver, target, mask):
    known = Calibration([Toy(0, 2, solver), Toy(1, 1, solver)])
    fitted, reached = FittedScorer(known, target=target), mask.computed[-1] + 1
    arrivals = fitted.score(mask).arrivals
    assert arrivals[:reached] == (None,) * reached
    for step in range(reached, STEPS + 1):
        # The stretch to a step is the one that is fitted where that step is the next to be computed.
        there = mask if step == STEPS else Mask.of(STEPS, {*mask.computed, step})
        policy, errors = Policy(mask=mask, weights=fitted.fit(there).weights[: mask.budget]), []
        for number, run in enumerate(known.runs):
            x = rollout(run, run.noise, Plan.of(policy, run.sigmas, 0, step), solver)
            errors += (x - known.trajectory(number)[step]).square().mean(1).tolist()
        # Found from sums of products, so that squares of small differences keep only half their digits.
        assert arrivals[step] == pytest.approx(errors, rel=1e-6, abs=1e-14)


@settings(max_examples=10)
@given(asked=st.lists(masks, min_size=1, max_size=6))
def test_with_memory_every_prefix_is_computed_once(asked):
    known = Calibration([Toy(0, 2), Toy(1, 1)])
    fitted, before = FittedScorer(known, memory=10**9), known.calls
    for mask in asked:
        fitted.score(mask)
    prefixes = {mask.computed[:place] for mask in asked for place in range(1, mask.budget + 1)}
    assert known.calls - before == 3 * len(prefixes)


@settings(max_examples=10)
@given(mask=masks)
def test_without_memory_a_mask_is_one_pass(mask):
    """The stretches are fitted on the way, each from where the one before it ended."""
    known = Calibration([Toy(0, 2), Toy(1, 1)])
    before = known.calls
    FittedScorer(known).score(mask)
    assert known.calls - before == 3 * mask.budget
    before = known.calls
    FittedScorer(known).fit(mask)
    assert known.calls - before == 3 * mask.budget


@pytest.mark.parametrize(
    ("plan", "solver"),
    [
        *((LadderSearch(), solver) for solver in SOLVERS.values()),
        (Anneal(12), euler),
        (Polished(None, (MASK,)), ipndm2),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_every_search_works_with_fitted_reuse(plan, solver):
    """Where plain reuse is scored, fitted reuse can be; and for the same mask it is the better."""
    known = calibration(range(4), solver)
    fitted, plainly = FittedScorer(known, memory=10**9), PlainScorer(known, memory=10**9)
    found, plain = (
        drive(plan, lambda ask, scorer=scorer: scorer.score_many(ask.masks), steps=STEPS, budgets=[5])
        for scorer in (fitted, plainly)
    )
    (best,) = found.best(5)
    loss = found.scores[best].loss
    assert loss == min(step.loss for step in found.history if step.mask.budget == 5)
    assert found.scores[best].losses == losses(known, best, fitted.fit(best).weights)
    assert loss < 0.5 * plain.scores[plain.best(5)[0]].loss


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"outputs": 0}, "outputs, not 0"),
        ({"outputs": 129}, "128 outputs, not 129"),
        ({"ridge": -1e-3}, "finite and at least 0, got -0.001"),
        ({"ridge": math.nan}, "finite and at least 0, got nan"),
        ({"ridge": math.inf}, "finite and at least 0, got inf"),
        ({"target": "last"}, "no target 'last'"),
    ],
    ids=str,
)
def test_what_cannot_be_fitted_is_refused(options, says):
    with pytest.raises(SearchError, match=says):
        FittedScorer(calibration(range(1)), **options)


@pytest.mark.parametrize("steps", [STEPS - 1, STEPS + 1])
def test_a_mask_of_another_length_is_refused(steps):
    fitted = FittedScorer(calibration(range(1)))
    for action in (fitted.score, fitted.fit, lambda mask: next(fitted.score_many([mask]))):
        with pytest.raises(SearchError, match=f"the mask has {steps} steps, but the runs have {STEPS}"):
            action(Mask.full(steps))


# The normal equations


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 1000))
def test_errors_are_those_of_the_weighted_sum(outputs, samples, seed):
    moves, missing = numbers(samples, outputs, 7, seed=seed), numbers(samples, 7, seed=seed + 1)
    weights = numbers(outputs, seed=seed + 2)
    right = (missing - (weights[:, None] * moves).sum(1)).square().mean(1)
    torch.testing.assert_close(Equations.of(moves, missing).errors(weights.tolist()), right)


def test_the_solution_is_that_of_least_squares():
    moves, missing = numbers(3, 2, 9), numbers(3, 9, seed=1)
    stacked = moves.transpose(1, 2).reshape(-1, 2)
    right = torch.linalg.lstsq(stacked, missing.reshape(-1)).solution
    assert Equations.of(moves, missing).solve(0.0, 0.0) == pytest.approx(right.tolist())


def test_samples_join_in_their_order():
    moves, missing = numbers(5, 2, 9), numbers(5, 9, seed=1)
    whole = Equations.of(moves, missing)
    parts = Equations.join([Equations.of(moves[:2], missing[:2]), Equations.of(moves[2:], missing[2:])])
    for name in ("gram", "right", "square"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name))


def test_outputs_that_are_all_zero_are_repeated():
    """A network fresh from its initialisation says so; any weights would do, and the system has no one solution."""
    nothing = Equations.of(torch.zeros(2, 3, 5, dtype=torch.float64), torch.ones(2, 5, dtype=torch.float64))
    assert nothing.solve(ridge=1e-3, balance=1.0) == (1.0, 0.0, 0.0)
