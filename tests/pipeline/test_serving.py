"""Serving a policy: what users do with it, and what they may do wrong."""

from __future__ import annotations

import copy
import inspect
import pickle
import warnings

import numpy as np
import pytest
import torch
from alignment import aligned
from helpers import STEPS, counted, flux, latents, opened, rolled, told
from zoo import entry

import budcache
from budcache import BudcacheWarning, FileError, Ladder, Mask, Origin, PipelineError, Policy, PolicyError
from budcache.numerics.rollout import rollout
from budcache.numerics.solvers import euler
from budcache.pipeline import BudcacheScheduler, describe
from budcache.plan import Plan

POLICY = Policy(mask="110100")
LADDER = Ladder.of([Policy(mask="100100"), POLICY, Policy(mask="110101")])
BLEND = ((1.0,), (1.3, -0.3), (1.1, 0.1, -0.2))
SIGMAS = (1.0, 0.93, 0.81, 0.6, 0.42, 0.2, 0.0)


# What may be applied


def test_a_policy_a_ladder_and_their_files_all_apply(tmp_path):
    kind, pipe = flux()
    with budcache.applied(pipe, POLICY):
        expected = latents(kind, pipe)
    single, several = POLICY.save(tmp_path / "p.json"), LADDER.save(tmp_path / "l.json")
    for given, budget in ((LADDER, 3), (single, None), (str(single), 3), (several, 3)):
        with budcache.applied(pipe, given, budget=budget) as handle:
            assert handle.policy == POLICY and handle.is_active
            assert torch.equal(latents(kind, pipe), expected)
        assert not handle.is_active


@pytest.mark.parametrize(
    ("given", "budget", "words"),
    [
        (LADDER, None, "budgets 2, 3, 4"),
        (LADDER, 5, "nearest below has 4"),
        (POLICY, 2, "makes 3 calls"),
        ("/nowhere/p.json", None, "no file"),
        (3.5, None, "float"),
    ],
)
def test_what_cannot_be_chosen_is_said(given, budget, words):
    _, pipe = flux()
    with pytest.raises((PolicyError, FileError), match=words):
        budcache.apply(pipe, given, budget=budget)
    assert not isinstance(pipe.scheduler, BudcacheScheduler)


def test_a_handle_applies_until_it_is_removed_and_tells_what_happened():
    kind, pipe = flux()
    original = pipe.scheduler
    handle = budcache.apply(pipe, POLICY)
    assert "active" in repr(handle) and "3 of 6" in repr(handle)
    for _ in range(2):
        latents(kind, pipe)
    stats = handle.stats()
    assert (stats.runs, stats.calls, stats.reused, stats.last_run_calls) == (2, 6, 6, 3)
    latents(kind, pipe)
    assert stats.runs == 2, "a record does not change behind its reader's back"
    handle.remove()
    handle.remove()
    assert pipe.scheduler is original and "removed" in repr(handle)


def test_only_a_pipeline_can_carry_a_policy():
    _, pipe = flux()
    with pytest.raises(PipelineError, match="FluxTransformer2DModel is not a diffusers pipeline"):
        budcache.apply(pipe.transformer, POLICY)


def test_a_second_policy_is_refused_and_a_new_scheduler_ends_the_first():
    kind, pipe = flux()
    bare = latents(kind, pipe)
    handle = budcache.apply(pipe, POLICY)
    with pytest.raises(PipelineError, match="already carries a policy"):
        budcache.apply(pipe, POLICY)
    fresh = pipe.scheduler = type(pipe.scheduler.inner).from_config(pipe.scheduler.config)
    assert not handle.is_active
    assert torch.equal(latents(kind, pipe), bare)
    handle.remove()
    assert pipe.scheduler is fresh


# Numbers of steps


def test_the_number_of_steps_may_be_left_out_or_must_be_the_policys():
    kind, pipe = flux()
    with budcache.applied(pipe, POLICY):
        expected = latents(kind, pipe)
        call = {**kind.kwargs(), "output_type": "latent"}
        left_out = pipe(generator=torch.Generator().manual_seed(0), **call)[0]
        assert torch.equal(left_out, expected)
        with pytest.raises(PipelineError, match=r"6 steps are expected, .* asked for 8\. Pass num_inference_steps=6"):
            latents(kind, pipe, num_inference_steps=8)
        assert torch.equal(latents(kind, pipe), expected), "a refused run leaves the next one alone"


