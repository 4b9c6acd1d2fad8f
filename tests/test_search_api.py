"""`budcache.search` on a real pipeline: what it returns, what it refuses, and what it leaves behind."""

from __future__ import annotations

import inspect
import json
from contextlib import ExitStack
from functools import cache

import pytest
import torch
from helpers import counted
from zoo import entry

import budcache
from budcache import Ladder, Mask, PipelineError, PipelineModel, Policy, SearchError
from budcache.calibration.calibration import Calibration
from budcache.jobs import search_in_full
from budcache.pipeline import merge
from budcache.strategies import Ask, LadderSearch, Limits, RandomMasks, Space, read_history

STEPS, BUDGETS = 8, (2, 3, 4)
TEXTS = ["a cat", "two dogs", "red", "the sea at night"]
FLUX = entry("flux")
SHARED = {name: value for name, value in FLUX.kwargs().items() if name != "prompt"}


@pytest.fixture(scope="module")
def pipe():
    return FLUX.build()


def search(pipe, **more):
    """A search with plain reuse, if not told otherwise; what fitted reuse adds is in refine/test_fit_api.py."""
    call = {"steps": STEPS, "budgets": BUDGETS, "fit": False, **SHARED, **more}
    return search_in_full(pipe, **({"prompts": TEXTS} if not {"prompts", "samples"} & set(more) else {}), **call)


@cache
def plain_search():
    """The search that others are compared with; cached, for it is the same every time (which a test checks)."""
    return search(FLUX.build())


def calibration(pipe, stack, texts, seed, reuse="output", batch=1):
    """The same by hand: sample i has seed + i."""
    samples = [
        {**SHARED, "prompt": text, "generator": torch.Generator().manual_seed(seed + i)} for i, text in enumerate(texts)
    ]
    runs = [
        PipelineModel(pipe, steps=STEPS, reuse=reuse, **(merge(samples[i : i + batch]) if batch > 1 else samples[i]))
        for i in range(0, len(samples), batch)
    ]
    return Calibration([stack.enter_context(run) for run in runs])


def masks(ladder):
    return [str(rung.mask) for rung in ladder]


def known(ladder):
    """A ladder without what it cost."""
    return [(rung.mask, rung.reuse, rung.quality) for rung in ladder]


def refused(says, error=SearchError, **more):
    """Run a search that must fail, and return its sentence."""
    with pytest.raises(error, match=says) as caught:
        search(**{"pipe": FLUX.build(), **more})
    assert "\n" not in str(caught.value)
    return str(caught.value)


# What comes out


def test_a_ladder_with_a_rung_for_each_budget(pipe):
    ladder = budcache.search(pipe, steps=STEPS, budgets=BUDGETS, prompts=TEXTS, fit=False, **SHARED)
    assert isinstance(ladder, Ladder)
    assert ladder.budgets == BUDGETS
    assert all(rung.mask in Space(STEPS, budget) for budget, rung in zip(BUDGETS, ladder, strict=True))
    assert all(rung.reuse == "output" and rung.sigmas is None and rung.weights is None for rung in ladder)
    # The same seed again, on a pipeline built anew: equal in every field.
    assert ladder == plain_search().ladder


def test_losses_can_be_found_again(pipe):
    """Three prompts were searched on and one, the last, was kept for judging."""
    ladder = plain_search().ladder
    with ExitStack() as stack:
        searched_on = calibration(pipe, stack, TEXTS[:3], seed=0)
        judged_on = calibration(pipe, stack, TEXTS[3:], seed=3)
        for rung in ladder:
            assert rung.quality.calibration_loss == searched_on.score(rung.mask).loss
            assert rung.quality.loss == judged_on.score(rung.mask).loss
            assert rung.quality.samples == 1
            assert rung.quality.psnr == rung.quality.psnr_worst == rung.quality.psnr_p5
    losses = [rung.quality.calibration_loss for rung in ladder]
    assert losses == sorted(losses, reverse=True)


def test_held_out_psnr_is_that_of_the_pictures(pipe):
    import numpy as np

    rung = plain_search().ladder[3]
    call = {**SHARED, "prompt": TEXTS[3], "num_inference_steps": STEPS, "output_type": "np"}

    def draw():
        return pipe(generator=torch.Generator().manual_seed(3), **call).images[0]

    full = draw()
    with budcache.applied(pipe, rung):
        fast = draw()
    mse = np.mean((full.astype(np.float64) - fast.astype(np.float64)) ** 2)
    assert rung.quality.psnr == pytest.approx(-10 * np.log10(mse), abs=1e-3)


