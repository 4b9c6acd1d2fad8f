"""Fewer steps of better solvers, on the noise levels that the pipeline itself would have."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, FlowMatchEulerDiscreteScheduler
from zoo import entry

from budcache.baselines import CHOSEN
from budcache.baselines.fewer import another_solver
from budcache.comparison.methods import SOLVERS
from budcache.errors import PipelineError

SETTINGS = {
    "plain": {},
    "shifted": {"shift": 3.0},
    "by size": {"use_dynamic_shifting": True, "base_shift": 0.3},
    "ends above zero": {"shift_terminal": 0.1, "use_dynamic_shifting": True},
    "karras": {"use_karras_sigmas": True},
}


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("given", SETTINGS.values(), ids=list(SETTINGS))
@pytest.mark.parametrize("asked", [None, np.linspace(1.0, 0.2, 5)], ids=["usual levels", "given levels"])
def test_another_solver_has_the_levels_of_eulers(solver, given, asked):
    euler = FlowMatchEulerDiscreteScheduler(**given)
    other = another_solver(euler, solver)
    how = {"mu": 0.7} if euler.config.use_dynamic_shifting else {}
    how |= {"num_inference_steps": 5} if asked is None else {"sigmas": asked}
    for scheduler in (euler, other):
        scheduler.set_timesteps(**how)
    assert torch.allclose(other.sigmas, euler.sigmas, atol=1e-3)
    assert torch.equal(other.sigmas[1:], euler.sigmas[1:]), "at most the first gives way, where it is 1"
    assert torch.equal(other.timesteps, euler.timesteps)
    assert {name: other.config[name] for name in given} == given, "pipelines look at it"


@pytest.mark.parametrize("solver", SOLVERS)
def test_it_solves_a_flow_that_is_known(solver):
    """A point mass at 2: the velocity is (x - 2) / sigma, and every solver gets there."""
    scheduler = another_solver(FlowMatchEulerDiscreteScheduler(shift=2.0), solver)
    scheduler.set_timesteps(6)
    x = torch.full((1, 4), -1.0)
    for step, time in enumerate(scheduler.timesteps):
        x = scheduler.step((x - 2.0) / scheduler.sigmas[step], time, x, return_dict=False)[0]
    assert torch.allclose(x, torch.full((1, 4), 2.0), atol=1e-4)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_pipeline_runs_on_its_own_levels(solver):
    kind = entry("flux")
    pipe = kind.build()
    pipe(**kind.kwargs(), num_inference_steps=4)
    own = pipe.scheduler.sigmas.clone()
    with CHOSEN[solver](steps=4).solving(pipe):
        pipe(**kind.kwargs(), num_inference_steps=4)
        assert torch.allclose(pipe.scheduler.sigmas, own, atol=1e-3)
    assert type(pipe.scheduler) is FlowMatchEulerDiscreteScheduler


def test_other_schedulers_are_refused():
    with pytest.raises(PipelineError, match="need noise levels that fall"):
        another_solver(FlowMatchEulerDiscreteScheduler(invert_sigmas=True), "ipndm")
    with pytest.raises(PipelineError, match="this one has DDIMScheduler"):
        another_solver(DDIMScheduler(), "unipc")