def test_wan_may_leave_the_number_of_steps_out_too():
    kind = entry("wan-t2v")
    pipe = kind.build()
    with budcache.applied(pipe, POLICY):
        expected = latents(kind, pipe)
        call = {**kind.kwargs(), "output_type": "latent"}
        assert torch.equal(pipe(generator=torch.Generator().manual_seed(0), **call)[0], expected)


def test_sigmas_of_the_users_own_meet_the_policys():
    kind, pipe = flux()
    own = np.linspace(1, 0.3, STEPS)
    bare = latents(kind, pipe, sigmas=own)
    with budcache.applied(pipe, Policy(mask=Mask.full(STEPS))):
        assert torch.equal(latents(kind, pipe, sigmas=own), bare)
    with (
        budcache.applied(pipe, Policy(mask="110100", sigmas=SIGMAS)),
        pytest.raises(PipelineError, match="policy decides the noise levels"),
    ):
        latents(kind, pipe, sigmas=own)


# Effective sigmas


@pytest.mark.parametrize("name", ["flux", "wan-t2v", "wan-t2v-euler", "flux-dpm", "sd3", "qwen-image"])
def test_effective_sigmas_are_installed_verbatim(name):
    kind = entry(name)
    pipe = kind.build()
    policy = Policy(mask="110100", sigmas=SIGMAS)
    seen = []
    with budcache.applied(pipe, policy) as handle:
        served = latents(
            kind,
            pipe,
            callback_on_step_end=lambda pipe, i, t, kwargs: seen.append(float(t)) or {},
        )
        installed = pipe.scheduler.inner.sigmas
    torch.testing.assert_close(installed.float(), torch.tensor(SIGMAS), rtol=0, atol=0)
    computed = [SIGMAS[k] * 1000 for k in policy.mask.computed]
    np.testing.assert_allclose(seen, computed, atol=1.0)  # whole timesteps in UniPC and DPM-Solver++
    assert handle.stats().calls == 3
    assert torch.equal(rolled(kind, pipe, policy), served)


def test_flow_matching_with_sigmas_is_euler_on_them():
    kind, pipe = flux()
    policy = Policy(mask="110100", sigmas=SIGMAS)
    with budcache.applied(pipe, policy):
        served = latents(kind, pipe)
    with opened(kind, pipe) as model:
        levels = tuple(SIGMAS[k] for k in (*policy.mask.computed, STEPS))
        coarse = rollout(model, model.noise, Plan.of(Policy(mask=Mask.full(3)), levels), euler)
    torch.testing.assert_close(served, coarse)


def test_the_pipelines_own_sigmas_in_a_policy_change_nothing():
    for name in ("flux", "wan-t2v", "sdxl"):
        kind = entry(name)
        pipe = kind.build()
        bare = latents(kind, pipe)
        with opened(kind, pipe) as model:
            policy = Policy(mask=Mask.full(STEPS), sigmas=model.sigmas.tolist())
        with budcache.applied(pipe, policy):
            assert torch.equal(latents(kind, pipe), bare)


def test_sigmas_that_cannot_fit_are_refused():
    kind = entry("sd15-ddim")
    pipe = kind.build()
    with (
        budcache.applied(pipe, Policy(mask="110100", sigmas=SIGMAS)),
        pytest.raises(PipelineError, match="DDIMScheduler keeps no list of sigmas"),
    ):
        latents(kind, pipe)
    kind = entry("sdxl")
    pipe = kind.build()
    with (
        budcache.applied(pipe, Policy(mask="110100", sigmas=SIGMAS)),
        pytest.raises(PipelineError, match="another kind of model"),
    ):
        latents(kind, pipe)


# Schedulers