def test_the_origin_says_how_it_was_made(pipe):
    result = plain_search()
    for rung in result.ladder:
        origin = rung.origin
        assert (origin.strategy, origin.seed, origin.prompts) == ("ladder", 0, 4)
        assert (origin.height, origin.width, origin.guidance) == (32, 32, 3.5)
        assert (origin.pipeline, origin.scheduler) == ("FluxPipeline", "FlowMatchEulerDiscreteScheduler")
        assert origin.calls == result.calls
    other = search(pipe, prompts=TEXTS[:2], strategy=LadderSearch(beam=2))
    assert other.ladder[2].origin.prompts_hash != result.ladder[2].origin.prompts_hash
    assert other.ladder[2].origin.strategy == repr(LadderSearch(beam=2))


def test_all_calls_are_counted():
    pipe = FLUX.build()
    with counted(FLUX, pipe) as heard:
        result = search(pipe)
    assert result.calls == len(heard)
    with counted(FLUX, pipe) as heard:
        result = search(pipe, batch=2, prompts=TEXTS[:3], selection=0)
    # A batch is one call for all its samples.
    first, second = 2, 1
    with counted(FLUX, pipe) as alone:
        single = search(pipe, prompts=TEXTS[2:3], selection=0)
    assert single.calls == len(alone)
    assert result.calls == (first + second) * len(alone)
    assert len(heard) == 2 * len(alone)


def test_a_single_budget_is_a_ladder_of_one_rung(pipe):
    found = search(pipe, budgets=(), budget=3, prompts=TEXTS[0])
    assert found.ladder.budgets == (3,)
    assert search(pipe, budget=2, budgets=[3, 3], prompts=TEXTS[:1]).ladder.budgets == (2, 3)


def test_every_budget_there_is(pipe):
    ladder = search(pipe, budgets=range(1, STEPS + 1), prompts=TEXTS[:2], selection=1).ladder
    assert ladder.budgets == tuple(range(1, STEPS + 1))
    assert ladder[STEPS].quality.calibration_loss == ladder[STEPS].quality.loss == 0
    assert ladder[STEPS].quality.psnr == 100  # perfect, and still a number in JSON


def test_seeds_make_the_noise(pipe):
    one, other = (search(pipe, seed=seed, prompts=TEXTS[:1]).ladder for seed in (0, 1))
    assert one[2].quality.calibration_loss != other[2].quality.calibration_loss
    with ExitStack() as stack:
        by_hand = calibration(pipe, stack, TEXTS[:1], seed=1)
        assert other[2].quality.calibration_loss == by_hand.score(other[2].mask).loss


def test_samples_are_prompts_with_more(pipe):
    by_samples = search(pipe, samples=[{"prompt": text} for text in TEXTS])
    assert known(by_samples.ladder) == known(plain_search().ladder)
    assert by_samples.ladder == plain_search().ladder


def test_samples_may_bring_their_own(pipe):
    def sample(text, seed, **more):
        return {"prompt": text, "generator": torch.Generator().manual_seed(seed), **more}

    own = search(pipe, samples=[sample("a cat", 40), sample("red", 41)], selection=0)
    seeded = search(pipe, prompts=["a cat", "red"], selection=0, seed=40)
    assert known(own.ladder) == known(seeded.ladder)
    larger = search(pipe, samples=[sample("a cat", 40, height=48), sample("red", 41)], selection=0)
    assert larger.ladder[2].quality != own.ladder[2].quality


def test_embeddings_instead_of_a_prompt(pipe):
    with torch.no_grad():
        embeds, pooled, _ = pipe.encode_prompt(prompt="a cat", prompt_2=None, max_sequence_length=16)
    by_embeds = search(pipe, samples=[{"prompt_embeds": embeds, "pooled_prompt_embeds": pooled}])
    assert known(by_embeds.ladder) == known(search(pipe, prompts=["a cat"]).ladder)


def test_batches_find_the_same_masks(pipe):
    ladder, batched = plain_search().ladder, search(pipe, batch=2).ladder
    assert masks(batched) == masks(ladder)
    for one, other in zip(ladder, batched, strict=True):
        assert other.quality.calibration_loss == pytest.approx(one.quality.calibration_loss, rel=1e-3)
        assert other.quality.psnr == pytest.approx(one.quality.psnr, abs=0.01)


def test_state_memory_does_not_matter(pipe):
    thrifty = search(pipe, state_memory=0)
    assert known(thrifty.ladder) == known(plain_search().ladder)
    assert thrifty.calls > plain_search().calls


