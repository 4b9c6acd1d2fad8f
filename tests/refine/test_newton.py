"""Alignment without gradients (F14): columns are derivatives, steps help, and cost what is said."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from toys import SOLVERS, Toy, calibration, velocity

from budcache import Mask, Policy, SearchError
from budcache.aggregate import geometric_mean
from budcache.calibration.calibration import Calibration
from budcache.jobs.estimate import equation_calls
from budcache.numerics.rollout import rollout
from budcache.plan import Plan
from budcache.refine.equations import Equations
from budcache.refine.fit import FittedScorer
from budcache.refine.newton import GaussNewton

MASK = Mask.parse("101001000100")


class TwoBranches(Toy):
    """Guidance: the velocity is one of two branches and what goes beyond it."""

    conditional = None

    def compute(self, x, sigma):
        v, memo = super().compute(x, sigma)
        self.conditional = v + 0.2 * torch.sin(3 * x) * sigma
        return v, memo


def fitted(known, **form):
    found = FittedScorer(known, **{"outputs": 16, "noise": True, **form}).fit(MASK)
    name = "guided" if form.get("apart") else "weights" if found.rows is None else "rows"
    below = {"rows": [{"outputs": [1.0]}] * MASK.budget} if form.get("apart") else {}
    return Policy(mask=MASK, **below, **{name: found.rows or found.weights})


def losses(known, policy):
    return geometric_mean(known.losses(known.finals(policy)))


FORMS = {"rows": {}, "solver": {"noise": False, "outputs": 3}, "features": {"features": True}}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_columns_are_derivatives(form, solver):
    known = calibration(range(3), SOLVERS[solver])
    policy, run = fitted(known, **FORMS[form]), known.runs[0]
    newton = GaussNewton(policy, known, move=1e-5)
    plan = Plan.of(policy, run.sigmas)
    weights = [torch.tensor(stretch.blend, dtype=torch.float64) for stretch in plan]

    def final(*blends):
        stretches = [replace(each, blend=blend) for each, blend in zip(plan, blends, strict=True)]
        return rollout(run, run.noise, replace(plan, stretches=tuple(stretches)), run.solver()).flatten()

    columns = [column.double()[0] for column in newton.question.of(known, 0)[1]]
    of_outputs = [
        column
        for place, column in zip(newton.places, columns, strict=True)
        if place.number < len(plan.stretches[place.step].blend)
    ]
    if form != "features":  # whose weights are floats
        expected = torch.cat(torch.autograd.functional.jacobian(final, tuple(weights)), 1).T
        assert torch.allclose(torch.stack(of_outputs), expected, rtol=1e-3, atol=1e-5)
    assert (
        len(columns) == len(newton.places) == sum(len(weights) + (form != "solver") for weights in map(list, weights))
    )


@pytest.mark.parametrize("form", [*FORMS, "apart"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_step_comes_nearer(form, solver):
    kind = TwoBranches if form == "apart" else Toy
    known = Calibration([kind(seed, 2, SOLVERS[solver]) for seed in range(4)])
    policy = fitted(known, **(FORMS | {"apart": {"apart": True}})[form])
    newton = GaussNewton(policy, known)
    equations = [newton.equations(number) for number in range(4)]
    best = min((newton.stepped(equations, length) for length in (1.0, 0.5, 0.25)), key=lambda p: losses(known, p))
    assert losses(known, best) < losses(known, policy)
    same = {"rows", "weights", "guided"} - {"guided" if form == "apart" else "weights" if form == "solver" else "rows"}
    assert all(getattr(best, name) == getattr(policy, name) for name in same)


def test_equations_cost_what_is_said():
    known = calibration(range(2))
    policy = fitted(known)
    before = known.calls
    GaussNewton(policy, known).equations(0)
    assert known.calls - before == equation_calls(policy) + 1  # toys compute their first step again


def test_the_equations_of_one_run_do_not_depend_on_the_others():
    policy = fitted(calibration(range(4)))
    alone = GaussNewton(policy, calibration(range(2, 3))).equations(0)
    among = GaussNewton(policy, calibration(range(4))).equations(2)
    assert torch.equal(alone.gram, among.gram) and torch.equal(alone.right, among.right)


def test_on_a_linear_problem_one_step_is_least_squares():
    """Where the last row alone may move, latents are linear in it: the damped step is the reweighted solution."""
    moves, missing = torch.randn(3, 2, 8, dtype=torch.float64), torch.randn(3, 8, dtype=torch.float64)
    equations = Equations.of(moves, missing)
    step = equations.step(1e-12)
    shares = 1 / (equations.square + 0.01 * equations.square.mean())
    system = sum(share * move @ move.T for share, move in zip(shares, moves, strict=True))
    right = sum(share * move @ target for share, move, target in zip(shares, moves, missing, strict=True))
    assert torch.allclose(torch.tensor(step, dtype=torch.float64), torch.linalg.solve(system, right), rtol=1e-6)


def test_what_was_not_fitted_is_refused():
    with pytest.raises(SearchError, match=r"no weights to align\. Fit it first"):
        GaussNewton(Policy(mask=MASK), calibration(range(2)))


def test_noise_levels_of_its_own_are_kept():
    known = calibration(range(3))
    policy = fitted(known).model_copy(update={"sigmas": tuple((known.runs[0].sigmas ** 1.05).tolist())})
    newton = GaussNewton(policy, known)
    stepped = newton.stepped([newton.equations(number) for number in range(3)])
    assert stepped.sigmas == policy.sigmas
    assert losses(known, stepped) < losses(known, policy)


def test_half_precision_moves_farther():
    class Half(Toy):
        def __init__(self, seed):
            super().__init__(seed, field=lambda x, sigma: velocity(x.double(), sigma).to(torch.bfloat16))
            self.noise = self.noise.to(torch.bfloat16)

    known = Calibration([Half(seed) for seed in range(2)])
    policy = fitted(calibration(range(2)))
    assert GaussNewton(policy, known).move > GaussNewton(policy, calibration(range(2))).move