@pytest.mark.parametrize(
    ("scheduler", "words"),
    [
        ("EulerAncestralDiscreteScheduler", "fresh noise"),
        ("DDPMScheduler", "fresh noise"),
        ("LCMScheduler", "fresh noise"),
        ("DPMSolverSDEScheduler", "order|times a step|torchsde"),
        ("HeunDiscreteScheduler", "2 times a step"),
        ("KDPM2DiscreteScheduler", "2 times a step"),
        ("FlowMatchHeunDiscreteScheduler", "2 times a step"),
    ],
)
def test_stochastic_and_second_order_schedulers_are_refused_by_name(scheduler, words):
    import diffusers

    pipe = entry("sdxl").build()
    try:
        pipe.scheduler = getattr(diffusers, scheduler)()
    except ImportError:
        pytest.skip(f"{scheduler} needs a package that is not installed")
    with pytest.raises(PipelineError, match=words) as refusal:
        budcache.apply(pipe, POLICY)
    assert scheduler in str(refusal.value) and "Set pipe.scheduler" in str(refusal.value)


def test_stochastic_settings_of_a_deterministic_class_are_refused():
    import diffusers

    for name, scheduler in (
        ("sdxl", diffusers.DPMSolverMultistepScheduler(algorithm_type="sde-dpmsolver++")),
        ("flux", diffusers.FlowMatchEulerDiscreteScheduler(stochastic_sampling=True)),
    ):
        pipe = entry(name).build()
        pipe.scheduler = scheduler
        with pytest.raises(PipelineError, match="fresh noise"):
            budcache.apply(pipe, POLICY)


def test_a_scheduler_with_more_timesteps_than_steps_is_refused():
    import diffusers

    kind = entry("sd15-ddim")
    pipe = kind.build()
    pipe.scheduler = diffusers.PNDMScheduler(skip_prk_steps=True)
    with budcache.applied(pipe, POLICY), pytest.raises(PipelineError, match="makes 7 timesteps out of 6 steps"):
        latents(kind, pipe)
    with pytest.raises(PipelineError, match="makes 7 timesteps out of 6 steps"):
        opened(kind, pipe)


def test_noise_added_by_an_argument_is_refused():
    kind = entry("sd15-ddim")
    pipe = kind.build()
    with budcache.applied(pipe, POLICY), pytest.raises(PipelineError, match=r"eta=0.5"):
        latents(kind, pipe, eta=0.5)


def test_the_stand_in_shows_the_inner_schedulers_signatures_and_settings():
    for name in ("flux", "wan-t2v", "sdxl", "sd15-ddim"):
        pipe = entry(name).build()
        inner = pipe.scheduler
        with budcache.applied(pipe, POLICY):
            for method in ("set_timesteps", "step"):
                assert inspect.signature(getattr(pipe.scheduler, method)) == inspect.signature(getattr(inner, method))
            assert pipe.scheduler.config == inner.config and pipe.scheduler.order == 1
            with pytest.raises(AttributeError, match="no_such_thing"):
                pipe.scheduler.no_such_thing  # noqa: B018


# Where it came from


def test_the_same_model_in_another_number_format_is_still_the_same(recwarn):
    kind, pipe = flux()
    policy = Policy(mask="110100", origin=describe(pipe, strategy="by hand"))
    with budcache.applied(pipe, policy):
        latents(kind, pipe)
    half = entry("flux").build().to(torch.bfloat16)
    assert describe(half).weights == policy.origin.weights
    budcache.apply(half, policy).remove()
    assert not [w for w in recwarn if issubclass(w.category, BudcacheWarning)]


def test_another_model_is_warned_about():
    _, pipe = flux()
    origin = describe(pipe)
    with torch.no_grad():
        next(pipe.transformer.parameters()).add_(0.5)
    with pytest.warns(BudcacheWarning, match="other weights"):
        budcache.apply(pipe, Policy(mask="110100", origin=origin)).remove()
    with pytest.warns(BudcacheWarning, match="WanTransformer3DModel"):
        budcache.apply(entry("wan-t2v-euler").build(), Policy(mask="110100", origin=origin)).remove()


def test_a_mask_may_move_to_another_scheduler_but_fitted_numbers_may_not():
    pipe = entry("wan-t2v").build()
    origin = Origin(scheduler="FlowMatchEulerDiscreteScheduler")
    with pytest.warns(BudcacheWarning, match="searched with FlowMatchEuler"):
        budcache.apply(pipe, Policy(mask="110100", origin=origin)).remove()
    for fitted in ({"sigmas": SIGMAS}, {"weights": [[1.0], [1.0], [1.0]]}):
        with pytest.raises(PipelineError, match=r"FlowMatchEulerDiscreteScheduler.from_config"):
            budcache.apply(pipe, Policy(mask="110100", origin=origin, **fitted))