def test_residual_reuse(pipe):
    ladder = search(pipe, reuse="residual", prompts=TEXTS[:2], selection=0).ladder
    assert {rung.reuse for rung in ladder} == {"residual"}
    with ExitStack() as stack:
        by_hand = calibration(pipe, stack, TEXTS[:2], seed=0, reuse="residual")
        for rung in ladder:
            assert rung.quality.calibration_loss == by_hand.score(rung.mask).loss
    output = search(pipe, prompts=TEXTS[:2], selection=0).ladder
    assert output[2].quality.calibration_loss != ladder[2].quality.calibration_loss


def test_another_objective(pipe):
    def largest(student, teacher, run):
        return float((student - teacher).abs().max())

    ladder = search(pipe, prompts=TEXTS[:1], objective=largest).ladder
    with ExitStack() as stack:
        by_hand = calibration(pipe, stack, TEXTS[:1], seed=0)
        for rung in ladder:
            difference = (by_hand.finals(rung.mask)[0] - by_hand.teacher(0)).abs().max().item()
            assert rung.quality.calibration_loss == difference


# Selection


def test_finalists_are_judged_by_held_out_loss(pipe):
    """Of the three best on the first prompt, the one that is best on the others is taken."""
    result = search(pipe, strategy="exhaustive", selection=3)
    with ExitStack() as stack:
        judge = calibration(pipe, stack, TEXTS[1:], seed=1)
        for budget in BUDGETS:
            finalists = [*result.found.best(budget, 3), Mask.uniform(STEPS, budget)]
            assert result.ladder[budget].mask == min(finalists, key=lambda mask: judge.score(mask).loss)
            assert result.ladder[budget].quality.loss == judge.score(result.ladder[budget].mask).loss
            assert result.ladder[budget].quality.samples == 3


def test_selection_can_change_the_choice(pipe):
    """An objective under which the judges prefer the opposite, so that the best in the search cannot win."""
    noises = []

    def moody(student, teacher, run):
        if not any(torch.equal(run.noise, noise) for noise in noises):
            noises.append(run.noise.clone())
        loss = float((student - teacher).square().mean())
        return loss if torch.equal(run.noise, noises[0]) else 1 - loss

    result = search(pipe, strategy="exhaustive", budgets=[3], prompts=TEXTS[:2], selection=1, objective=moody)
    chosen, finalists = result.ladder[3].mask, result.found.best(3, 3)
    assert chosen in [*finalists, Mask.uniform(STEPS, 3)]
    assert chosen != finalists[0]


def test_without_selection_the_lowest_loss_wins(pipe):
    result = search(pipe, strategy="random", selection=0, prompts=TEXTS[:2])
    for budget in BUDGETS:
        rung = result.ladder[budget]
        assert rung.mask == result.found.best(budget)[0]
        assert rung.quality.model_dump(exclude_none=True) == {
            "calibration_loss": min(s.loss for s in result.found.history if s.mask.budget == budget)
        }


@pytest.mark.parametrize("reuse", ["output", "residual"])
def test_masks_alone_are_polished_if_asked_for(pipe, reuse):
    """The climb comes after the ladder, whatever is reused; by default there is none."""
    result = search(pipe, reuse=reuse, polish=1, rounds=1, prompts=TEXTS[:2])
    assert [*dict.fromkeys(step.phase for step in result.found.history)] == ["ladder", "polish"]
    assert {step.phase for step in plain_search().found.history} == {"ladder"}


def test_without_samples_to_judge_by_a_fit_says_so(pipe):
    result = search(pipe, fit=True, prompts=TEXTS[:2], selection=0)
    for rung in result.ladder:
        (line,) = rung.refined
        assert (line.how, line.prompts, line.gain) == ("fit, not held out" if rung.weights else "fit, no gain", 2, None)
        plain = result.found.scores[result.found.best(rung.budget)[0]].loss
        assert rung.quality.calibration_loss <= plain
    assert any(rung.weights for rung in result.ladder)


def test_too_large_a_search_is_refused_before_anything_is_run(pipe):
    with counted(FLUX, pipe) as heard, pytest.raises(SearchError, match="masks"):
        search(pipe, steps=60, budgets=[20], strategy="exhaustive")
    assert not heard


