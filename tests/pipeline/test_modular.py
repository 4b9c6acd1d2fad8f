"""Modular pipelines of diffusers, and guiders: what the zoo's common tests do not ask of them."""

from __future__ import annotations

import copy
import gc
import pickle
import threading

import diffusers as d
import pytest
import torch
from helpers import STEPS, counted, latents, opened, rolled, told
from zoo import entry

import budcache
from budcache import Mask, PipelineError, Policy
from budcache.pipeline.arguments import arguments
from budcache.pipeline.modular import parts
from budcache.pipeline.origin import describe
from budcache.pipeline.trunk import Blocks

POLICY = Policy(mask="110100")


def sized(name):
    """What all samples of a search have in common."""
    return {key: value for key, value in entry(name).kwargs().items() if key != "prompt"}


@pytest.mark.parametrize("name", ["modular-flux", "modular-wan"])
def test_a_modular_pipeline_is_searched_and_then_served(name):
    found = entry(name)
    pipe = found.build()
    bare = latents(found, pipe)
    samples = [{"prompt": prompt, **sized(name)} for prompt in ("a cat", "a big dog")]
    ladder = budcache.search(pipe, steps=STEPS, budgets=[2, 4], samples=samples, selection=1)
    assert ladder.budgets == (2, 4)
    for rung in ladder:
        assert rung.quality.psnr > 0 and rung.origin.pipeline == type(pipe).__name__
        with budcache.applied(pipe, rung), counted(found, pipe) as calls:
            served = latents(found, pipe)
        assert len(calls) == rung.budget * found.branches
        assert torch.equal(rolled(found, pipe, rung), served)
    assert torch.equal(latents(found, pipe), bare)


@pytest.mark.parametrize(("name", "shape"), [("modular-flux", (1, 32, 32, 3)), ("modular-wan", (1, 5, 64, 64, 3))])
def test_a_driven_modular_pipeline_ends_with_pictures(name, shape):
    with opened(entry(name), entry(name).build(), output_type="np") as model:
        pictures = model.finish(model.noise)[0]
    assert pictures.shape == shape and 0 <= pictures.min() < pictures.max() <= 1


def test_a_modular_pipeline_without_pictures_is_refused_with_what_it_has():
    found = entry("modular-flux")
    pipe = found.build()
    del pipe._blocks.sub_blocks["decode"]
    with opened(found, pipe) as model:
        assert model.finish(model.noise)[0].shape == (1, 4, 16, 16)  # latents it still has

    class Rename(d.ModularPipelineBlocks):
        def __call__(self, components, state):
            state.values["sketch"] = state.values.pop("latents")
            return components, state

    pipe._blocks.sub_blocks["rename"] = Rename()
    with opened(found, pipe) as model, pytest.raises(PipelineError, match=r"ends without latents; it has .*sketch"):
        model.finish(model.noise)


@pytest.mark.parametrize("name", ["modular-qwen-image", "modular-wan22"])
def test_driving_leaves_no_trace_on_blocks_and_guiders(name):
    found = entry(name)
    pipe = found.build()
    latents(found, pipe)
    before, inside = dict(vars(pipe)), {id(block): copy.copy(vars(block)) for block in parts(pipe._blocks)}
    guiders = {name: copy.copy(vars(part)) for name, part in vars(pipe).items() if "guider" in name}
    with opened(found, pipe) as model:
        model.compute(model.noise * 0.9, model.sigmas[2])
        model.finish(model.noise)
    assert vars(pipe) == before
    assert {id(block): vars(block) for block in parts(pipe._blocks)} == inside
    assert {name: vars(getattr(pipe, name)) for name in guiders} == guiders


@pytest.mark.parametrize("name", ["modular-wan22", "modular-flux-img2img"])
def test_a_copy_goes_its_own_way_and_the_original_is_untouched(name):
    found = entry(name)
    pipe = found.build()
    bare = latents(found, pipe)
    shallow, deep = copy.copy(pipe), copy.deepcopy(pipe)
    for twin in (shallow, deep):
        with budcache.applied(twin, POLICY):
            served = latents(found, twin)
            assert torch.equal(latents(found, pipe), bare)
    with budcache.applied(pipe, POLICY):
        twins = (copy.deepcopy(pipe), pickle.loads(pickle.dumps(pipe)))
    assert torch.equal(latents(found, pipe), bare)
    for twin in twins:
        assert torch.equal(latents(found, twin), served)


def test_a_shallow_copy_may_outlive_the_pipeline():
    found = entry("modular-qwen-image")
    pipe = found.build()
    handle = budcache.apply(pipe, POLICY)
    served, twin = latents(found, pipe), copy.copy(pipe)
    del pipe, handle
    gc.collect()
    assert twin._blocks.tie.pipe is None and arguments(twin)["num_inference_steps"] == 50
    assert torch.equal(latents(found, twin), served)