def test_a_guidance_far_from_that_of_the_fit_is_said_once_each():
    kind, pipe = flux()
    fitted = Policy(mask="110100", weights=BLEND, origin=describe(pipe, guidance=3.5))
    with budcache.applied(pipe, fitted), told() as warned:
        for guidance in (3.5, 5.0, 7.0, 7.0, 2, 1.5, 7.0, 1.5):
            latents(kind, pipe, guidance_scale=guidance)
    assert [text.partition(": ")[0] for text in warned] == [
        "the policy was fitted at guidance 3.5, this run has 7",
        "the policy was fitted at guidance 3.5, this run has 1.5",
    ]
    assert "call={'guidance_scale': 7} or --guidance 7." in warned[0]
    with budcache.applied(pipe, fitted), told() as again:
        latents(kind, pipe, guidance_scale=7.0)
    assert again == warned[:1], "applied anew, it is said anew"


@pytest.mark.parametrize("made_of", [{}, {"reuse": "residual"}, {"weights": BLEND, "origin": Origin()}], ids=str)
def test_the_guidance_of_a_policy_that_was_not_fitted_at_one_is_no_matter(made_of):
    kind, pipe = flux()
    policy = Policy(**{"mask": "110100", "origin": describe(pipe, guidance=3.5), **made_of})
    with budcache.applied(pipe, policy), told() as warned:
        latents(kind, pipe, guidance_scale=30.0)
    assert warned == []


# Image to image


@pytest.mark.parametrize("frames", [5, 9, 13])
def test_a_policy_of_one_number_of_frames_serves_others(frames, recwarn):
    """Its weights are numbers, not latents; Wan's noise levels do not depend on the size."""
    kind = entry("wan-t2v")
    pipe = kind.build()
    call = {name: value for name, value in kind.kwargs().items() if name != "prompt"}
    found = budcache.search(pipe, steps=STEPS, budgets=[3], prompts=["a", "b"], call={**call, "num_frames": 5})[3]
    assert found.origin.frames == 5 and found.is_blended
    assert describe(pipe).frames == 81, "what Wan makes if it is told nothing"
    with budcache.applied(pipe, found) as handle:
        served = latents(kind, pipe, num_frames=frames)
    assert handle.stats().last_run_calls == 3
    assert served.shape[2] == (frames - 1) // 4 + 1
    assert torch.allclose(served, rolled(kind, pipe, found, num_frames=frames), atol=1e-5)
    assert not [each for each in recwarn if issubclass(each.category, BudcacheWarning)]


@pytest.mark.parametrize("strength", [1.0, 0.67, 0.5, 0.34, 0.17])
def test_image_to_image_starts_where_the_full_run_starts(strength):
    kind = entry("flux-img2img")
    pipe = kind.build()
    with counted(kind, pipe) as calls:
        bare = latents(kind, pipe, strength=strength)
    with budcache.applied(pipe, Policy(mask=Mask.full(STEPS))):
        assert torch.equal(latents(kind, pipe, strength=strength), bare)
    begin = STEPS - len(calls)
    with budcache.applied(pipe, POLICY) as handle, counted(kind, pipe) as fewer:
        served = latents(kind, pipe, strength=strength)
    assert len(fewer) == handle.stats().calls == 1 + sum(POLICY.mask.bits[begin + 1 :])
    assert torch.equal(rolled(kind, pipe, POLICY, strength=strength), served)