def test_whoever_watches_is_told_when_finalists_are_judged(pipe):
    seen = []
    search(pipe, watch=seen.append)
    choosing = [step for step in seen if step.phase == "choosing"]
    assert [step.mask.budget for step in choosing] == list(BUDGETS)
    assert seen[-len(choosing) :] == choosing
    assert [step.calls for step in choosing] == sorted(step.calls for step in choosing)
    searched_on = [step for step in seen if step.phase == "full runs"]
    assert seen[: len(searched_on)] == searched_on
    # The pipelines are opened first, which takes a call of each.
    assert [step.calls for step in searched_on] == [STEPS * done + 3 - done for done in (1, 2, 3)]


def test_its_options_are_there_to_be_read():
    assert inspect.signature(budcache.search).parameters == inspect.signature(search_in_full).parameters
    assert "budgets: several of them" in budcache.search.__doc__


# Limits


def test_a_limit_on_evaluations_ends_with_what_there_is(pipe):
    result = search(pipe, limits=Limits(evaluations=9), prompts=TEXTS[:1])  # budgets 1 and 2 have 1 and 7 masks
    assert result.found.stopped == "evaluations limit of 9"
    assert len(result.found.scores) == 9
    assert result.ladder.budgets == (2, 3)


def test_a_limit_on_calls_ends_with_what_there_is(pipe):
    result = search(pipe, limits=Limits(calls=STEPS + 12), prompts=TEXTS[:1])
    assert result.found.stopped == "calls limit of 20"
    assert result.calls == STEPS + 12  # one call a mask, so it is met exactly
    assert result.ladder.budgets == (2, 3)


@pytest.mark.parametrize("evaluations", [9, 19, 20, 24, 39])
def test_a_limit_before_or_in_the_fitted_climb_ends_with_what_there_is(pipe, evaluations):
    """Plain stretches take 19 masks, fitted ones 19 more, and the best of the first two others."""
    told = []
    more = {"fit": True, "prompts": TEXTS[:2], "selection": 1, "watch": told.append}
    result = search(pipe, limits=Limits(evaluations=evaluations), **more)
    assert len(result.found.scores) + len(result.fitted.scores) == evaluations
    assert result.ladder.budgets == (BUDGETS if evaluations >= 19 else (2, 3))
    assert [step.mask.budget for step in told if step.phase == "choosing"] == list(result.ladder.budgets)


@pytest.mark.parametrize("limit", [Limits(seconds=0), Limits(calls=1), Limits(evaluations=1)], ids=str)
def test_a_limit_before_any_answer_is_said(limit):
    assert "Allow it more" in refused("stopped at its .* limit of [01] before any budget", limits=limit)


# Ledger


