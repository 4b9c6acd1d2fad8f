"""Fewer steps of better solvers, on the noise levels that the pipeline itself would have."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, FlowMatchEulerDiscreteScheduler
from zoo import entry

from budcache import Policy, applied, compare
from budcache.baselines import caching, tune
from budcache.baselines.fewer import SPACINGS, _quantiles, another_solver
from budcache.baselines.solvers import SOLVERS
from budcache.errors import PipelineError, SearchError
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


def solved(setting, steps, shift=2.0):
    """Where a setting ends on a field that bends, so that no two solvers go the same way."""
    euler = FlowMatchEulerDiscreteScheduler(shift=shift)
    scheduler = another_solver(euler, setting.name, spacing=setting.spacing, **setting.given)
    scheduler.set_timesteps(setting.asked(steps))
    x = torch.tensor([[-1.0, -0.2, 0.4, 1.5]], dtype=torch.float64)
    for step, time in enumerate(scheduler.timesteps):
        sigma = scheduler.sigmas[step].double()
        x = scheduler.step(torch.cos(2 * x) + x * sigma.square(), time, x, return_dict=False)[0]
    return x


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 6])
def test_every_setting_acts_and_those_of_one_pattern_draw_the_same(solver, steps):
    ends = {}
    for setting in SOLVERS[solver](steps=12, budget=steps).variants():
        ends.setdefault(setting.pattern(12), []).append(solved(setting, 12))
    for same in ends.values():
        assert all(torch.allclose(end, same[0], atol=1e-5) for end in same)
    firsts = [same[0] for same in ends.values()]
    assert all(torch.isfinite(end).all() for end in firsts)
    apart = [torch.allclose(one, other, atol=1e-7) for one, other in itertools.combinations(firsts, 2)]
    assert not any(apart), "two patterns draw the same"


@pytest.mark.parametrize("shift", [1.0, 3.0, 12.0])
@pytest.mark.parametrize("steps", [8, 40])
def test_the_first_level_gives_way_and_levels_still_fall(shift, steps):
    for solver, spacing in itertools.product(("dpmpp", "unipc"), SPACINGS):
        for setting in (each for each in SOLVERS[solver](steps=steps).variants() if each.spacing == spacing):
            scheduler = another_solver(
                FlowMatchEulerDiscreteScheduler(shift=shift), solver, spacing=spacing, gap=setting.gap
            )
            scheduler.set_timesteps(steps)
            assert (scheduler.sigmas.diff() < 0).all(), setting
    for kind in (SOLVERS["dpmpp"], SOLVERS["unipc"]):
        closest = kind(steps=steps, gap=5e-3, **({"order": 3} if kind.name == "unipc" else {}))
        assert torch.isfinite(solved(closest, steps, shift)).all()


@pytest.mark.parametrize("solver", SOLVERS)
def test_settings_differ_and_the_usual_one_comes_first(solver):
    setting = SOLVERS[solver](steps=12, budget=6)
    found = setting.variants()
    assert found[0] == setting
    assert len({each.pattern(12) for each in found}) == len(found) == setting.candidates, "all of them act in 6 steps"
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


@pytest.mark.parametrize("kind", ["ltx2", "flux-img2img", "cogview4", "wan-t2v-euler"])
def test_they_run_where_schedulers_are_copied_noise_is_scaled_times_are_given_and_guidance_has_branches(kind):
    kind = entry(kind)
    pipe = kind.build()
    ran, told = [], {}
    pipe.transformer.register_forward_pre_hook(
        lambda module, args, kwargs: ran.append(float(kwargs["timestep"].flatten()[0])), with_kwargs=True
    )
    for solver, spacing in itertools.product(SOLVERS, ("usual", "beta")):
        setting = SOLVERS[solver](steps=9, budget=5, spacing=spacing)
        with caching(pipe, setting, 9) as runs:
            ran.clear()
            output = pipe(**kind.kwargs(), num_inference_steps=5, output_type="latent")[0]
        assert torch.isfinite(output).all()
        (run,) = runs.finished
        assert run.calls == len(ran) / kind.branches == (3 if kind.strength else 5)
        told[solver, spacing] = list(dict.fromkeys(ran))
    assert len({tuple(each) for each in told.values()}) == 2, "times go with the levels, whatever the solver"


@pytest.mark.parametrize("spacing", SPACINGS)
def test_times_go_with_levels_also_where_a_pipeline_gives_its_own(spacing):
    """CogView4's are no thousandfold of its levels."""
    levels, times = np.linspace(1.0, 0.2, 6), np.linspace(1000.0, 500.0, 6)
    for solver in SOLVERS:
        other = another_solver(FlowMatchEulerDiscreteScheduler(shift=2.0), solver, spacing=spacing)
        other.set_timesteps(sigmas=levels, timesteps=times)
        usual = another_solver(FlowMatchEulerDiscreteScheduler(shift=2.0), solver)
        usual.set_timesteps(sigmas=levels, timesteps=times)
        wanted = np.interp(other.sigmas[1:-1], usual.sigmas[:-1].flip(0), usual.timesteps.flip(0))
        assert np.allclose(other.timesteps[1:], wanted, atol=0.05)


def test_a_pipeline_that_carries_a_policy_is_refused():
    pipe = entry("flux").build()
    refused = pytest.raises(PipelineError, match="carries a policy")
    with applied(pipe, Policy(mask=Mask.uniform(4, 2))), refused, caching(pipe, SOLVERS["unipc"](steps=4, budget=2)):
        pass


def test_settings_can_be_chosen_without_a_comparison_on_any_network():
    kind = entry("chroma")
    sample = kind.kwargs() | {"generator": torch.Generator().manual_seed(0)}
    found = tune(kind.build(), SOLVERS["dpmpp"](steps=4), 3, [sample])
    assert found.budget == 3


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
    pipe, calls = kind.build(), []
    pipe.transformer.register_forward_hook(lambda *_: calls.append(1))
    found = compare(pipe, steps=2, budgets=1, methods=["unipc"], folder=tmp_path, **given)
    assert "this one has UniPCMultistepScheduler" in found.left_out[0].reason
    assert len(calls) == 2 * 2 * kind.branches, "the full run, and one to warm up"


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


@pytest.mark.parametrize(
    ("solver", "setting"),
    [
        ("ipndm", {"spacing": "gamma"}),
        ("dpmpp", {"gap": 0.0}),
        ("dpmpp", {"heun": 1}),
        ("unipc", {"order": 4}),
        ("unipc", {"order": "one"}),
        ("unipc", {"corrector": "no"}),
    ],
)
def test_settings_that_no_solver_has_are_refused(solver, setting):
    ((name, value),) = setting.items()
    with pytest.raises(SearchError, match=f"{solver} has no {name} {value!r}. Choose one of"):
        SOLVERS[solver](steps=4, **setting)
