"""Pipelines that look things up by the number of the step: under a policy it is the step of the full run."""

from __future__ import annotations

import copy
import pickle

import diffusers as d
import pytest
import torch
from helpers import STEPS, counted, flux, latents, rolled
from zoo import entry

import budcache
from budcache import Mask, PipelineError, Policy

MASKS = ("111111", "110100", "100010", "101011")
# Arguments that are fractions of the steps.
FRACTIONS = {
    "flux-controlnet": {"control_guidance_start": 0.1, "control_guidance_end": 0.5},
    "sd3-controlnet": {"control_guidance_end": 0.5},
    "lumina2": {"cfg_trunc_ratio": 0.5},
    "sd3": {"skip_guidance_layers": [1], "skip_layer_guidance_start": 0.0, "skip_layer_guidance_stop": 0.5},
}


@pytest.mark.parametrize("name", FRACTIONS)
def test_fractions_of_the_steps_are_searched_as_they_are_served(name):
    kind, more = entry(name), FRACTIONS[name]
    pipe = kind.build()
    bare = latents(kind, pipe, **more)
    for mask in MASKS:
        policy = Policy(mask=mask)
        with budcache.applied(pipe, policy):
            served = latents(kind, pipe, **more)
        assert torch.equal(rolled(kind, pipe, policy, **more), served)
        assert torch.equal(served, bare) == (mask == "111111")
    assert torch.equal(latents(kind, pipe, **more), bare)
    assert not torch.equal(latents(kind, pipe), bare), "the argument matters"


def test_a_half_is_half_of_the_full_run():
    kind = entry("flux-controlnet")
    pipe = kind.build()
    weighed = []
    hook = pipe.controlnet.register_forward_pre_hook(
        lambda module, args, kwargs: weighed.append(kwargs["conditioning_scale"]), with_kwargs=True
    )
    for mask, expected in (("111111", [1, 1, 1, 0, 0, 0]), ("110100", [1, 1, 0]), ("100111", [1, 0, 0, 0])):
        weighed.clear()
        with budcache.applied(pipe, Policy(mask=mask)):
            latents(kind, pipe, control_guidance_end=0.5, controlnet_conditioning_scale=1.0)
        assert weighed == expected
    hook.remove()


def test_a_number_of_steps_that_is_left_out_is_the_policys_for_fractions_too():
    kind = entry("lumina2")
    pipe = kind.build()
    call = {**kind.kwargs(), "output_type": "latent", "cfg_trunc_ratio": 0.5}
    default = 30
    with budcache.applied(pipe, Policy(mask="110100")):
        expected = latents(kind, pipe, cfg_trunc_ratio=0.5)
        for more in ({}, {"num_inference_steps": default}):
            assert torch.equal(pipe(generator=torch.Generator().manual_seed(0), **call, **more)[0], expected)
        with pytest.raises(TypeError, match="no_such_argument"):
            pipe(no_such_argument=1, **call)


# The class of a pipeline under a policy


class Derived(d.FluxControlNetPipeline):
    """A pipeline as people derive it."""

    def __call__(self, *args, **kwargs):
        return super().__call__(*args, **kwargs)


def test_the_loop_of_the_class_that_a_pipeline_was_derived_from_counts():
    kind = entry("flux-controlnet")
    stock = kind.build()
    pipe = Derived(**stock.components)
    pipe.set_progress_bar_config(disable=True)
    for mask in MASKS:
        policy = Policy(mask=mask)
        with budcache.applied(stock, policy):
            expected = latents(kind, stock, control_guidance_end=0.5)
        with budcache.applied(pipe, policy):
            assert torch.equal(latents(kind, pipe, control_guidance_end=0.5), expected)
        assert torch.equal(rolled(kind, pipe, policy, control_guidance_end=0.5), expected)
        assert type(pipe) is Derived


class Plain(d.DiffusionPipeline):
    """A pipeline that loops in a method, over a progress bar, and changes what it does midway."""

    def __init__(self, unet, scheduler):
        super().__init__()
        self.register_modules(unet=unet, scheduler=scheduler)

    def denoise(self, latents, text, num_inference_steps):
        self.scheduler.set_timesteps(num_inference_steps)
        timesteps = self.scheduler.timesteps
        self.seen = []
        for i, t in enumerate(self.progress_bar(timesteps)):
            self.seen.append((i, len(timesteps)))
            output = self.unet(latents, t, encoder_hidden_states=text)[0] * (1 if i < num_inference_steps / 2 else 0.5)
            latents = self.scheduler.step(output, t, latents).prev_sample
        return latents

    @torch.no_grad()
    def __call__(self, generator=None, num_inference_steps=4, output_type="latent"):
        text = torch.ones(1, 3, self.unet.config.cross_attention_dim)
        return (self.denoise(torch.randn(1, 4, 16, 16, generator=generator), text, num_inference_steps),)


