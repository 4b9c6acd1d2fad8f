"""Every kind of pipeline: what is promised of one is promised of all."""

from __future__ import annotations

import functools

import pytest
import torch
from helpers import STEPS, counted, latents, opened, rolled, told
from zoo import ENTRIES, Entry, entry

import budcache
from budcache import Mask, PipelineError, Policy
from budcache.plan import Plan

MASKS = ("110100", "100000", "101011")
# What a pipeline cannot have, by name: the sentence that says why. The last tests check that it is said.
NO_POLICY = {"cogvideox-dpm": "CogVideoXDPMScheduler.step does not take"}  # it takes the last step's sample, too
NO_SEARCH = {"ltx2": "copies its scheduler"}  # one for the sound, whose latents are another sample than the video's
SERVED = [kind for kind in ENTRIES if kind.name not in NO_POLICY]
DRIVEN = [kind for kind in SERVED if kind.name not in NO_SEARCH]
RESIDUAL = [kind for kind in SERVED if kind.residual and "controlnet" not in kind.name]


def names(kind: Entry) -> str:
    return kind.name


@functools.cache
def built(kind: Entry) -> tuple[object, torch.Tensor]:
    """A pipeline and the latents of a bare run; every test leaves it as it was, so all share it."""
    pipe = kind.build()
    return pipe, latents(kind, pipe)


def test_the_zoo_has_forty_kinds_and_no_name_twice():
    assert len({kind.name for kind in ENTRIES}) == len(ENTRIES) >= 40
    assert {*NO_POLICY, *NO_SEARCH} <= {kind.name for kind in ENTRIES}


@pytest.mark.parametrize("kind", SERVED, ids=names)
def test_a_policy_of_all_ones_is_the_bare_pipeline_bit_for_bit(kind):
    pipe, bare = built(kind)
    with budcache.applied(pipe, Policy(mask=Mask.full(STEPS))):
        assert torch.equal(latents(kind, pipe), bare)


@pytest.mark.parametrize("kind", SERVED, ids=names)
def test_a_policy_makes_exactly_its_calls_and_leaves_no_trace(kind):
    pipe, bare = built(kind)
    scheduler, settings = pipe.scheduler, dict(pipe.config)
    for text in MASKS:
        policy = Policy(mask=text)
        with budcache.applied(pipe, policy) as handle, counted(kind, pipe) as calls:
            image = latents(kind, pipe)
        begin = opened_at(kind, pipe)
        expected = sum(bit or k == begin for k, bit in enumerate(policy.mask) if k >= begin)
        assert len(calls) == expected * kind.branches
        assert handle.stats().last_run_calls == expected
        assert handle.stats().calls + handle.stats().reused == STEPS - begin
        assert not torch.equal(image, bare)
    assert pipe.scheduler is scheduler and dict(pipe.config) == settings
    assert torch.equal(latents(kind, pipe), bare)


def opened_at(kind: Entry, pipe: object) -> int:
    if not kind.strength:
        return 0
    with opened(kind, pipe) as model:
        return model.begin


@pytest.mark.parametrize("kind", DRIVEN, ids=names)
def test_equation_2_through_the_seam_is_what_is_served(kind):
    pipe, bare = built(kind)
    assert torch.equal(rolled(kind, pipe, Policy(mask=Mask.full(STEPS))), bare)
    for text in MASKS[:2]:
        policy = Policy(mask=text)
        with budcache.applied(pipe, policy):
            served = latents(kind, pipe)
        assert torch.equal(rolled(kind, pipe, policy), served)
    assert torch.equal(latents(kind, pipe), bare)


@pytest.mark.parametrize("kind", DRIVEN, ids=names)
def test_a_driven_pipeline_is_a_function_of_x_and_sigma_however_often_it_is_asked(kind):
    pipe, _ = built(kind)
    with opened(kind, pipe) as model:
        noise, x, k = model.noise.clone(), model.noise * 0.9, model.begin + 1
        first, _ = model.compute(x, model.sigmas[k])
        for j in range(2 * STEPS):  # far more calls than there are steps, in no order
            model.compute(model.noise * 0.8, model.sigmas[model.begin + j % (STEPS - model.begin)])
        again, _ = model.compute(x, model.sigmas[k])
        assert torch.equal(again, first)
        nearby, _ = model.compute(x, model.sigmas[k] * 0.999)  # off the grid
        assert not torch.equal(nearby, first)
        assert torch.allclose(nearby, first, atol=float(first.abs().mean()))
        assert torch.equal(model.noise, noise)


