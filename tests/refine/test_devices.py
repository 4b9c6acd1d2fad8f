"""Calibration, fit and search on another device than the CPU."""

from __future__ import annotations

import gc

import pytest
import torch
from diffusers import DPMSolverMultistepScheduler
from toys import TURN, Toy

from budcache import Mask, Policy
from budcache.calibration.calibration import Calibration
from budcache.calibration.scoring import PlainScorer
from budcache.numerics.memory import park, unpark
from budcache.numerics.rollout import State
from budcache.numerics.solvers import dpmpp2m
from budcache.plan import Plan
from budcache.refine.align import student
from budcache.refine.fit import FittedScorer
from budcache.strategies import LadderSearch, drive

MASK = Mask.parse("100100100000")


class Elsewhere(Toy):
    """A toy whose model and noise are on another device; it may count what else is there when it is called."""

    def __init__(self, device, seed, count=lambda: 0):
        super().__init__(seed, solver=dpmpp2m)
        turn, self.most = TURN.to(device), 0

        def velocity(x, sigma):
            assert x.device == device
            self.most = max(self.most, count())
            return torch.tanh(x @ turn * (1 + 2 * sigma)) - x * sigma

        self.field = velocity
        self.noise = self.noise.to(device)


def calibrated(device, count):
    return Calibration([Elsewhere(device, seed) for seed in range(count)])


def most(device, runs):
    """The most numbers on the device at any call, but for each run's own noise and model."""

    def numbers():
        tensors = (each for each in gc.get_objects() if type(each) is torch.Tensor)
        return sum(each.nelement() for each in tensors if each.device == device)

    gc.collect()
    gc.freeze()  # what was there before is not looked through each time
    try:
        toys = [Elsewhere(device, seed, numbers) for seed in range(runs)]
        known = Calibration(toys)
        FittedScorer(known).fit(MASK)
        PlainScorer(known).score(MASK)
    finally:
        gc.unfreeze()
    return max(toy.most for toy in toys) - runs * (toys[0].noise.nelement() + TURN.nelement())


def test_the_device_holds_one_run_at_a_time_however_many_there_are(device):
    few, many = most(device, 2), most(device, 6)
    assert 0 < many <= few


@pytest.mark.parametrize("scorer", [PlainScorer, FittedScorer])
@pytest.mark.parametrize("memory", [0, 10**6])
def test_every_score_is_that_of_the_cpu(device, scorer, memory):
    toys = [Toy(seed, solver=dpmpp2m) for seed in range(2)]
    there, here = scorer(calibrated(device, 2), memory=memory), scorer(Calibration(toys), memory=memory)
    for mask in (MASK, Mask.parse("100100010000"), MASK):  # the second and the third remember parts of the first
        mine, theirs = here.score(mask), there.score(mask)
        assert theirs.losses == pytest.approx(mine.losses, rel=1e-9)
        assert theirs.arrivals[-1] == pytest.approx(mine.arrivals[-1], rel=1e-9)


def test_a_search_finds_what_it_finds_on_the_cpu(device):
    there = calibrated(device, 2)
    here = Calibration([Toy(seed, solver=dpmpp2m) for seed in range(2)])
    mine, theirs = (
        drive(LadderSearch(), lambda ask, scorer=scorer: scorer.score_many(ask.masks), steps=12, budgets=(3,))
        for scorer in (PlainScorer(here), PlainScorer(there))
    )
    assert mine.best(3)[0] == theirs.best(3)[0]
    assert there.calls == here.calls


def test_levels_have_the_gradient_that_they_have_on_the_cpu(device):
    def slope(run):
        sigmas = run.sigmas.clone().requires_grad_()
        (student(run, Plan.of(Policy(mask=MASK), sigmas)).square().sum()).backward()
        return sigmas.grad

    there = Elsewhere(device, 0)
    assert torch.allclose(slope(there), slope(Toy(0, solver=dpmpp2m)))


def test_what_is_parked_comes_back_as_it_was(device):
    scheduler = DPMSolverMultistepScheduler(use_flow_sigmas=True, prediction_type="flow_prediction")
    scheduler.set_timesteps(6, device=device)
    x = torch.randn(1, 4).to(device)
    x = scheduler.step(x, scheduler.timesteps[0], x, return_dict=False)[0]
    state = State(x, step=1, memo={"trunk": [x]}, past=(1, scheduler), outputs=(x,))
    parked = park(state)
    assert all(each.device.type == "cpu" for each in tensors(parked))
    assert any(each.device == device for each in tensors(state)), "the state itself is left alone"
    back = unpark(parked)
    assert [each.device for each in tensors(back)] == [each.device for each in tensors(state)]
    ends = [each.past[1].step(each.x, scheduler.timesteps[1], each.x, return_dict=False)[0] for each in (state, back)]
    assert torch.equal(ends[0].cpu(), ends[1].cpu())


def test_what_is_on_the_cpu_is_not_copied():
    state = State(torch.ones(1, 2), memo={"trunk": torch.ones(2)})
    assert park(state) is state and unpark(state) is state


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [each for part in value.values() for each in tensors(part)]
    if isinstance(value, list | tuple):
        return [each for part in value for each in tensors(part)]
    return tensors(vars(value)) if hasattr(value, "__dict__") else []
