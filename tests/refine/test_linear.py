"""Rows over all outputs and the noise (F13): fitted, rolled and served without a solver."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from helpers import flux, latents, rolled
from toys import SOLVERS, STEPS, Toy
from zoo import ENTRIES, entry

import budcache
from budcache import Mask, Policy, PolicyError
from budcache.aggregate import mean
from budcache.calibration.calibration import Calibration
from budcache.calibration.judge import Judge
from budcache.numerics.solvers import dpmpp2m, euler, first_order
from budcache.plan import Plan, Stretch
from budcache.refine.fit import FittedScorer
from budcache.rows import Row

MASK = Mask.parse("101001000100")
FLAT = {"middle": [0.0] * 3, "spread": [1.0] * 3, "slopes": [[0.0] * 3] * 2}


def toys(solver=euler, samples=4):
    return Calibration([Toy(i, solver=solver) for i in range(samples)])


def fitted(known, mask=MASK, **options):
    found = FittedScorer(known, **{"outputs": 16, "noise": True, **options}).fit(mask)
    return Policy(mask=mask, rows=found.rows), found.losses


@pytest.mark.parametrize("solver", SOLVERS)
def test_what_is_fitted_is_what_is_rolled(solver):
    known = toys(SOLVERS[solver])
    policy, losses = fitted(known)
    assert known.losses(known.finals(policy)) == pytest.approx(losses, rel=1e-9)
    assert Judge(known).losses(policy) == pytest.approx(losses, rel=1e-9)


@pytest.mark.parametrize("solver", SOLVERS)
def test_all_outputs_and_the_noise_are_no_worse_than_three_outputs(solver):
    known = toys(SOLVERS[solver])
    three = FittedScorer(known, outputs=3, ridge=1e-6).fit(MASK).losses
    assert mean(fitted(known, ridge=1e-6)[1]) < mean(three)


def test_rows_of_plain_reuse_are_plain_reuse():
    """With Euler: the newest output with weight 1 and no noise, in one go, is the sum of the reused steps (F1)."""
    known = toys()
    plain = Policy(mask=MASK)
    linear = Policy(mask=MASK, rows=[Row(outputs=[1.0])] * 4)
    for a, b in zip(known.finals(plain), known.finals(linear), strict=True):
        assert torch.allclose(a, b, rtol=1e-6, atol=1e-9)


def test_the_first_order_of_a_solver_is_read_off_it():
    levels = torch.linspace(1, 0, 6, dtype=torch.float64)
    assert np.allclose(first_order(euler, levels), [(1, -0.2)] * 5)
    # DPM-Solver++ goes by the data, which for a straight flow is Euler's step.
    assert np.allclose(first_order(dpmpp2m, levels), [(1, -0.2)] * 5)


def test_stretches_are_composed_of_steps():
    moves = [(0.5, 2.0), (3.0, 1.0), (2.0, -1.0)]
    stretch = Stretch(0, 3).on(moves)
    assert (stretch.keep, stretch.push) == (3.0, 2 * (3 * 2 + 1) - 1)
    assert (Stretch(1, 2).on(moves).keep, Stretch(1, 2).on(moves).push) == (3.0, 1.0)


def test_a_run_that_starts_midway_repeats_its_outputs():
    policy = fitted(toys())[0]
    plan = Plan.of(policy, tuple(np.linspace(1, 0, STEPS + 1)), begin=2)
    assert plan.plain == len(plan.stretches) == 3
    assert not plan.is_linear


ONE = {"outputs": [1.0]}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"rows": [ONE] * 3}, "4 computed steps need 4 rows, one a step, got 3"),
        ({"rows": [{"outputs": [1.0, 0.5]}, *[ONE] * 3]}, "rows[0] has 2 values"),
        ({"rows": [*[ONE] * 3, {"outputs": [1.0], "noise": float("nan")}]}, "rows[3].noise is nan"),
        ({"rows": [*[ONE] * 3, {"outputs": []}]}, "rows[3].outputs"),
        ({"rows": [*[ONE] * 3, {"outputs": [1.0], "branch": [0.1]}]}, "belong into 'guided'"),
        ({"weights": [[1.0]] * 4}, "not with both"),
        ({"reuse": "residual"}, 'rows need reuse "output"'),
        ({"rows": None, "guided": [ONE] * 4}, "'guided' needs 'rows' or 'weights'"),
        ({"guided": [{"outputs": [1.0], "branch": [0.1, 0.2]}, *[ONE] * 3]}, "guided[0] has 2 values"),
        ({"rows": [*[ONE] * 3, ONE | {"features": FLAT | {"slopes": [[0.0] * 3]}}]}, "needs as many slopes, got 1"),
        ({"rows": [*[ONE] * 3, ONE | {"features": FLAT | {"spread": [1.0, 0.0, 1.0]}}]}, "spread of a feature is 0"),
        ({"rows": [*[ONE] * 3, ONE | {"features": FLAT | {"middle": [0.0]}}]}, "rows[3].features.middle"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_rows_that_cannot_be_are_refused(change, sentence):
    with pytest.raises(PolicyError, match=re.escape(sentence)):
        Policy(**{"mask": MASK, "rows": [ONE] * 4, **change})


def test_files_keep_them(tmp_path):
    policy = fitted(toys())[0]
    assert Policy.load(policy.save(tmp_path / "p.json")) == policy
    assert "blend 4+" in str(policy)


LINEAR = Policy(
    mask=Mask.parse("110100"),
    rows=[
        {"outputs": [1.0], "noise": 0.01},
        {"outputs": [1.4, -0.4], "noise": -0.02},
        {"outputs": [1.3, -0.2, -0.1], "noise": 0.005},
    ],
)
KINDS = [kind for kind in ENTRIES if kind.name in ("flux", "wan-t2v", "sd3", "sdxl", "z-image", "modular-flux", "ltx")]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_what_is_searched_is_what_is_served(kind):
    pipe = kind.build()
    by_search = rolled(kind, pipe, LINEAR)
    with budcache.applied(pipe, LINEAR) as handle:
        served = latents(kind, pipe)
        assert handle.stats().last_run_calls == 3
    assert torch.equal(served, by_search)


@pytest.mark.parametrize("scheduler", ["UniPCMultistepScheduler", "DPMSolverMultistepScheduler"])
def test_rows_carry_over_to_another_scheduler(scheduler):
    """Made with Euler, served in a pipeline with another solver on the same levels.

    It is the same but for the timesteps that the model is told, which this solver rounds to whole numbers.
    """
    import diffusers

    kind = entry("sd3")
    pipe, there = kind.build(), LINEAR.model_copy(update={"sigmas": (1.0, 0.85, 0.7, 0.5, 0.35, 0.15, 0.0)})
    with budcache.applied(pipe, there):
        with_euler = latents(kind, pipe)
    pipe.scheduler = getattr(diffusers, scheduler)(use_flow_sigmas=True, prediction_type="flow_prediction")
    with budcache.applied(pipe, there):
        with_other = latents(kind, pipe)
    assert (with_euler - with_other).norm() < 0.02 * with_euler.norm()


def test_a_search_makes_such_rows():
    kind, pipe = flux()
    call = {name: value for name, value in kind.kwargs().items() if name != "prompt"}
    ladder = budcache.search(pipe, steps=8, budgets=(3, 4), prompts=["a", "b"], call=call)
    assert all(len(rung.rows[-1].outputs) == rung.budget for rung in ladder)


def test_levels_are_learned_with_such_rows():
    """Algorithm 3 goes through them: gradients of the levels and of the rows."""
    from budcache.refine.align import student

    known = toys(samples=1)
    policy = fitted(known)[0]
    run = known.runs[0]
    levels = run.sigmas.clone().requires_grad_()
    final = student(run, Plan.of(policy, levels))
    (slope,) = torch.autograd.grad((final - known.teacher(0)).square().mean(), levels)
    assert slope.isfinite().all()
    assert slope.abs().max() > 0
