"""The noise levels that a policy without sigmas of its own is exported with."""

from __future__ import annotations

import json

import pytest
import torch

import budcache
from budcache import Origin, PipelineError, PipelineModel, Policy, PolicyError
from budcache.exports.levels import levels_for
from budcache.plan import own_levels
from exports.policies import LEVELS, MASK, ORIGIN, PROMPT, SIGMAS, SIZE, STEPS, stock


def own(height: int, width: int) -> tuple[float, ...]:
    """What the pipeline makes of a size."""
    call = {**PROMPT, "height": height, "width": width, "generator": torch.Generator().manual_seed(0)}
    with PipelineModel(stock(), steps=STEPS, **call) as run:
        return tuple(run.sigmas.tolist())


def made_at(height: int, width: int, **settings: object) -> Policy:
    levels = own(height, width)
    told = {"height": height, "width": width, "levels": levels}
    origin = ORIGIN.model_copy(update={**told, "scheduler_settings": {**ORIGIN.scheduler_settings, **settings}})
    return Policy(mask=MASK, origin=origin)


@pytest.mark.parametrize("there", [(64, 64), (128, 64), (96, 160), (256, 256)])
def test_levels_move_with_the_size_as_the_pipeline_moves_them(there):
    here = made_at(96, 64)
    assert levels_for(here, None).own == here.origin.levels == levels_for(here, (96, 64)).own
    assert levels_for(here, there).own == levels_for(here, there).full == pytest.approx(own(*there), abs=2e-6)


def test_a_model_is_asked_where_a_policy_does_not_know():
    policy = Policy(mask=MASK)
    with pytest.raises(PolicyError, match="--pipeline"):
        levels_for(policy, None)
    assert levels_for(policy, (128, 64), stock()).own == own(128, 64)
    at = Policy(mask=MASK, origin=Origin(height=128, width=64))
    assert levels_for(at, None, stock()).own == own(128, 64)


@pytest.mark.parametrize("ask", [False, True])
def test_own_levels_move_as_they_do_in_serving(ask):
    policy = made_at(SIZE, SIZE).model_copy(update={"sigmas": SIGMAS})
    pipe = stock() if ask else None
    assert levels_for(policy, None, pipe).own == levels_for(policy, (SIZE, SIZE), pipe).own == SIGMAS
    call = {**PROMPT, "height": 128, "width": 128, "num_inference_steps": STEPS, "output_type": "latent"}
    with budcache.applied(stock(), policy):
        stock()(**call)
        served = stock().scheduler.inner.sigmas.tolist()
    assert levels_for(policy, (128, 128), pipe).own == pytest.approx(served, abs=2e-6)
    assert max(abs(a - b) for a, b in zip(served, SIGMAS, strict=True)) > 1e-3


def test_own_levels_of_an_unknown_size_are_not_moved():
    policy = Policy(mask=MASK, sigmas=SIGMAS)
    assert levels_for(policy, None) == (SIGMAS, ())
    with pytest.raises(PolicyError, match="Leave the size out"):
        levels_for(policy, (128, 128))


def test_levels_that_are_not_shifted_by_size_stay():
    origin = ORIGIN.model_copy(update={"scheduler_settings": {"shift": 3.0}, "levels": SIGMAS})
    assert levels_for(Policy(mask=MASK, origin=origin), (999, 17)).own == SIGMAS


@pytest.mark.parametrize(
    ("update", "words"),
    [
        ({"levels": LEVELS}, "not shifted in a way"),  # of no shift at all
        ({"height": None}, "at which size"),
        ({"height": 80}, "do not follow from its size"),
    ],
)
def test_what_cannot_be_moved_is_refused(update, words):
    policy = made_at(64, 64)
    policy = policy.model_copy(update={"origin": policy.origin.model_copy(update=update)})
    with pytest.raises(PolicyError, match=f"{words}.*--pipeline"):
        levels_for(policy, (256, 256))


def test_terminal_shifts_are_followed():
    """As Qwen-Image's scheduler has it: the last level is fixed, all others are stretched along."""
    from diffusers import FlowMatchEulerDiscreteScheduler

    settings = {"use_dynamic_shifting": True, "shift_terminal": 0.02, "max_shift": 0.9, "max_image_seq_len": 8192}
    scheduler = FlowMatchEulerDiscreteScheduler(**settings)

    def at(tokens: int) -> tuple[float, ...]:
        shift = 0.5 + (0.9 - 0.5) / (8192 - 256) * (tokens - 256)
        scheduler.set_timesteps(STEPS, sigmas=[1 - k / STEPS for k in range(STEPS)], mu=shift)
        return tuple(scheduler.sigmas.tolist())

    told = {"height": 512, "width": 512, "levels": at(32 * 32), "scheduler_settings": settings}
    policy = Policy(mask=MASK, origin=ORIGIN.model_copy(update=told))
    assert levels_for(policy, (1024, 768)).own == pytest.approx(at(64 * 48), abs=2e-6)


