from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from diffusers import DPMSolverMultistepScheduler, FlowMatchEulerDiscreteScheduler
from levels import plain, static_shift
from torch.testing import assert_close

from budcache.numerics.solvers import dpmpp2m, euler, ipndm2

ORDERS = {euler: 1, ipndm2: 2, dpmpp2m: 2}
solvers = pytest.mark.parametrize("solver", ORDERS, ids=lambda solver: solver.__name__)


def noise(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def solve(solver, field, x, levels):
    past = None
    for here, there in pairwise(levels):
        x, past = solver(x, field(x, here), here, there, past)
    return x


class Gaussian:
    """The flow from noise to data of a normal distribution, all of it in closed form."""

    mean, deviation = 0.7, 0.5

    def scale(self, sigma):
        return ((1 - sigma) ** 2 * self.deviation**2 + sigma**2) ** 0.5

    def velocity(self, x, sigma):
        slope = (sigma - (1 - sigma) * self.deviation**2) / self.scale(sigma) ** 2
        return slope * (x - (1 - sigma) * self.mean) - self.mean

    def carry(self, x, here, there):
        """The point at level `there` of the path that passes `x` at level `here`."""
        standard = (x - (1 - here) * self.mean) / self.scale(here)
        return (1 - there) * self.mean + self.scale(there) * standard


def test_the_closed_form_solves_the_flow():
    flow, x, sigma = Gaussian(), noise(8), torch.tensor(0.6, dtype=torch.float64)
    _, slope = torch.func.jvp(lambda there: flow.carry(x, sigma, there), (sigma,), (torch.ones_like(sigma),))
    assert_close(slope, flow.velocity(x, sigma))
    assert_close(flow.carry(x, sigma, sigma), x)


@solvers
def test_order_of_convergence(solver):
    flow, x = Gaussian(), noise(16)
    begin, end = 0.95, 0.05

    def error(steps):
        levels = torch.linspace(begin, end, steps + 1, dtype=torch.float64)
        return (solve(solver, flow.velocity, x, levels) - flow.carry(x, begin, end)).abs().max()

    for steps in (80, 160):
        assert math.log2(error(steps) / error(2 * steps)) == pytest.approx(ORDERS[solver], abs=0.15)


@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_dpmpp2m_is_of_second_order_on_unequal_steps(shift):
    flow, x = Gaussian(), noise(16)

    def error(steps):
        levels = static_shift(torch.linspace(0.95, 0.05, steps + 1, dtype=torch.float64), shift)
        return (solve(dpmpp2m, flow.velocity, x, levels) - flow.carry(x, levels[0], levels[-1])).abs().max()

    assert math.log2(error(160) / error(320)) == pytest.approx(2, abs=0.15)


@solvers
def test_whole_runs_from_noise_to_data_converge(solver):
    flow, x = Gaussian(), noise(16)
    errors = [
        (solve(solver, flow.velocity, x, plain(steps).double()) - flow.carry(x, 1.0, 0.0)).abs().max()
        for steps in (50, 100, 200)
    ]
    assert errors[0] > 1.8 * errors[1] > 3.2 * errors[2]
    assert errors[2] < 0.01


@solvers
@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_straight_paths_are_followed_exactly(solver, steps, shift):
    """Where all data is one point, the path is a straight line and the predicted data that point."""
    point, x = noise(4, seed=1), noise(4)
    levels = static_shift(plain(steps).double(), shift)
    assert_close(solve(solver, lambda x, sigma: (x - point) / sigma, x, levels), point)


def test_ipndm2_integrates_linear_velocities_exactly():
    a, b = noise(2, 4)
    before, here, there = torch.tensor([0.8, 0.6, 0.4], dtype=torch.float64)
    x, past = ipndm2(torch.zeros(4, dtype=torch.float64), a + b * here, here, there, a + b * before)
    assert_close(x, a * (there - here) + b * (there**2 - here**2) / 2)
    assert torch.equal(past, a + b * here)


@pytest.mark.parametrize("solver", [ipndm2, dpmpp2m])
def test_the_first_step_is_eulers(solver):
    x, v = noise(2, 4)
    here, there = torch.tensor([0.8, 0.5], dtype=torch.float64)
    assert_close(solver(x, v, here, there, None)[0], euler(x, v, here, there)[0])


@pytest.mark.parametrize("past", [None, (noise(4, seed=2), torch.tensor(0.9, dtype=torch.float64))])
def test_dpmpp2m_ends_on_the_predicted_data(past):
    x, v = noise(2, 4)
    here, there = torch.tensor([0.3, 0.0], dtype=torch.float64)
    assert torch.equal(dpmpp2m(x, v, here, there, past)[0], x - here * v)


@solvers
def test_gradients_of_all_levels_are_finite(solver):
    """Also at the levels 1 and 0, where the log signal-to-noise ratio is infinite."""
    levels = plain(5).double().requires_grad_()
    end = solve(solver, Gaussian().velocity, noise(4), levels)
    (gradient,) = torch.autograd.grad(end.square().sum(), levels)
    assert gradient.isfinite().all()
    assert (gradient != 0).all()


def test_dpmpp2m_bears_a_level_rounded_past_one():
    levels = plain(5)
    levels[0] = torch.nextafter(levels[0], torch.tensor(2.0))
    assert solve(dpmpp2m, Gaussian().velocity, noise(4), levels).isfinite().all()


@solvers
def test_steps_are_pure(solver):
    x, v, other = noise(3, 2, 5)
    before, here, there = torch.tensor([0.9, 0.6, 0.4], dtype=torch.float64)
    _, past = solver(x, other, before, here, None)
    given = [x, v, here, there, *(past if isinstance(past, tuple) else [] if past is None else [past])]
    copies = [value.clone() for value in given]
    once, again = (solver(x, v, here, there, past) for _ in range(2))
    assert_close(once, again, rtol=0, atol=0)
    assert all(torch.equal(value, copy) for value, copy in zip(given, copies, strict=True))


@solvers
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_samples_keep_their_type(solver, dtype):
    x, v = noise(2, 4, dtype=dtype)
    before, here, there = torch.tensor([0.9, 0.6, 0.4])
    x, past = solver(x, v, before, here, None)
    x, _ = solver(x, v, here, there, past)
    assert x.dtype == dtype


def in_step_with(scheduler, solver, seed):
    """Feed the same random outputs to a scheduler of diffusers and to ours, and yield both samples after each step."""
    steps = len(scheduler.timesteps)
    outputs = noise(steps, 2, 3, 4, seed=seed, dtype=torch.float32)
    theirs = ours = noise(2, 3, 4, seed=seed + 1, dtype=torch.float32)
    past = None
    for k, timestep in enumerate(scheduler.timesteps):
        theirs = scheduler.step(outputs[k], timestep, theirs, return_dict=False)[0]
        ours, past = solver(ours, outputs[k], scheduler.sigmas[k], scheduler.sigmas[k + 1], past)
        yield ours, theirs


@pytest.mark.parametrize("steps", [1, 2, 9, 28])
@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_euler_is_that_of_diffusers_bit_for_bit(steps, shift):
    scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
    scheduler.set_timesteps(steps)
    for ours, theirs in in_step_with(scheduler, euler, seed=steps):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("steps", [1, 2, 3, 9, 28])
@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_dpmpp2m_is_that_of_diffusers(steps, shift):
    scheduler = DPMSolverMultistepScheduler(
        algorithm_type="dpmsolver++",
        solver_order=2,
        solver_type="midpoint",
        prediction_type="flow_prediction",
        use_flow_sigmas=True,
        flow_shift=shift,
    )
    scheduler.set_timesteps(steps)
    for ours, theirs in in_step_with(scheduler, dpmpp2m, seed=steps):
        assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_dpmpp2m_is_that_of_diffusers_from_level_one():
    """A schedule that begins at pure noise, as FLUX's does."""
    scheduler = DPMSolverMultistepScheduler(
        solver_order=2, prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=1.0
    )
    scheduler.set_timesteps(6)
    scheduler.sigmas = plain(6)
    for ours, theirs in in_step_with(scheduler, dpmpp2m, seed=0):
        assert theirs.isfinite().all()
        assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