@pytest.mark.parametrize(
    ("strength", "begin", "plain"), [(1.0, 0, 0), (0.83, 1, 1), (0.66, 2, 2), (0.5, 3, 1), (0.33, 4, 1), (0.16, 5, 0)]
)
def test_image_to_image_under_a_fitted_policy(strength, begin, plain):
    """Blends that look back before the start repeat the last output instead: said once, at the calls of the plan."""
    kind = entry("flux-img2img")
    pipe = kind.build()
    policy = Policy(mask="111010", weights=((1.0,), (1.3, -0.3), (1.2, -0.1), (1.1, 0.1, -0.2)))
    with opened(kind, pipe, strength=strength) as model:
        plan = Plan.of(policy, model.sigmas, model.begin)
    assert (plan.begin, plan.plain) == (begin, plain)
    with budcache.applied(pipe, policy) as handle, counted(kind, pipe) as calls, told() as warned:
        served = [latents(kind, pipe, seed, strength=strength) for seed in (0, 1, 0)]
    assert len(calls) == handle.stats().calls == 3 * plan.calls
    for seed, drawn in zip((0, 1, 0), served, strict=True):
        assert torch.equal(rolled(kind, pipe, policy, seed, strength=strength), drawn)
    with budcache.applied(pipe, Policy(mask="111010")):
        kept = any(stretch.blend is not None for stretch in plan)
        assert torch.equal(latents(kind, pipe, strength=strength), served[0]) != kept
    said = f"this run starts at step {begin}, and {plain} of the policy's blends look back before that; these stretches"
    assert [text.startswith(said) and "The number of calls holds." in text for text in warned] == [True] * (plain > 0)


def picture() -> object:
    from PIL import Image

    return Image.fromarray((np.indices((32, 32, 3)).sum(0) * 3 % 256).astype(np.uint8))


def classic(name: str, scheduler: str, **parts: object) -> object:
    """A Stable Diffusion 1.5 pipeline of another kind, out of the zoo's parts."""
    import diffusers

    pipe = entry("sd15-ddim").build()
    components = {**pipe.components, "scheduler": getattr(diffusers, scheduler)(), **parts}
    made = getattr(diffusers, name)(**components, requires_safety_checker=False)
    made.set_progress_bar_config(disable=True)
    return made


@pytest.mark.parametrize("scheduler", ["DDIMScheduler", "EulerDiscreteScheduler", "UniPCMultistepScheduler"])
@pytest.mark.parametrize("strength", [1.0, 0.6])
def test_classic_image_to_image(scheduler, strength):
    pipe = classic("StableDiffusionImg2ImgPipeline", scheduler)
    call = {"prompt": "a cat", "image": picture(), "strength": strength, "output_type": "latent"}

    def run(**more: object) -> torch.Tensor:
        return pipe(generator=torch.Generator().manual_seed(0), num_inference_steps=STEPS, **call, **more)[0]

    bare = run()
    with budcache.applied(pipe, Policy(mask=Mask.full(STEPS))):
        assert torch.equal(run(), bare)
    with budcache.applied(pipe, POLICY) as handle:
        assert run().shape == bare.shape
        begin = STEPS - int(STEPS * strength)
        assert handle.stats().calls == 1 + sum(POLICY.mask.bits[begin + 1 :])
        with pytest.raises(PipelineError, match=r"asked for 50\. Pass num_inference_steps=6"):
            pipe(**call)  # left out, the start would be looked for among 50 steps
    assert torch.equal(run(), bare)


@pytest.mark.parametrize("scheduler", ["DDIMScheduler", "EulerDiscreteScheduler"])  # the second is told its start
@pytest.mark.parametrize(("strength", "calls"), [(1.0, 4), (0.6, 2), (0.17, 1)])
def test_the_bar_of_classic_image_to_image_ends_full(scheduler, strength, calls, monkeypatch):
    pipe = classic("StableDiffusionImg2ImgPipeline", scheduler)
    bars = []
    stock = type(pipe).progress_bar
    monkeypatch.setattr(type(pipe), "progress_bar", lambda *a, **k: bars.append(stock(*a, **k)) or bars[-1])
    pipe.set_progress_bar_config(disable=False, leave=False)
    call = {"image": picture(), "strength": strength, "num_inference_steps": STEPS, "output_type": "latent"}
    with budcache.applied(pipe, Policy(mask="110101")):
        for _ in range(2):
            pipe("a cat", **call)
    assert [(bar.n, bar.total) for bar in bars] == [(calls, calls)] * 2