def test_a_ledger_is_written_and_gone_on_with(pipe, tmp_path):
    path = tmp_path / "a.ledger.jsonl"
    half = search(pipe, ledger=path, limits=Limits(evaluations=12))
    assert len(read_history(path)) == 12
    whole = search(pipe, ledger=path)
    assert known(whole.ladder) == known(plain_search().ladder)
    assert [s.mask for s in whole.found.history] == [s.mask for s in plain_search().found.history]
    spent = half.found.history[-1].calls
    assert whole.calls > spent
    with counted(FLUX, pipe) as heard:
        again = search(pipe, ledger=path)
    assert known(again.ladder) == known(whole.ladder)
    # All scores are known, so there are only the teachers, and the judge and the pictures as ever.
    assert len(heard) == 3 * STEPS + plain_search().calls - plain_search().found.history[-1].calls


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"prompts": ["something", "else"]}, "prompts_hash"),
        ({"seed": 1}, "seed"),
        ({"steps": 9}, "steps"),
        ({"reuse": "residual"}, "reuse"),
        ({"batch": 2}, "batch"),
        ({"selection": 1}, "samples searched on"),
        ({"strategy": "anneal"}, "strategy"),
        ({"height": 48}, "height"),
        ({"guidance_scale": 2.0}, "guidance"),
        ({"objective": lambda student, teacher, run: 0.0}, "objective"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_ledger_of_another_search_is_refused(pipe, tmp_path, change, names):
    path = tmp_path / "a.ledger.jsonl"
    usual = {"prompts": TEXTS[:2], "selection": 0, "ledger": path, "strategy": "uniform"}
    search(pipe, **usual)
    before = path.read_bytes()
    refused(f"belongs to a search with {names}", pipe=pipe, **{**usual, **change})
    assert path.read_bytes() == before


def test_a_ledger_of_another_model_is_refused(pipe, tmp_path):
    usual = {"prompts": TEXTS[:1], "ledger": tmp_path / "a.ledger.jsonl", "strategy": "uniform"}
    search(pipe, **usual)
    other = FLUX.build()
    with torch.no_grad():
        for parameter in other.transformer.parameters():
            parameter.mul_(1.5)
    refused("belongs to a search with weights", pipe=other, **usual)
    refused("belongs to a search with number format = 'float32'", pipe=FLUX.build().to(torch.bfloat16), **usual)
    faster = FLUX.build()
    faster.scheduler = type(faster.scheduler).from_config(faster.scheduler.config, shift=1.0)
    refused("belongs to a search with scheduler_settings", pipe=faster, **usual)


# Refusals


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"budgets": [0]}, "budget of 0 does not fit 8 steps.*from 1 to 8"),
        ({"budgets": [3, 9]}, "budget of 9 does not fit 8 steps"),
        ({"budgets": [-1]}, "budget of -1 does not fit"),
        ({"budgets": []}, "no budget to search for"),
        ({"steps": 0}, "run of 0 steps is not possible"),
        ({"steps": 10**9, "budgets": [3]}, "run of 1000000000 steps is not possible"),
        ({"prompts": []}, "no prompts to calibrate on"),
        ({"samples": []}, "no prompts to calibrate on"),
        ({"prompts": ["a"], "samples": [{"prompt": "b"}]}, "both given"),
        ({"strategy": "magic"}, "no strategy 'magic'.*ladder"),
        ({"selection": 4}, "4 of 4 samples for selection leave none.*of 3 at most"),
        ({"selection": -1}, "-1 of 4 samples"),
        ({"batch": 0}, "batch must be at least 1, got 0"),
        ({"strategy": "exhaustive", "steps": 28, "budgets": [10]}, "4686825 masks"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_what_cannot_be_is_refused(change, says):
    refused(says, **change)


def test_a_pipeline_that_carries_a_policy_is_refused():
    pipe = FLUX.build()
    with budcache.applied(pipe, Policy(mask=Mask.uniform(STEPS, 3))):
        refused("carries a policy", PipelineError, pipe=pipe)
    search(pipe, prompts=TEXTS[:1])


def test_runs_that_start_midway_are_refused():
    kind = entry("flux-img2img")
    pipe = kind.build()
    call = {name: value for name, value in kind.kwargs().items() if name != "prompt"}
    with pytest.raises(SearchError, match=r"start midway\. Use strength=1"):
        search_in_full(pipe, steps=STEPS, budgets=[3], prompts=TEXTS[:1], **call)
    result = search_in_full(pipe, steps=STEPS, budgets=[3], prompts=TEXTS[:1], **{**call, "strength": 1.0})
    assert result.ladder.budgets == (3,)


def test_a_model_that_is_not_finite_is_refused():
    pipe = FLUX.build()
    with torch.no_grad():
        pipe.transformer.proj_out.weight.fill_(torch.nan)
    refused("full run itself ends in numbers that are not finite", pipe=pipe)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError])
def test_out_of_memory_is_one_sentence_and_keeps_the_ledger(error, tmp_path):
    pipe, path, left = FLUX.build(), tmp_path / "a.ledger.jsonl", [3 * STEPS + 20]

    def hook(*_):
        left[0] -= 1
        if left[0] < 0:
            raise error("out of memory. Tried to allocate a lot.\nSee the manual.")

    handle = pipe.transformer.register_forward_pre_hook(hook)
    refused("ran out of memory. Use a smaller batch", pipe=pipe, ledger=path)
    handle.remove()
    assert 0 < len(read_history(path)) < 20
    kept = path.read_bytes()
    whole = search(pipe, ledger=path)
    assert path.read_bytes().startswith(kept)
    assert known(whole.ladder) == known(plain_search().ladder)


@pytest.mark.parametrize("after", [0, 1, STEPS, 3 * STEPS])
def test_out_of_memory_in_the_teacher_is_said_too(after):
    pipe, left = FLUX.build(), [after]

    def hook(*_):
        left[0] -= 1
        if left[0] < 0:
            raise torch.OutOfMemoryError("CUDA out of memory")

    pipe.transformer.register_forward_pre_hook(hook)
    refused("ran out of memory", pipe=pipe)


def test_a_failing_pipeline_says_so_itself():
    """Not ours to reword: the error of the pipeline arrives as it is, and the pipeline still works."""
    pipe = FLUX.build()
    with pytest.raises(ValueError, match="prompt_embeds"):
        search(pipe, prompts=TEXTS[:1], prompt_embeds=torch.zeros(1, 16, 32))
    assert search(pipe, prompts=TEXTS[:1]).ladder.budgets == BUDGETS