def test_a_loop_in_a_method_of_its_own_counts_and_its_bar_ends_full(monkeypatch):
    stock = entry("sd15-ddim").build()
    pipe = Plain(stock.unet, stock.scheduler)
    bars = []
    bar_of = Plain.progress_bar
    monkeypatch.setattr(Plain, "progress_bar", lambda *a, **k: bars.append(bar_of(*a, **k)) or bars[-1])
    pipe.set_progress_bar_config(leave=False)

    def run():
        return pipe(torch.Generator().manual_seed(0), STEPS)[0]

    bare = run()
    for mask in MASKS:
        policy = Policy(mask=mask)
        with budcache.applied(pipe, policy):
            served = run()
        assert pipe.seen == [(k, STEPS) for k in policy.mask.computed]
        assert torch.equal(served, bare) == (mask == "111111")
    assert all(bar.n == bar.total for bar in bars) and not served.requires_grad
    assert [bar.total for bar in bars[1:]] == [6, 3, 2, 4]


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda pipe: pickle.loads(pickle.dumps(pipe))])
def test_a_copy_counts_too_and_goes_by_the_stock_name(how):
    kind = entry("flux-controlnet")
    pipe = kind.build()
    with budcache.applied(pipe, Policy(mask="110100")):
        expected = latents(kind, pipe, control_guidance_end=0.5)
        twin = how(pipe)
        assert type(pipe).__name__ == "FluxControlNetPipeline" and isinstance(pipe, d.FluxControlNetPipeline)
    assert type(pipe) is d.FluxControlNetPipeline
    torch.testing.assert_close(latents(kind, twin, control_guidance_end=0.5), expected)


def test_a_new_policy_counts_on_when_an_old_handle_is_removed():
    kind = entry("flux-controlnet")
    pipe = kind.build()
    policy = Policy(mask="110100")
    with budcache.applied(pipe, policy):
        expected = latents(kind, pipe, control_guidance_end=0.5)
    first = budcache.apply(pipe, Policy(mask="100000"))
    pipe.scheduler = pipe.scheduler.inner
    second = budcache.apply(pipe, policy)
    first.remove()
    assert torch.equal(latents(kind, pipe, control_guidance_end=0.5), expected)
    second.remove()
    assert type(pipe) is d.FluxControlNetPipeline


def test_a_pipeline_made_of_the_parts_of_another_counts_what_it_is_shown():
    """Nothing was applied to it, so its loop is the stock one, and so are the timesteps that it is shown."""
    kind, pipe = flux()
    with budcache.applied(pipe, Policy(mask="110100")):
        expected = latents(kind, pipe)
        other = d.FluxPipeline(**pipe.components)
        other.set_progress_bar_config(disable=True)
        with counted(kind, other) as calls:
            assert torch.equal(latents(kind, other), expected)
        assert len(calls) == other.num_timesteps == 3


# What waits for one step


@pytest.mark.parametrize("many", [False, True])
def test_a_callback_that_waits_for_a_reused_step_is_refused(many):
    from diffusers.callbacks import MultiPipelineCallbacks, SDXLCFGCutoffCallback

    kind = entry("sdxl")
    pipe = kind.build()

    def cut(**at):
        callback = SDXLCFGCutoffCallback(**{"cutoff_step_ratio": None, **at})
        return MultiPipelineCallbacks([callback]) if many else callback

    bare = latents(kind, pipe, callback_on_step_end=cut(cutoff_step_index=2))
    with budcache.applied(pipe, Policy(mask=Mask.full(STEPS))):
        assert torch.equal(latents(kind, pipe, callback_on_step_end=cut(cutoff_step_index=2)), bare)
    with budcache.applied(pipe, Policy(mask="110100")):
        plain = latents(kind, pipe)
        for at in ({"cutoff_step_index": 2}, {"cutoff_step_ratio": 0.4}):
            with pytest.raises(PipelineError, match=r"SDXLCFGCutoffCallback waits for step 2, .* such as 1 or 3"):
                latents(kind, pipe, callback_on_step_end=cut(**at))
        with pytest.raises(PipelineError, match=r"such as 3\."):
            latents(kind, pipe, callback_on_step_end=cut(cutoff_step_index=5))
        assert not torch.equal(latents(kind, pipe, callback_on_step_end=cut(cutoff_step_ratio=0.2)), plain)
        assert torch.equal(latents(kind, pipe, callback_on_step_end=cut(cutoff_step_ratio=1.0)), plain)