@pytest.mark.parametrize("scheduler", ["DDIMScheduler", "EulerDiscreteScheduler"])
@pytest.mark.parametrize("strength", [1.0, 0.6])
def test_inpainting_keeps_the_known_region(scheduler, strength):
    from PIL import Image

    pipe = classic("StableDiffusionInpaintPipeline", scheduler)
    mask = np.zeros((32, 32), np.uint8)
    mask[:, 16:] = 255
    call = {"image": picture(), "mask_image": Image.fromarray(mask), "height": 32, "width": 32, "strength": strength}

    def run() -> torch.Tensor:
        seed = torch.Generator().manual_seed(0)
        return pipe("a cat", num_inference_steps=STEPS, generator=seed, output_type="latent", **call)[0]

    bare = run()
    with budcache.applied(pipe, Policy(mask=Mask.full(STEPS))):
        assert torch.equal(run(), bare)
    with budcache.applied(pipe, POLICY):
        served = run()
    known = bare.shape[-1] // 2
    torch.testing.assert_close(served[..., :known], bare[..., :known])
    assert not torch.equal(served, bare)


def test_where_the_number_of_steps_shapes_the_noise_levels_it_has_to_be_named():
    kind = entry("flux2")
    pipe = kind.build()
    call = {**kind.kwargs(), "output_type": "latent"}
    with budcache.applied(pipe, POLICY):
        latents(kind, pipe)
        with pytest.raises(PipelineError, match="Pass num_inference_steps=6"):
            pipe(**call)


def test_a_run_cut_short_is_refused_not_silently_different():
    kind = entry("sdxl")
    pipe = kind.build()
    with budcache.applied(pipe, POLICY), pytest.raises(PipelineError, match="denoising_end"):
        latents(kind, pipe, denoising_end=0.5)


# Runs after runs


def test_other_batches_sizes_and_prompts_follow_each_other():
    kind, pipe = flux()
    calls = [{"prompt": ["a cat", "a dog"]}, {"height": 48, "width": 80}, {"prompt": "rain"}, {"guidance_scale": 1.0}]
    for reuse in ("output", "residual"):
        policy = Policy(mask="110100", reuse=reuse)
        alone = []
        for more in calls:
            with budcache.applied(pipe, policy):
                alone.append(latents(kind, pipe, **more))
        with budcache.applied(pipe, policy):
            for more, expected in zip(calls, alone, strict=True):
                assert torch.equal(latents(kind, pipe, **more), expected)


@pytest.mark.parametrize("reuse", ["output", "residual"])
def test_an_exception_midway_then_a_clean_run(reuse):
    kind, pipe = flux()
    bare = latents(kind, pipe)
    with budcache.applied(pipe, Policy(mask="110100", reuse=reuse)):
        expected = latents(kind, pipe)

        def fail(pipe, i, t, kwargs):
            if i == 1:
                raise RuntimeError("power cut")
            return {}

        with pytest.raises(RuntimeError, match="power cut") as kept:  # the traceback keeps the broken run alive
            latents(kind, pipe, callback_on_step_end=fail)
        assert torch.equal(latents(kind, pipe), expected)
        del kept
        assert torch.equal(latents(kind, pipe), expected)
    assert torch.equal(latents(kind, pipe), bare)


@pytest.mark.parametrize("reuse", ["output", "residual"])
def test_interrupting_a_run_as_users_do_then_a_clean_run(reuse):
    kind, pipe = flux()
    with budcache.applied(pipe, Policy(mask="110100", reuse=reuse)) as handle:
        expected = latents(kind, pipe)

        def stop(pipe, i, t, kwargs):
            pipe._interrupt = i == 0
            return {}

        assert not torch.equal(latents(kind, pipe, callback_on_step_end=stop), expected)
        assert handle.stats().last_run_calls == 1
        assert torch.equal(latents(kind, pipe), expected)


def test_callbacks_see_the_computed_steps_and_may_change_the_latents():
    kind, pipe = flux()
    seen = []

    def watch(pipe, i, t, kwargs):
        seen.append((i, float(t), kwargs["latents"].clone()))
        return {"latents": kwargs["latents"] * 0.5} if i == 3 else {}

    with opened(kind, pipe) as model:
        timesteps = (model.sigmas * 1000).tolist()
    with budcache.applied(pipe, POLICY):
        plain = latents(kind, pipe)
        halved = latents(kind, pipe, callback_on_step_end=watch)
    assert [i for i, _, _ in seen] == [0, 1, 3] and pipe.num_timesteps == STEPS
    np.testing.assert_allclose([t for _, t, _ in seen], [timesteps[k] for k in POLICY.mask.computed], rtol=1e-6)
    assert torch.equal(seen[-1][2], plain) and torch.equal(halved, plain * 0.5)


