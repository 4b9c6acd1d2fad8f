"""Fewer steps of better solvers, on the noise levels that the pipeline itself would have."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, FlowMatchEulerDiscreteScheduler
from zoo import entry

from budcache import compare
from budcache.baselines import caching
from budcache.baselines.fewer import SPACINGS, _quantiles, another_solver
from budcache.baselines.solvers import SOLVERS
from budcache.comparison.settings import described
from budcache.errors import PipelineError
from budcache.mask import Mask

SETTINGS = {
    "plain": {},
    "shifted": {"shift": 3.0},
    "by size": {"use_dynamic_shifting": True, "base_shift": 0.3},
    "ends above zero": {"shift_terminal": 0.1, "use_dynamic_shifting": True},
    "karras": {"use_karras_sigmas": True},
}
BARELY = {"ipndm": {}, "dpmpp": {"gap": 1e-6}, "unipc": {}}  # the first level gives way as little as it can


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


@pytest.mark.parametrize("spacing", SPACINGS)
@pytest.mark.parametrize("solver", SOLVERS)
def test_levels_are_spaced_as_diffusers_spaces_them(solver, spacing):
    if spacing == "beta":
        pytest.importorskip("scipy")  # diffusers asks it
    flag = {} if spacing == "usual" else {f"use_{spacing}_sigmas": True}
    euler = FlowMatchEulerDiscreteScheduler(shift=3.0, **flag)
    other = another_solver(FlowMatchEulerDiscreteScheduler(shift=3.0), solver, spacing=spacing, **BARELY[solver])
    for scheduler in (euler, other):
        scheduler.set_timesteps(7)
    assert torch.allclose(other.sigmas, euler.sigmas, atol=2e-6)
    assert torch.allclose(other.timesteps, euler.timesteps, atol=2e-3)


def test_beta_levels_are_quantiles_of_that_distribution():
    """As SciPy has them, also where it is not installed."""
    shares = torch.tensor([0.0, 0.01, 0.1, 0.25, 0.5, 0.7, 0.9, 1.0])
    quantiles = [0.0, 0.000861239, 0.039584406, 0.175680379, 0.5, 0.765982996, 0.960415594, 1.0]
    assert torch.allclose(_quantiles(shares, 0.6), torch.tensor(quantiles), atol=1e-6)


@pytest.mark.parametrize(
    "setting", [setting for kind in SOLVERS.values() for setting in kind(steps=12, budget=6).variants()], ids=described
)
def test_every_setting_solves_a_flow_that_is_known(setting):
    """A point mass at 2 again; what a solver leaves of the noise is what its gap leaves."""
    euler = FlowMatchEulerDiscreteScheduler(shift=2.0)
    scheduler = another_solver(euler, setting.name, spacing=setting.spacing, **setting.given)
    scheduler.set_timesteps(setting.asked(12))
    x = torch.full((1, 4), -1.0)
    for step, time in enumerate(scheduler.timesteps):
        x = scheduler.step((x - 2.0) / scheduler.sigmas[step], time, x, return_dict=False)[0]
    assert len(scheduler.timesteps) == 6
    assert torch.allclose(x, torch.full((1, 4), 2.0), atol=2e-3)


@pytest.mark.parametrize("solver", SOLVERS)
def test_settings_differ_and_the_usual_one_comes_first(solver):
    setting = SOLVERS[solver](steps=12, budget=6)
    found = setting.variants()
    assert found[0] == setting
    assert len({each.pattern(12) for each in found}) == len(found) == setting.candidates
    assert {each.planned(12).calls for each in found} == {6}


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_run_makes_so_many_steps_of_the_whole_network_and_leaves_the_pipeline_as_it_was(solver):
    kind = entry("flux")
    pipe = kind.build()
    own, calls = pipe.scheduler, []
    pipe.transformer.register_forward_hook(lambda *_: calls.append(1))
    setting = SOLVERS[solver](steps=9, budget=3)
    with caching(pipe, setting, 9) as runs:
        for _ in range(2):
            pipe(**kind.kwargs(), num_inference_steps=setting.asked(9))
    assert pipe.scheduler is own
    assert runs.masks == [Mask.full(3)] * 2
    assert len(calls) == 6


@pytest.mark.parametrize("kind", ["chroma", "flux-controlnet"])
def test_they_serve_networks_that_no_cache_knows(kind, tmp_path):
    kind = entry(kind)
    call = {name: value for name, value in kind.kwargs().items() if name not in ("prompt", "generator")}
    given = {"prompts": ["a cat"], "calibration": ["a dog", "a hen"], "metrics": ["psnr"], "timed": []}
    methods = ["fewer-steps", *SOLVERS, "magcache"]
    found = compare(kind.build(), steps=4, budgets=2, methods=methods, folder=tmp_path, call=call, **given)
    assert [row.method for row in found.left_out] == ["magcache"]
    for solver in SOLVERS:
        row = found.entry(solver, 2)
        assert (row.calls, row.equivalents, row.learned_on) == ((2,), (2.0,), 2)
        assert "spacing" in row.knob


def test_a_pipeline_with_another_scheduler_is_told_before_anything_runs(tmp_path):
    kind = entry("wan-t2v")
    call = {name: value for name, value in kind.kwargs().items() if name not in ("prompt", "generator")}
    given = {"prompts": ["a cat"], "calibration": ["a dog"], "metrics": ["psnr"], "timed": [], "call": call}
    found = compare(kind.build(), steps=2, budgets=1, methods=["unipc"], folder=tmp_path, **given)
    assert "this one has UniPCMultistepScheduler" in found.left_out[0].reason
    assert not (tmp_path / "settings.json").exists()


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_pipeline_runs_on_its_own_levels(solver):
    kind = entry("flux")
    pipe = kind.build()
    pipe(**kind.kwargs(), num_inference_steps=4)
    own = pipe.scheduler.sigmas.clone()
    with SOLVERS[solver](steps=4).solving(pipe):
        pipe(**kind.kwargs(), num_inference_steps=4)
        assert torch.allclose(pipe.scheduler.sigmas, own, atol=1e-3)
    assert type(pipe.scheduler) is FlowMatchEulerDiscreteScheduler


def test_other_schedulers_are_refused():
    with pytest.raises(PipelineError, match="need noise levels that fall"):
        another_solver(FlowMatchEulerDiscreteScheduler(invert_sigmas=True), "ipndm")
    with pytest.raises(PipelineError, match="this one has DDIMScheduler"):
        another_solver(DDIMScheduler(), "unipc")