# What is left behind


@pytest.mark.parametrize("reuse", ["output", "residual"])
@pytest.mark.parametrize("ending", ["well", "badly"])
def test_the_pipeline_is_left_as_it_was(reuse, ending):
    import threading

    pipe = FLUX.build()
    call = {**FLUX.kwargs(), "num_inference_steps": STEPS, "output_type": "latent"}
    weights = {name: value.clone() for name, value in pipe.transformer.state_dict().items()}
    before = pipe(generator=torch.Generator().manual_seed(9), **call)[0]
    attributes, scheduler = dict(vars(pipe)), pipe.scheduler
    settings = json.dumps(dict(scheduler.config), default=str)
    if ending == "well":
        search(pipe, reuse=reuse, fit=None, prompts=TEXTS[:2], selection=1)
    else:
        with pytest.raises(SearchError):
            search(pipe, reuse=reuse, fit=None, prompts=TEXTS[:2], limits=Limits(evaluations=1))
    assert pipe.scheduler is scheduler
    assert vars(pipe).keys() == attributes.keys()
    assert all(vars(pipe)[name] is value for name, value in attributes.items())
    assert json.dumps(dict(scheduler.config), default=str) == settings
    assert torch.equal(pipe(generator=torch.Generator().manual_seed(9), **call)[0], before)
    assert all(torch.equal(value, weights[name]) for name, value in pipe.transformer.state_dict().items())
    assert not [thread for thread in threading.enumerate() if thread.name == "budcache-pipeline"]


@pytest.mark.parametrize("reuse", ["output", "residual"])
def test_policies_that_were_found_make_so_many_calls(reuse, tmp_path):
    pipe = FLUX.build()
    ladder = search(pipe, reuse=reuse, prompts=TEXTS[:1]).ladder
    path = ladder.save(tmp_path / "flux.ladder.json")
    assert Ladder.load(path) == ladder
    call = {**FLUX.kwargs(), "prompt": TEXTS[0], "num_inference_steps": STEPS, "output_type": "latent"}

    def draw():
        return pipe(generator=torch.Generator().manual_seed(0), **call)[0]

    full, heard = draw(), []
    hook = pipe.transformer.transformer_blocks[0].register_forward_hook(lambda *_: heard.append(1))
    for budget in BUDGETS:
        handle = budcache.apply(pipe, path, budget=budget)
        heard.clear()
        fast = draw()
        handle.remove()
        stats = handle.stats()
        assert len(heard) == stats.last_run_calls == budget
        # What is served is what was searched: the loss of the pipeline's own latents is the calibration loss.
        loss = (fast.double() - full.double()).square().mean().item()
        assert loss == pytest.approx(ladder[budget].quality.calibration_loss, rel=1e-5)
    hook.remove()


def test_a_strategy_of_ones_own(pipe):
    class Both:
        """Two masks, in one file and without a name."""

        def propose(self, steps, budgets, rng):
            for budget in budgets:
                yield Ask(Mask.of(steps, range(budget)), "first")
                yield Ask(Mask.uniform(steps, budget), "even")

        def expected(self, steps, budgets):
            return 2 * len(budgets)

        def __repr__(self):
            return "Both()"

    seen = []
    result = search(pipe, strategy=Both(), prompts=TEXTS[:1], watch=seen.append)
    assert [step.phase for step in seen] == ["full runs", *["first", "even"] * 3]
    assert seen[1:] == result.found.history
    assert result.ladder[3].origin.strategy == "Both()"


def test_the_seed_moves_the_search_too(pipe):
    shown = [{"prompt": "a cat", "generator": None, "latents": torch.ones(1, 64, 16)}]
    one, other = (
        search(pipe, samples=shown, seed=seed, strategy=RandomMasks(5), steps=16, budgets=[5]).found for seed in (0, 1)
    )
    assert set(one.scores) != set(other.scores)


def test_a_limit_on_calls_counts_what_earlier_runs_have_spent(pipe, tmp_path):
    limited = {"limits": Limits(calls=20), "prompts": TEXTS[:1], "ledger": tmp_path / "kept.jsonl"}
    first = search(pipe, **limited)
    assert first.found.stopped == "calls limit of 20"
    again = search(pipe, **limited)
    assert again.ladder.budgets == first.ladder.budgets and again.found.stopped == first.found.stopped
    assert [step.mask for step in again.found.history] == [step.mask for step in first.found.history]