@pytest.mark.parametrize("name", ["flux", "flux-img2img", "wan-t2v", "sdxl", "sana", "cogvideox", "qwen-image"])
@pytest.mark.parametrize("reuse", ["output", "residual"])
def test_the_progress_bar_ends_full(name, reuse, monkeypatch):
    kind = entry(name)
    if reuse == "residual" and not kind.residual:
        pytest.skip("no residual reuse there")
    pipe = kind.build()
    bars = []
    stock = type(pipe).progress_bar
    monkeypatch.setattr(type(pipe), "progress_bar", lambda *a, **k: bars.append(stock(*a, **k)) or bars[-1])
    pipe.set_progress_bar_config(disable=False, leave=False)
    with budcache.applied(pipe, Policy(mask="110100", reuse=reuse)):
        latents(kind, pipe)
    assert bars and all(bar.n == bar.total for bar in bars)
    assert "progress_bar" not in vars(pipe)


@pytest.mark.parametrize("skipped", [[0], [1]])
def test_residual_reuse_refuses_a_pipeline_that_skips_the_ends_of_its_trunk(skipped):
    kind = entry("sd3")
    pipe = kind.build()
    skip = {"skip_guidance_layers": skipped, "skip_layer_guidance_start": 0.0, "skip_layer_guidance_stop": 1.0}
    bare = latents(kind, pipe, **skip)
    with (
        budcache.applied(pipe, Policy(mask="110100", reuse="residual")),
        pytest.raises(PipelineError, match="skip_guidance_layers"),
    ):
        latents(kind, pipe, **skip)
    assert torch.equal(latents(kind, pipe, **skip), bare)


def test_where_a_pipeline_writes_its_samples_into_one_tensor_the_noise_is_remembered():
    kind = entry("kandinsky5-t2v")
    pipe = kind.build()
    policy = Policy(mask="110100", rows=[{"outputs": [1.0], "noise": noise} for noise in (0.0, 0.1, -0.1)])
    with budcache.applied(pipe, policy):
        served = latents(kind, pipe)
    assert torch.equal(served, rolled(kind, pipe, policy))


def test_nothing_is_remembered_after_a_run():
    kind, pipe = flux()
    for policy in (Policy(mask="110100", reuse="residual"), Policy(mask="110100", weights=[[1.0], [1.0, 0.1], [1.0]])):
        with budcache.applied(pipe, policy):
            latents(kind, pipe)
            assert not pipe.scheduler.trunk.memo and not pipe.scheduler._outputs


def test_what_a_pipeline_writes_to_its_scheduler_reaches_it():
    _, pipe = flux()
    with budcache.applied(pipe, POLICY):
        pipe.scheduler._shift = 5.0
        assert pipe.scheduler.inner._shift == 5.0
        with pytest.raises(PipelineError, match="cannot be set"):
            pipe.scheduler.timesteps = torch.zeros(3)


def test_an_old_handle_does_not_touch_a_new_policy():
    kind, pipe = flux()
    first = budcache.apply(pipe, POLICY)
    pipe.scheduler = pipe.scheduler.inner
    second = budcache.apply(pipe, Policy(mask="101010"))
    first.remove()
    assert second.is_active and "progress_bar" in vars(pipe)
    latents(kind, pipe)
    second.remove()
    assert "progress_bar" not in vars(pipe)


# Copies and files


COPIES = {"copied": copy.deepcopy, "pickled": lambda value: aligned(pickle.loads(pickle.dumps(value)))}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("reuse", ["output", "residual", "blended"])
def test_a_copy_of_the_pipeline_goes_its_own_way(reuse, how):
    """With its own place in the run, its own lock and its own blocks; removing the policy here leaves it there."""
    kind, pipe = flux()
    made_of = {"weights": BLEND} if reuse == "blended" else {"reuse": reuse}
    handle = budcache.apply(pipe, Policy(mask="110100", origin=describe(pipe, guidance=3.5), **made_of))
    expected = latents(kind, pipe)
    twin = COPIES[how](pipe)
    assert twin.scheduler is not pipe.scheduler and twin.scheduler._lock is not pipe.scheduler._lock
    assert torch.equal(latents(kind, pipe), expected)
    handle.remove()
    assert torch.equal(latents(kind, twin), expected)
    assert twin.progress_bar.pipe is twin and twin.scheduler.at_start.pipe is twin
    assert handle.stats().runs == 2 and twin.scheduler.stats.runs == 2