def test_searches_keep_the_levels_of_their_runs(tmp_path):
    pipe = budcache.load("tiny-flux")
    options = {"steps": 4, "budgets": 2, "prompts": ["red apple", "cat face"], "progress": False}
    ladder = budcache.search(pipe, **options, refine="none")
    with PipelineModel(pipe, steps=4, prompt="red apple") as run:
        expected = tuple(run.sigmas.tolist())
    assert ladder[2].origin.levels == pytest.approx(expected, abs=1e-7)
    path = ladder.save(tmp_path / "l.json")
    assert budcache.Ladder.load(path)[2].origin.levels == ladder[2].origin.levels
    fitted = budcache.fit(pipe, ladder, prompts=["red apple", "cat face"], selection=1, progress=False)
    assert fitted[2].origin.levels == ladder[2].origin.levels
    made = budcache.export(path, "sigmas", tmp_path / "s.json", budget=2)
    computed = [k for k, bit in enumerate(ladder[2].mask) if bit]
    assert json.loads(made.path.read_text()) == pytest.approx([expected[k] for k in (*computed, 4)], abs=1e-7)


def test_searches_know_the_size_of_their_runs(tmp_path):
    """So that another size needs no model."""
    pipe = budcache.load("tiny-flux")
    pipe.register_modules(scheduler=type(pipe.scheduler).from_config(pipe.scheduler.config, use_dynamic_shifting=True))
    options = {"steps": 4, "budgets": 2, "prompts": ["red apple", "cat face"], "progress": False, "refine": "none"}
    usual = budcache.search(pipe, **options)[2]
    assert (usual.origin.height, usual.origin.width) == (64, 64)
    other = budcache.search(pipe, **options, call={"height": 96, "width": 128})[2]
    assert (other.origin.height, other.origin.width) == (96, 128)
    assert levels_for(usual, (96, 128)).own == pytest.approx(other.origin.levels, abs=2e-6)
    assert usual.origin.levels != other.origin.levels


def test_levels_of_an_origin_fit_the_steps():
    with pytest.raises(PolicyError, match=r"origin\.levels has 2"):
        Policy(mask="10", origin=Origin(levels=(1.0, 0.0)))


@pytest.mark.parametrize(
    ("levels", "words"),
    [
        ((1.0, 1.0, 0.0), r"origin\.levels\[0\] = 1\.0 is followed by 1\.0"),
        ((0.5, 1.0, 0.0), "must fall"),
        ((1.0, 0.5, 0.7), "must fall"),
        ((1.0, 0.5, -0.1), "below zero"),
    ],
)
def test_levels_of_an_origin_fall(levels, words):
    with pytest.raises(PolicyError, match=words):
        Policy(mask="10", origin=Origin(levels=levels))


def test_levels_of_an_origin_may_end_with_twice_the_same():
    """As those of DDIM, which steps by whole timesteps; nothing is divided by their difference."""
    policy = Policy(mask="10", sigmas=(1.0, 0.3, 0.0), origin=Origin(levels=(1.0, 0.0, 0.0)))
    assert own_levels(policy, (1.0, 0.5, 0.0)) == pytest.approx((1.0, 0.65, 0.0))


def test_levels_of_an_origin_may_rise_where_nothing_is_moved_by_them():
    """As those of Mochi's scheduler, which counts noise the other way round."""
    origin = Origin(levels=(0.0, 0.4, 1.0))
    assert Policy(mask="10", origin=origin).origin == origin
    with pytest.raises(PolicyError, match="must fall"):
        Policy(mask="10", sigmas=(1.0, 0.3, 0.0), origin=origin)


def test_a_pipeline_that_is_asked_has_to_be_a_flow_model(tmp_path):
    """Whoever says nothing of the scheduler gets no options for another kind of model."""
    from diffusers import EulerDiscreteScheduler

    pipe = budcache.load("tiny-flux")
    pipe.scheduler = EulerDiscreteScheduler()
    pipe.save_pretrained(tmp_path / "unet")
    for to in ("sdcpp", "comfyui", "sigmas"):
        for policy in (Policy(mask=MASK), Policy(mask=MASK, sigmas=SIGMAS)):
            with pytest.raises(PolicyError, match=r"EulerDiscreteScheduler.*flow models"):
                budcache.export(policy, to, tmp_path / "out", pipeline=tmp_path / "unet")
    assert not (tmp_path / "out").exists()


def test_a_pipeline_that_is_asked_has_the_scheduler_of_the_policy(tmp_path):
    origin = Origin(scheduler="UniPCMultistepScheduler", scheduler_settings={"use_flow_sigmas": True})
    policy = Policy(mask=MASK, sigmas=SIGMAS, origin=origin)
    with pytest.raises(PipelineError, match="made for UniPCMultistepScheduler"):
        budcache.export(policy, "sigmas", tmp_path / "out", pipeline="tiny-flux", approximate=True)
