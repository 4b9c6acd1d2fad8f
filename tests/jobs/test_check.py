"""The promises of a policy, tried: kept where they are kept, and broken where something breaks them."""

from __future__ import annotations

import warnings

import pytest
import torch
from zoo import entry

import budcache
from budcache import BudcacheScheduler, BudcacheWarning, Origin, PipelineError, Policy, Quality, SearchError
from budcache.comparison.timing import Speed
from budcache.jobs.promised import quality, settings_like, speed_of
from budcache.pipeline.heard import Heard, heard, steps_in
from budcache.rows import Row

ROWS = (Row(outputs=(1.0,), noise=0.0), Row(outputs=(1.2, -0.2), noise=0.01))
POLICIES = {
    "plain": Policy(mask="100100"),
    "rows": Policy(mask="100100", rows=ROWS),
    "residual": Policy(mask="101001", reuse="residual"),
    "own levels": Policy(mask="110100", sigmas=[1.0, 0.93, 0.81, 0.6, 0.42, 0.2, 0.0]),
    "full": Policy(mask="111111"),
}


def tried(kind, pipe, policy, **more):
    call = {name: value for name, value in kind.kwargs().items() if name != "prompt"}
    pipe.set_progress_bar_config(disable=True)
    return budcache.check(pipe, policy, prompts=["a cat", "two dogs"], call=call, **{"timed": False, **more})


def marks(found):
    return {promise.name: promise.kept for promise in found.promises}


@pytest.mark.parametrize("name", POLICIES)
def test_what_is_promised_is_kept(name):
    kind, policy = entry("flux"), POLICIES[name]
    pipe = kind.build()
    scheduler = pipe.scheduler
    found = tried(kind, pipe, policy)
    assert marks(found) == {"calls": True, "plan": True, "removal": True, "quality": None, "speed": None}, str(found)
    assert found.kept and found.calls == (policy.budget,) * 2
    assert f"steps {' '.join(map(str, policy.mask.computed))} and nowhere else" in str(found)
    assert ("own noise levels" in str(found)) == (policy.sigmas is not None)
    assert all(ratio == 100 for ratio in found.psnr) == (name == "full")
    assert "not timed" in str(found) and found.as_dict()["speedup"] is None
    assert pipe.scheduler is scheduler


@pytest.mark.parametrize("name", ["sd3", "wan-t2v-euler", "flux-img2img"])
def test_guidance_branches_and_runs_that_start_midway_count_as_they_should(name):
    kind = entry(name)
    found = tried(kind, kind.build(), POLICIES["plain"])
    assert marks(found) | {"quality": None} == {
        "calls": True,
        "plan": True,
        "removal": True,
        "quality": None,
        "speed": None,
    }, str(found)


def test_speed_is_measured_by_pairs_or_said_not_to_be_measurable():
    kind = entry("flux")
    found = tried(kind, kind.build(), POLICIES["plain"], timed=True)
    assert found.seconds_per_call > 0 and 20 <= found.speed.pairs <= 90
    text = found.promises[-1].text
    assert ("not measurable here" in text) != found.speed.known
    assert f"by {found.speed.pairs} pairs" in text and "s a call" in text


def test_a_pipeline_that_is_not_given_back_as_it_was_breaks_a_promise():
    kind = entry("flux")
    pipe = kind.build()

    def spoil(module, *_):
        if isinstance(pipe.scheduler, BudcacheScheduler):
            with torch.no_grad():
                module.proj_out.bias.add_(0.01)

    pipe.transformer.register_forward_hook(spoil)
    found = tried(kind, pipe, POLICIES["plain"])
    assert marks(found)["removal"] is False and not found.kept and not found.as_dict()["kept"]
    assert "✗ removal" in str(found)


def test_a_pipeline_that_never_repeats_itself_cannot_be_judged():
    kind = entry("flux")
    pipe = kind.build()
    pipe.transformer.register_forward_hook(lambda _, args, out: (out[0] + torch.rand(()),))
    assert marks(tried(kind, pipe, POLICIES["plain"]))["removal"] is None


def test_calls_on_top_and_other_levels_are_heard():
    """Two evaluations a step, as guidance makes them."""
    steps = [[1.0, 1.0], [0.8, 0.8], [0.6, 0.6], [0.3, 0.3]]
    grid = [1000.0, 800.0, 600.0, 300.0]
    plain = Policy(mask="1010")

    def made(times, policy=plain, inner=grid):
        return Heard.of(policy, steps, times, grid, inner, counted=2)

    right = made([1.0, 1.0, 0.6, 0.6])
    assert (right.calls, right.expected, right.whole, right.followed) == (2, 2, True, True)
    more = made([1.0, 1.0, 0.8, 0.8, 0.6, 0.6])
    assert (more.calls, more.whole, more.followed) == (3, False, False)
    assert made([1.0, 1.0, 0.6]).whole is False
    assert made([1.0, 1.0, 0.3, 0.3]).followed is False
    own = Policy(mask="1010", sigmas=[1.0, 0.9, 0.7, 0.4, 0.0])
    assert made([1.0, 1.0, 0.7, 0.7], own, [1000, 900, 700, 400]).followed is True
    assert made([1.0, 1.0, 0.6, 0.6], own, [1000, 900, 700, 400]).followed is False
    assert made([float("nan")] * 4).steps is None