@pytest.mark.parametrize(
    "how", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))], ids=["copied", "pickled"]
)
def test_a_copy_of_the_scheduler_carries_the_policy_to_another_pipeline(how):
    kind, pipe = flux()
    with budcache.applied(pipe, Policy(mask="110100", weights=BLEND, origin=describe(pipe))):
        expected = latents(kind, pipe)
        scheduler = how(pipe.scheduler)
    other = entry("flux").build()
    other.scheduler = scheduler
    assert torch.equal(latents(kind, other), expected)
    assert scheduler.policy.weights == BLEND and scheduler.stats.runs == 2


def test_a_saved_pipeline_still_carries_its_policy(tmp_path):
    import diffusers

    for name in ("flux", "wan-t2v", "sdxl"):
        kind = entry(name)
        pipe = kind.build()
        bare = latents(kind, aligned(pipe))
        sigmas = SIGMAS if name != "sdxl" else None
        with budcache.applied(pipe, Policy(mask="110100", sigmas=sigmas)):
            expected = latents(kind, pipe)
            pipe.save_pretrained(tmp_path / name)
        loaded = diffusers.DiffusionPipeline.from_pretrained(tmp_path / name, local_files_only=True)
        aligned(loaded).set_progress_bar_config(disable=True)
        assert isinstance(loaded.scheduler, BudcacheScheduler) and loaded.scheduler.policy.budget == 3
        assert torch.equal(latents(kind, loaded), expected)
        with pytest.raises(PipelineError, match=r"pipe.scheduler = pipe.scheduler.inner"):
            budcache.apply(loaded, POLICY)
        loaded.scheduler = loaded.scheduler.inner
        assert torch.equal(latents(kind, loaded), bare)
        # After remove() a save is a stock pipeline again.
        pipe.save_pretrained(tmp_path / f"{name}-stock")
        assert "budcache" not in (tmp_path / f"{name}-stock" / "model_index.json").read_text()


def test_a_saved_residual_policy_says_how_to_attach_it_again(tmp_path):
    import diffusers

    kind, pipe = flux()
    policy = Policy(mask="110100", reuse="residual")
    with budcache.applied(aligned(pipe), policy):
        expected = latents(kind, pipe)
        pipe.save_pretrained(tmp_path)
    loaded = aligned(diffusers.FluxPipeline.from_pretrained(tmp_path, local_files_only=True))
    loaded.set_progress_bar_config(disable=True)
    with pytest.raises(PipelineError, match="not attached"):
        latents(kind, loaded)
    policy = loaded.scheduler.policy
    loaded.scheduler = loaded.scheduler.inner
    with budcache.applied(loaded, policy):
        assert torch.equal(latents(kind, loaded), expected)


def test_warnings_come_once_per_application():
    _, pipe = flux()
    origin = Origin(denoiser="SomeOtherModel")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with budcache.applied(pipe, Policy(mask="110100", origin=origin)):
            for _ in range(3):
                pipe("a cat", height=32, width=32, output_type="latent", max_sequence_length=16)
    assert len([w for w in caught if issubclass(w.category, BudcacheWarning)]) == 1


def test_own_levels_move_where_another_size_moves_the_pipelines():
    """FLUX shifts its levels by the number of tokens, which it tells its scheduler as mu."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    stock = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    stock.set_timesteps(STEPS, mu=0.5)
    made = tuple(stock.sigmas.tolist())
    ours = BudcacheScheduler(stock, Policy(mask="110100", sigmas=made, origin=Origin(levels=made)))
    ours.set_timesteps(STEPS, mu=0.5)
    assert torch.equal(ours.inner.sigmas, stock.sigmas)
    stock.set_timesteps(STEPS, mu=1.15)
    assert (stock.sigmas[1:-2] - torch.tensor(made[1:-2]) > 0.05).all()
    ours.set_timesteps(STEPS, mu=1.15)
    torch.testing.assert_close(ours.inner.sigmas, stock.sigmas)
    torch.testing.assert_close(ours.inner.timesteps, stock.timesteps)