@pytest.mark.parametrize("kind", DRIVEN, ids=names)
def test_blended_outputs_are_served_as_they_are_rolled(kind):
    pipe, _ = built(kind)
    policy = Policy(mask="110100", weights=[[1.0], [1.3, -0.3], [1.1, 0.1, -0.2]])
    with budcache.applied(pipe, policy) as handle, told() as warned:
        served = latents(kind, pipe)
    assert torch.equal(rolled(kind, pipe, policy), served)
    plan = Plan.of(policy, (), opened_at(kind, pipe))
    assert handle.stats().last_run_calls == plan.calls
    assert len(warned) == (plan.plain > 0) <= kind.strength
    with budcache.applied(pipe, Policy(mask="110100")):
        blended = any(stretch.blend is not None for stretch in plan)
        assert torch.equal(latents(kind, pipe), served) != blended


@pytest.mark.parametrize("kind", RESIDUAL, ids=names)
def test_residual_reuse_keeps_the_same_promises(kind):
    pipe, bare = built(kind)
    lists = block_lists(kind, pipe)
    with budcache.applied(pipe, Policy(mask=Mask.full(STEPS), reuse="residual")):
        assert torch.equal(latents(kind, pipe), bare)
    # Wan 2.2 hands over to its second expert at step 2, which therefore has to be computed.
    policy = Policy(mask="101010", reuse="residual")
    with budcache.applied(pipe, policy) as handle, counted(kind, pipe) as calls:
        served = latents(kind, pipe)
        assert torch.equal(latents(kind, pipe), served)
    begin = opened_at(kind, pipe)
    assert handle.stats().last_run_calls == sum(policy.mask.bits[begin:])
    assert len(calls) == 2 * (STEPS - begin) * kind.branches  # embedder and head run at every step
    assert torch.equal(rolled(kind, pipe, policy), served)
    assert not torch.equal(served, bare)
    with budcache.applied(pipe, Policy(mask="101010")):
        assert not torch.equal(latents(kind, pipe), served)  # output reuse is another algorithm
    assert block_lists(kind, pipe) == lists
    assert torch.equal(latents(kind, pipe), bare)


@pytest.mark.parametrize("kind", RESIDUAL, ids=names)
def test_reusing_a_residual_where_it_was_computed_gives_what_was_computed(kind):
    with opened(kind, built(kind)[0], reuse="residual") as model:
        x, sigma = model.noise * 0.9, model.sigmas[model.begin + 1]
        v, memo = model.compute(x, sigma)
        torch.testing.assert_close(model.reuse(x, sigma, memo), v)


def block_lists(kind: Entry, pipe: object) -> list[type]:
    return [type(module) for name in kind.denoisers for module in getattr(pipe, name).modules()]


@pytest.mark.parametrize("kind", [kind for kind in SERVED if kind not in RESIDUAL], ids=names)
def test_where_residual_reuse_cannot_be_had_a_sentence_says_so(kind):
    pipe, _ = built(kind)
    with pytest.raises(PipelineError, match='reuse="output"'):
        budcache.apply(pipe, Policy(mask="101010", reuse="residual"))
    with pytest.raises(PipelineError, match='reuse="output"'):
        opened(kind, pipe, reuse="residual")
    assert isinstance(latents(kind, pipe), torch.Tensor)


@pytest.mark.parametrize("name", NO_POLICY)
def test_where_no_policy_can_be_applied_a_sentence_says_so(name):
    with pytest.raises(PipelineError, match=NO_POLICY[name]):
        budcache.apply(entry(name).build(), Policy(mask="101010"))


@pytest.mark.parametrize("name", NO_SEARCH)
def test_where_a_pipeline_cannot_be_searched_a_sentence_says_so(name):
    pipe, bare = built(entry(name))
    with pytest.raises(PipelineError, match=NO_SEARCH[name]):
        opened(entry(name), pipe)
    assert torch.equal(latents(entry(name), pipe), bare)
