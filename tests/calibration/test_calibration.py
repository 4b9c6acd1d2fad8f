"""Calibration: full runs kept as teachers, and the loss of final latents against them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from levels import plain, static_shift
from toys import SOLVERS, Residual, Toy, velocity

from budcache import Mask, Policy, SearchError
from budcache.calibration.calibration import Calibration
from budcache.numerics.rollout import rollout
from budcache.plan import Plan

STEPS = 7
masks = st.text("01", min_size=STEPS - 1, max_size=STEPS - 1).map(lambda rest: Mask.parse("1" + rest))
kinds = pytest.mark.parametrize("kind", [Toy, Residual])
each_solver = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)


def toy(seed=0, samples=1, solver=SOLVERS["euler"], **more):
    return Toy(seed, samples, solver, **{"steps": STEPS, **more})


def full(run, solver=SOLVERS["euler"]):
    """Every state of the full run."""
    states, x, past = [run.noise], run.noise, None
    for k in range(len(run.sigmas) - 1):
        x, past = solver(x, run.field(x, run.sigmas[k]), run.sigmas[k], run.sigmas[k + 1], past)
        states.append(x)
    return states


@each_solver
def test_the_teacher_is_the_full_run(solver):
    calibration = Calibration([toy(3, 2, solver), toy(4, 1, solver)])
    for number, seed in enumerate((3, 4)):
        states = full(toy(seed, 2 - number, solver), solver)
        assert all(map(torch.equal, calibration.trajectory(number), states))
        assert len(calibration.trajectory(number)) == STEPS + 1
        assert torch.equal(calibration.teacher(number), states[-1])


@kinds
@each_solver
@settings(max_examples=30)
@given(mask=masks, seed=st.integers(0, 2**32), own=st.booleans(), blend=st.booleans())
def test_final_latents_are_those_of_a_rollout(kind, solver, mask, seed, own, blend):
    calibration, run = (
        Calibration([kind(seed, 2, solver, STEPS)], residual=kind is Residual),
        kind(seed, 2, steps=STEPS),
    )
    levels = run.sigmas**1.1 if own else run.sigmas
    policy = Policy(
        mask=mask,
        reuse="residual" if kind is Residual else "output",
        sigmas=levels.tolist() if own else None,
        weights=[[1.1, -0.2][: row + 1] for row in range(mask.budget)] if blend and kind is Toy else None,
    )
    (end,) = calibration.finals(policy)
    assert torch.equal(end, rollout(run, run.noise, Plan.of(policy, levels), solver))


def test_a_solver_is_made_for_levels_of_ones_own():
    """Solvers that keep their levels inside, as schedulers do, have to be told of them."""
    asked = []

    class Asked(Toy):
        def solver(self, sigmas=None):
            asked.append(None if sigmas is None else sigmas.tolist())
            return super().solver(sigmas)

    run = Asked(0, steps=STEPS)
    calibration, levels = Calibration([run]), (run.sigmas**1.1).tolist()
    calibration.finals(Policy(mask="1101010"))
    assert asked == [None, None]  # one to run with, one for the teacher
    calibration.finals(Policy(mask="1101010", sigmas=levels))
    assert asked == [None, None, levels]


def test_calls_count_samples_and_the_teacher():
    told = []
    calibration = Calibration([toy(samples=3), toy(1, 2)], spent=4, taught=told.append)
    assert told == [4 + STEPS * 3, 4 + STEPS * 5]
    assert calibration.calls == 4 + STEPS * 5
    assert calibration.samples == 5
    calibration.finals(Policy(mask=Mask.uniform(STEPS, 2)))
    assert calibration.calls == 4 + (STEPS + 2) * 5


def test_what_an_objective_calls_is_counted():
    class Costly:
        calls = 0

        def __call__(self, student, teacher, run):
            self.calls += 10
            return 0.5

    calibration = Calibration([toy(samples=2)], objective=Costly())
    calibration.losses(calibration.finals(Policy(mask=Mask.full(STEPS))))
    assert calibration.calls == 2 * STEPS + 10 + 2 * STEPS


def test_the_teacher_and_the_noise_are_not_disturbed():
    run = toy(samples=2)
    noise, calibration = run.noise.clone(), Calibration([run])
    teacher = calibration.teacher(0).clone()
    for budget in range(1, STEPS + 1):
        calibration.finals(Policy(mask=Mask.uniform(STEPS, budget)))
    assert torch.equal(run.noise, noise)
    assert torch.equal(calibration.teacher(0), teacher)


def test_losses_are_told_sample_by_sample():
    """From an objective that tells one number, each sample has its run's."""
    policy, runs = Policy(mask=Mask.uniform(STEPS, 4)), [toy(0, 2), toy(9, 3)]
    calibration = Calibration(runs)
    finals = calibration.finals(policy)
    expected = [
        float((x - y).square().mean())
        for number, final in enumerate(finals)
        for x, y in zip(final, calibration.teacher(number), strict=True)
    ]
    assert calibration.losses(finals) == pytest.approx(expected, rel=1e-12)
    assert len(set(expected)) == 5
    of_runs = Calibration(runs, objective=lambda student, teacher, run: float(len(student)))
    assert of_runs.losses(finals) == (2, 2, 3, 3, 3)
    of_samples = Calibration(runs, objective=lambda student, teacher, run: student[:, 0])
    assert of_samples.losses(finals) == tuple(torch.cat(finals)[:, 0].tolist())