def test_what_is_heard_is_what_the_network_gets():
    kind = entry("flux")
    pipe = kind.build()
    with heard(pipe) as times:
        pipe(num_inference_steps=6, output_type="latent", **kind.kwargs())
    assert steps_in(times) == [[pytest.approx(float(t) / 1000)] for t in pipe.scheduler.timesteps]
    assert not pipe.transformer._forward_pre_hooks


CLAIM = {"psnr": 40.0, "psnr_error": 0.5, "samples": 16}  # a spread of 2 dB: two samples may be 3 dB below


@pytest.mark.parametrize(
    ("claim", "ratios", "kept", "words"),
    [
        (None, (40.0, 30.0), None, "claims nothing"),
        (CLAIM, (50.0, 60.0), True, "That is above 37.0 dB"),
        (CLAIM, (37.2, 37.2), True, "the least that its uncertainty allows on 2 samples"),
        (CLAIM, (36.8, 36.8), False, "That is below 37.0 dB"),
        (CLAIM | {"used_to_fit": True}, (36.8, 36.8), None, "several dB less"),
        ({"psnr": 40.0}, (36.8, 36.8), None, "without a standard error"),
    ],
)
def test_quality_is_judged_by_its_uncertainty(claim, ratios, kept, words):
    policy = Policy(mask="1010", quality=None if claim is None else Quality(**claim))
    found = quality(policy, ratios, {"height": 64})
    assert found.kept is kept and words in found.text


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        ({"height": 32}, "made at height 32, this is 64"),
        ({"ranges": {"height": (16, 32)}}, "made at height 16 to 32, this is 64"),
        ({"teacher_steps": 9}, "run of 9 steps"),
    ],
)
def test_a_figure_of_other_settings_is_no_promise_here(origin, words):
    policy = Policy(mask="1010", quality=Quality(**CLAIM), origin=Origin(**origin))
    found = quality(policy, (30.0, 30.0), {"height": 64})
    assert found.kept is None and words in found.text


def test_a_figure_of_another_model_is_no_promise_here():
    policy = Policy(mask="1010", quality=Quality(**CLAIM), origin=Origin(height=64, ranges={"guidance": (1.0, 7.0)}))
    assert quality(policy, (30.0, 30.0), {"height": 64, "guidance": 3.5}).kept is False
    assert quality(policy, (30.0, 30.0), {"height": 64}, "it was made with adapters: turbo").kept is None


def test_a_policy_is_tried_at_the_settings_it_was_made_at():
    """And where others are asked for, a lower figure is told with them, not held against it."""
    kind = entry("flux")
    pipe = kind.build()
    origin = Origin(height=16, width=32, ranges={"guidance": (1.0, 2.0)})
    policy = Policy(mask="100100", origin=origin, quality=Quality(psnr=99.0, psnr_error=0.01, samples=4))
    pipe.set_progress_bar_config(disable=True)
    told = []
    found = budcache.check(
        pipe, policy, prompts=["a cat"], call={"max_sequence_length": 16}, timed=False, tell=told.append
    )
    assert marks(found)["quality"] is False and "but it was made" not in str(found)
    assert pipe._guidance_scale == 2.0 and told == ["sample 1 of 1, in full and under the policy"]
    other = {"height": 32, "width": 32, "max_sequence_length": 16}
    found = budcache.check(pipe, policy, prompts=["a cat"], call=other, timed=False)
    assert marks(found)["quality"] is None and "but it was made at height 16, this is 32" in str(found)


def test_a_policy_of_another_model_is_said_before_anything_is_drawn():
    kind = entry("flux")
    pipe = kind.build()
    pipe.transformer.register_forward_pre_hook(lambda *_: pytest.fail("drawn"))
    with warnings.catch_warnings(), pytest.raises(BudcacheWarning, match="WanTransformer3DModel"):
        warnings.simplefilter("error", BudcacheWarning)
        tried(kind, pipe, Policy(mask="100100", origin=Origin(denoiser="WanTransformer3DModel")))


def test_who_computes_every_step_promises_no_speed():
    slower = Speed(0.94, 0.93, 0.95, noisy=False, pairs=9)
    assert speed_of(POLICIES["full"], slower, 0.1).kept is None
    assert speed_of(POLICIES["plain"], slower, 0.1).kept is False


def test_wrong_questions_get_a_sentence():
    kind = entry("flux")
    pipe = kind.build()
    with pytest.raises(SearchError, match="Did you mean prompts"):
        budcache.check(pipe, POLICIES["plain"], prompt=["a"])
    with pytest.raises((SearchError, PipelineError), match="hieght"):
        budcache.check(pipe, POLICIES["plain"], call={"hieght": 3})


def test_a_policy_of_true_guidance_is_tried_with_it():
    """Which takes a negative prompt: without one the scale would not be at work."""
    kind = entry("flux-true-cfg")
    pipe, policy = kind.build(), Policy(mask="100100", origin=Origin(true_guidance=4.0, height=32, width=32))
    assert settings_like(pipe, policy, [{"prompt": "a cat"}]) == {
        "height": 32,
        "width": 32,
        "true_cfg_scale": 4.0,
        "negative_prompt": "",
    }
    own = [{"prompt": "a cat", "negative_prompt": "rain", "height": 64}]
    assert settings_like(pipe, policy, own) == {"true_cfg_scale": 4.0}
    assert settings_like(pipe, policy, [{"true_cfg_scale": 2.0}]) == {"height": 32, "width": 32}