def test_a_modular_pipeline_takes_the_policys_steps_where_none_are_named():
    found = entry("modular-flux-img2img")  # it finds its start by the number of steps
    pipe = found.build()
    with budcache.applied(pipe, POLICY):
        served = latents(found, pipe)
        generator = torch.Generator().manual_seed(0)
        assert torch.equal(pipe(**found.kwargs(), generator=generator, output_type="pt", output="latents"), served)
        assert arguments(pipe)["num_inference_steps"] == STEPS
        with pytest.raises(PipelineError, match="num_inference_steps=6"):
            latents(found, pipe, num_inference_steps=8)
    assert arguments(pipe)["num_inference_steps"] == 50


def test_the_bar_of_a_modular_pipeline_ends_full(capsys):
    found = entry("modular-flux")
    pipe = found.build()
    for block in parts(pipe._blocks):
        if hasattr(block, "set_progress_bar_config"):
            block.set_progress_bar_config()
    with budcache.applied(pipe, POLICY):
        latents(found, pipe)
    assert "3/3" in capsys.readouterr().err


# Guidance that begins and ends at some step, or changes: it is told the steps of the full run.


@pytest.mark.parametrize("name", ["modular-qwen-image", "modular-sdxl", "hunyuan-video-1.5"])
def test_an_interval_of_guidance_is_that_of_the_full_run(name):
    found = entry(name)
    pipe = found.build()

    def with_fresh_guider():  # diffusers' own, once it has run, thinks that it is still at the end of that run
        pipe.guider = d.ClassifierFreeGuidance(guidance_scale=4.0, start=0.4, stop=0.8)  # steps 2 and 3 of 6
        return pipe

    bare = latents(found, with_fresh_guider())
    for text, calls in (("111111", 8), ("110100", 4), ("101011", 5), ("100010", 2)):
        policy = Policy(mask=text)
        with budcache.applied(with_fresh_guider(), policy), counted(found, pipe) as made:
            served = latents(found, pipe)
        assert len(made) == calls  # one a computed step, and another within the interval
        assert torch.equal(rolled(found, with_fresh_guider(), policy), served)
        assert torch.equal(served, bare) == (text == "111111")


def test_what_the_user_sets_meanwhile_stays():
    found = entry("modular-qwen-image")
    pipe = found.build()
    own = d.ClassifierFreeGuidance(guidance_scale=2.0)
    handle = budcache.apply(pipe, POLICY)
    pipe.guider = own
    handle.remove()
    assert pipe.guider is own


@pytest.mark.parametrize("name", ["modular-qwen-image", "hunyuan-video-1.5"])
def test_a_scheduler_of_the_users_own_ends_the_counting_of_guiders_and_blocks(name):
    found = entry(name)
    pipe = found.build()
    known = arguments(pipe)

    def with_fresh_guider():
        pipe.guider = d.ClassifierFreeGuidance(guidance_scale=4.0, start=0.4, stop=0.8)
        return pipe

    bare = latents(found, with_fresh_guider())
    handle = budcache.apply(with_fresh_guider(), POLICY)
    latents(found, pipe)
    pipe.scheduler = type(pipe.scheduler.inner).from_config(pipe.scheduler.config)
    assert not handle.is_active and arguments(pipe) == known
    assert torch.equal(latents(found, pipe), bare)
    handle.remove()
    assert torch.equal(latents(found, with_fresh_guider()), bare)


def test_a_guider_with_momentum_is_served_but_not_searched():
    found = entry("hunyuan-image-guided")
    pipe = found.build()
    pipe.guider = pipe.guider.new(adaptive_projected_guidance_momentum=-0.5)
    bare = latents(found, pipe)
    with budcache.applied(pipe, Policy(mask=Mask.full(STEPS))):
        assert torch.equal(latents(found, pipe), bare)
    with pytest.raises(PipelineError, match=r"pipe\.guider\.adaptive_projected_guidance_momentum = None"):
        opened(found, pipe)
    pipe.guider.adaptive_projected_guidance_momentum = None
    with opened(found, pipe) as model:
        assert model.calls == 1


def plain_blocks(pipe):
    return not any(isinstance(module, Blocks) for module in pipe.transformer.modules())


def test_a_guider_that_cannot_be_searched_leaves_nothing_in_the_transformer():
    found = entry("modular-qwen-image")
    pipe = found.build()
    pipe.guider = d.AdaptiveProjectedGuidance(guidance_scale=4.0, adaptive_projected_guidance_momentum=-0.5)
    with pytest.raises(PipelineError, match="adaptive_projected_guidance_momentum"):
        opened(found, pipe, reuse="residual")
    assert plain_blocks(pipe)