def test_an_objective_of_another_number_of_losses_is_refused():
    calibration = Calibration([toy(samples=2)], objective=lambda student, teacher, run: student.flatten())
    with pytest.raises(SearchError, match=r"the objective returned 12 numbers for a run of 2\. Return one number, or"):
        calibration.losses([calibration.teacher(0)])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_full_run_that_is_not_finite_is_refused(bad):
    with pytest.raises(SearchError, match="the full run itself ends in numbers that are not finite"):
        Calibration([toy(field=lambda x, sigma: velocity(x, sigma) * bad)])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_refused(bad):
    calibration = Calibration([toy(samples=2)], objective=lambda *_: torch.tensor([0.5, bad]))
    assert calibration.losses([calibration.teacher(0)]) == pytest.approx((0.5, bad), nan_ok=True)
    with pytest.raises(SearchError, match=r"the loss of mask 1001010 is (nan|inf)\. .*float16") as caught:
        calibration.checked_losses(Mask.parse("1001010"), [calibration.teacher(0)])
    assert "\n" not in str(caught.value)


def test_nothing_to_calibrate_on():
    with pytest.raises(SearchError, match="at least one prompt"):
        Calibration([])
    empty = toy()
    empty.noise = empty.noise[:, :0]
    with pytest.raises(SearchError, match=r"the latents are empty \(shape \(1, 0\)\): the pictures are too small"):
        Calibration([toy(), empty])


@pytest.mark.parametrize("steps", [STEPS - 1, STEPS + 1])
def test_a_mask_of_another_length_is_refused(steps):
    with pytest.raises(SearchError, match=f"the mask has {steps} steps, but the runs have {STEPS}"):
        Calibration([toy()]).finals(Policy(mask=Mask.full(steps)))


# A finer teacher (F7)


@each_solver
@pytest.mark.parametrize("times", [2, 5])
def test_a_finer_teacher_passes_exactly_through_the_levels_that_it_shares(solver, times):
    run, finer = toy(3, 2, solver), toy(3, 2, solver, steps=STEPS * times)
    torch.testing.assert_close(finer.sigmas[::times], run.sigmas, rtol=0, atol=1e-7)  # but for rounding
    calibration = Calibration([run], teacher_sigmas=finer.sigmas)
    states = full(finer, solver)
    assert all(map(torch.equal, calibration.trajectory(0), states[::times]))
    assert len(calibration.trajectory(0)) == STEPS + 1
    assert torch.equal(calibration.teacher(0), states[-1])
    assert calibration.calls == 2 * STEPS * times
    # What is judged is still the run of K steps: even in full it is not the teacher.
    assert min(calibration.losses(calibration.finals(Policy(mask=Mask.full(STEPS))))) > 0


def test_between_its_levels_a_finer_teacher_goes_straight():
    run, finer = toy(samples=2), toy(samples=2, steps=10)
    calibration, states = Calibration([run], teacher_sigmas=finer.sigmas), full(finer)
    for k in range(1, STEPS):
        before = int((finer.sigmas > run.sigmas[k]).sum()) - 1
        part = float((run.sigmas[k] - finer.sigmas[before]) / (finer.sigmas[before + 1] - finer.sigmas[before]))
        torch.testing.assert_close(calibration.trajectory(0)[k], torch.lerp(states[before], states[before + 1], part))
    assert torch.equal(calibration.trajectory(0)[0], run.noise)
    assert torch.equal(calibration.teacher(0), states[-1])


def test_a_teacher_that_begins_elsewhere_is_refused():
    says = r"a teacher of 20 steps begins at the noise level 0\.9, the run of 7 steps at 1"
    with pytest.raises(SearchError, match=says):
        Calibration([toy()], teacher_sigmas=0.9 * static_shift(plain(20), 2.0).double())