def test_a_policy_that_cannot_be_applied_leaves_nothing_on_the_pipeline():
    found = entry("modular-qwen-image")
    pipe = found.build()
    pipe.guider.lock = threading.Lock()  # cannot be copied
    before = dict(vars(pipe))
    with pytest.raises(TypeError, match="lock"):
        budcache.apply(pipe, Policy(mask="101010", reuse="residual"))
    assert plain_blocks(pipe) and vars(pipe) == before
    refusing = entry("flux-controlnet").build()
    before = dict(vars(refusing))
    with pytest.raises(PipelineError, match='reuse="output"'):
        budcache.apply(refusing, Policy(mask="101010", reuse="residual"))
    assert plain_blocks(refusing) and vars(refusing) == before and type(refusing) is d.FluxControlNetPipeline


def test_gradients_pass_through_the_blocks():
    found = entry("modular-qwen-image")
    pipe = found.build()
    with opened(found, pipe, grad=True, output_type="pt") as model:
        x, sigma = model.noise.clone().requires_grad_(), model.sigmas[1].clone().requires_grad_()
        v, _ = model.compute(x, sigma)
        slopes = torch.autograd.grad(v.square().sum(), [x, sigma])
        assert all(slope.abs().sum() > 0 for slope in slopes)
        assert model.finish(x)[0].requires_grad
    assert not latents(found, pipe).requires_grad


# What a pipeline takes


def test_arguments_of_stock_and_modular_pipelines_and_their_defaults():
    stock = arguments(entry("flux-img2img").build())
    assert stock["num_inference_steps"] == 28 and stock["strength"] == 0.6 and stock["prompt"] is None
    assert "self" not in stock and "kwargs" not in arguments(entry("sd15-ddim").build())
    modular_flux = arguments(entry("modular-flux").build())
    assert modular_flux["num_inference_steps"] == 50 and modular_flux["strength"] == 0.6
    assert modular_flux["guidance_scale"] == 3.5
    qwen = arguments(entry("modular-qwen-image").build())
    assert "guidance_scale" not in qwen and "denoiser_input_fields" in qwen  # a group of inputs, by its name
    assert None not in qwen


def test_the_usual_guidance_is_an_arguments_or_a_guiders():
    origins = [describe(entry(name).build()) for name in ("modular-flux", "modular-qwen-image", "hunyuan-video-1.5")]
    assert [origin.guidance for origin in origins] == [3.5, 4.0, 6.0]


@pytest.mark.parametrize("name", ["modular-qwen-image", "hunyuan-video-1.5"])
def test_a_guiders_scale_far_from_that_of_the_fit_is_said(name):
    found = entry(name)
    pipe = found.build()
    fitted = Policy(mask="110100", weights=((1.0,), (1.3, -0.3), (1.1, 0.1, -0.2)), origin=describe(pipe, guidance=4.0))
    with budcache.applied(pipe, fitted), told() as warned:
        for scale in (4.0, 12.0, 12.0):
            pipe.guider = d.ClassifierFreeGuidance(guidance_scale=scale)
            latents(found, pipe)
    assert [text.partition(": ")[0] for text in warned] == ["the policy was fitted at guidance 4, this run has 12"]
    assert warned[0].endswith("Fit it again at that guidance, with the guider that the pipeline has now.")


def test_options_of_the_command_line_are_those_of_the_blocks():
    from budcache.cli.common import settings_for

    pipe = entry("modular-wan").build()
    assert settings_for(pipe, num_frames=5, height=None) == {"num_frames": 5}
    with pytest.raises(PipelineError, match="WanModularPipeline takes no guidance_scale"):
        settings_for(pipe, guidance_scale=4.0)


# Pipelines that ask what their scheduler is


def test_a_stand_in_is_also_what_it_stands_for():
    pipe = entry("hidream").build()  # it asks for UniPC by isinstance, and Bria for its own
    with budcache.applied(pipe, POLICY):
        assert isinstance(pipe.scheduler, d.UniPCMultistepScheduler)
        assert isinstance(pipe.scheduler, budcache.BudcacheScheduler)
        assert not isinstance(pipe.scheduler, d.DDIMScheduler)
        assert type(pipe.scheduler) is type(copy.deepcopy(pipe.scheduler)) is budcache.BudcacheScheduler
        assert type(pickle.loads(pickle.dumps(pipe.scheduler))) is budcache.BudcacheScheduler
        assert pipe.config["scheduler"] == ("budcache", "BudcacheScheduler")
