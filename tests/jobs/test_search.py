"""`budcache.search` on a real pipeline: what it returns, what it refuses, and what it leaves behind."""

from __future__ import annotations

import json
import math
import threading
from contextlib import ExitStack
from functools import cache

import numpy as np
import pytest
import torch
from helpers import counted
from zoo import entry

import budcache
from budcache import BudcacheError, Ladder, Mask, PipelineError, PipelineModel, Policy, SearchError
from budcache.calibration.calibration import Calibration
from budcache.calibration.scoring import PlainScorer
from budcache.events import Scored
from budcache.jobs.config import SearchConfig
from budcache.numerics.shelf import Shelf
from budcache.strategies import Ask, LadderSearch, Limits, Paths, RandomMasks, Space, read_history

STEPS, BUDGETS = 8, (2, 3, 4)
TEXTS = ["a cat", "two dogs", "red", "the sea at night"]
FLUX = entry("flux")
SHARED = {name: value for name, value in FLUX.kwargs().items() if name != "prompt"}


@pytest.fixture(scope="module")
def pipe():
    return FLUX.build()


def search(pipe, *, call=(), **more):
    """A search with plain reuse, if not told otherwise; what fitted reuse adds is in test_fit.py."""
    texts = {} if {"prompts", "samples"} & set(more) else {"prompts": TEXTS}
    usual = {"steps": STEPS, "budgets": BUDGETS, "strategy": "ladder", "refine": "none", **texts}
    return budcache.search(pipe, call={**SHARED, **dict(call)}, **{**usual, **more})


@cache
def plain_search():
    """The search that others are compared with; cached, for it is the same every time (which a test checks)."""
    return search(FLUX.build())


def calibration(pipe, stack, texts, seed, reuse="output"):
    """The same by hand: sample i has seed + i."""
    runs = [
        PipelineModel(
            pipe, steps=STEPS, reuse=reuse, prompt=text, generator=torch.Generator().manual_seed(seed + i), **SHARED
        )
        for i, text in enumerate(texts)
    ]
    return Calibration([stack.enter_context(run) for run in runs], residual=reuse == "residual")


def losses(known, mask):
    return PlainScorer(known).score(mask).losses


def mean_loss(known, mask):
    return PlainScorer(known).score(mask).loss


def geometric(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def scored(ladder):
    """The loss of every mask that was scored with plain reuse, in order."""
    return {step.mask: step.loss for step in ladder.searched.history if step.new and "fitted" not in step.phase}


def best(ladder, budget, count=1):
    """The masks of a budget with the lowest losses in the search; of equals the first."""
    found = scored(ladder)
    return sorted((mask for mask in found if mask.budget == budget), key=found.__getitem__)[:count]


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
    ladder = budcache.search(
        pipe, steps=STEPS, budgets=BUDGETS, prompts=TEXTS, strategy="ladder", refine="none", call=SHARED
    )
    assert isinstance(ladder, Ladder)
    assert ladder.budgets == BUDGETS
    assert all(rung.mask in Space(STEPS, budget) for budget, rung in zip(BUDGETS, ladder, strict=True))
    assert all(rung.reuse == "output" and rung.sigmas is None and rung.weights is None for rung in ladder)
    # The same seed again, on a pipeline built anew: equal in every field.
    assert ladder == plain_search()


def test_losses_can_be_found_again(pipe):
    """Three prompts were searched on and one, the last, was kept for judging."""
    ladder = plain_search()
    with ExitStack() as stack:
        searched_on = calibration(pipe, stack, TEXTS[:3], seed=0)
        judged_on = calibration(pipe, stack, TEXTS[3:], seed=3)
        for rung in ladder:
            assert rung.quality.calibration_loss == mean_loss(searched_on, rung.mask)
            assert rung.quality.loss == mean_loss(judged_on, rung.mask)
    found = [rung.quality.calibration_loss for rung in ladder]
    assert found == sorted(found, reverse=True)


def pictures(pipe, policy, count, first):
    """The pipeline's own pictures of the last prompts, in full and under a policy."""

    def draw(number):
        call = {**SHARED, "prompt": TEXTS[number], "num_inference_steps": STEPS, "output_type": "np"}
        image = pipe(generator=torch.Generator().manual_seed(number), **call).images[0]
        return image.astype(np.float64)

    numbers = range(first, first + count)
    full = [draw(number) for number in numbers]
    with budcache.applied(pipe, policy):
        return list(zip(full, [draw(number) for number in numbers], strict=True))


def test_quality_says_how_sure_it_is(pipe):
    """Mean and standard error over the samples that were kept out, and that the policy was chosen by them."""
    rung = search(pipe, selection=3)[3]
    ratios = [-10 * np.log10(np.mean((full - fast) ** 2)) for full, fast in pictures(pipe, rung, 3, 1)]
    quality = rung.quality
    assert quality.psnr == pytest.approx(np.mean(ratios), abs=1e-3)
    assert quality.psnr_error == pytest.approx(np.std(ratios, ddof=1) / math.sqrt(3), abs=1e-3)
    assert quality.psnr_p5 == pytest.approx(np.percentile(ratios, 5), abs=1e-3)
    assert quality.psnr_worst == pytest.approx(min(ratios), abs=1e-3)
    assert (quality.samples, quality.used_to_choose) == (3, True)
    (alone,) = {(q.samples, q.psnr_error, q.used_to_choose) for q in (rung.quality for rung in plain_search())}
    assert alone == (1, None, True), "a single sample tells nothing of how they scatter"


def test_the_origin_says_how_it_was_made(pipe):
    ladder = plain_search()
    for rung in ladder:
        origin = rung.origin
        assert (origin.strategy, origin.seed, origin.prompts) == ("ladder", 0, 4)
        assert (origin.height, origin.width, origin.guidance) == (32, 32, 3.5)
        assert (origin.pipeline, origin.scheduler) == ("FluxPipeline", "FlowMatchEulerDiscreteScheduler")
        assert origin.calls == ladder.searched.calls
    other = search(pipe, prompts=TEXTS[:2], strategy=LadderSearch(beam=2))
    assert other[2].origin.prompts_hash != ladder[2].origin.prompts_hash
    assert other[2].origin.strategy == repr(LadderSearch(beam=2))


def test_the_ladder_tells_how_it_came_about():
    searched = plain_search().searched
    assert (searched.earlier, searched.stopped) == (0, None)
    assert searched.seconds > 0
    assert all(isinstance(step, Scored) and step.phase == "ladder" for step in searched.history)
    assert [step.sample_calls for step in searched.history] == sorted(step.sample_calls for step in searched.history)
    assert searched.history[-1].sample_calls <= searched.calls
    assert {step.mask.budget for step in searched.history} == {1, 2, 3, 4}


def test_all_calls_are_counted():
    pipe = FLUX.build()
    with counted(FLUX, pipe) as heard:
        assert search(pipe).searched.calls == len(heard)
    with counted(FLUX, pipe) as heard:
        several = search(pipe, batch=2, prompts=TEXTS[:3], selection=0)
    # A batch is one call for all its samples.
    first, second = 2, 1
    with counted(FLUX, pipe) as alone:
        single = search(pipe, prompts=TEXTS[2:3], selection=0)
    assert single.searched.calls == len(alone)
    assert several.searched.calls == (first + second) * len(alone)
    assert len(heard) == 2 * len(alone)


def test_a_single_budget_is_a_ladder_of_one_rung(pipe):
    assert search(pipe, budgets=3, prompts=TEXTS[0], strategy="uniform").budgets == (3,)
    assert search(pipe, budgets=iter([3, 2, 3]), prompts=TEXTS[:1], strategy="uniform").budgets == (2, 3)


def test_every_budget_there_is(pipe):
    ladder = search(pipe, budgets=range(1, STEPS + 1), prompts=TEXTS[:2], selection=1)
    assert ladder.budgets == tuple(range(1, STEPS + 1))
    assert ladder[STEPS].quality.calibration_loss == ladder[STEPS].quality.loss == 0
    assert ladder[STEPS].quality.psnr == 100  # perfect, and still a number in JSON


def test_seeds_make_the_noise(pipe):
    one, other = (search(pipe, seed=seed, prompts=TEXTS[:1], strategy="uniform") for seed in (0, 1))
    assert one[2].quality.calibration_loss != other[2].quality.calibration_loss
    with ExitStack() as stack:
        by_hand = calibration(pipe, stack, TEXTS[:1], seed=1)
        assert other[2].quality.calibration_loss == mean_loss(by_hand, other[2].mask)


def test_samples_are_prompts_with_more(pipe):
    assert search(pipe, samples=[{"prompt": text} for text in TEXTS]) == plain_search()


def test_samples_may_bring_their_own(pipe):
    def sample(text, seed, **more):
        return {"prompt": text, "generator": torch.Generator().manual_seed(seed), **more}

    usual = {"selection": 0, "strategy": "uniform"}
    own = search(pipe, samples=[sample("a cat", 40), sample("red", 41)], **usual)
    assert known(own) == known(search(pipe, prompts=["a cat", "red"], seed=40, **usual))
    larger = search(pipe, samples=[sample("a cat", 40, height=48), sample("red", 41)], **usual)
    assert larger[2].quality != own[2].quality, "what a sample says itself goes before what all share"


def test_embeddings_instead_of_a_prompt(pipe):
    with torch.no_grad():
        embeds, pooled, _ = pipe.encode_prompt(prompt="a cat", prompt_2=None, max_sequence_length=16)
    by_embeds = search(pipe, samples=[{"prompt_embeds": embeds, "pooled_prompt_embeds": pooled}], strategy="uniform")
    assert known(by_embeds) == known(search(pipe, prompts=["a cat"], strategy="uniform"))


def test_batches_find_the_same_masks(pipe):
    ladder, batched = plain_search(), search(pipe, batch=2)
    assert masks(batched) == masks(ladder)
    for one, other in zip(ladder, batched, strict=True):
        assert other.quality.calibration_loss == pytest.approx(one.quality.calibration_loss, rel=1e-3)
        assert other.quality.psnr == pytest.approx(one.quality.psnr, abs=0.01)


def test_state_memory_does_not_matter(pipe):
    thrifty = search(pipe, state_memory=0)
    assert known(thrifty) == known(plain_search())
    assert thrifty.searched.calls > plain_search().searched.calls


@pytest.mark.slow
@pytest.mark.parametrize(("name", "refine", "states"), [("flux", "full", 0), ("wan-t2v", "fit", 5)])
def test_what_waits_on_disk_changes_no_bit(name, refine, states, monkeypatch):
    """Full runs, prefixes, branches and decoded pictures: all but a few states of a search are written and read."""
    kind, written = entry(name), []
    shared = {key: value for key, value in kind.kwargs().items() if key not in ("prompt", "generator")}
    stock = Shelf._write
    monkeypatch.setattr(Shelf, "_write", lambda self, *more: written.append(self.size) or stock(self, *more))

    def found(state_memory):
        texts = [f"text {number}" for number in range(4)]
        work = {"steps": 6, "budgets": (3,), "prompts": texts, "call": shared, "refine": refine, "selection": 2}
        return budcache.search(kind.build(), **work, state_memory=state_memory)

    unbounded = found("2GB")
    assert not written
    bounded = found(states * 2048)  # a state has 1 to 4 kB
    assert len(written) > 50
    for one, other in zip(unbounded, bounded, strict=True):
        assert other.moving_parts == one.moving_parts
        assert other.quality == one.quality


def test_residual_reuse(pipe):
    ladder = search(pipe, reuse="residual", prompts=TEXTS[:2], selection=0)
    assert {rung.reuse for rung in ladder} == {"residual"}
    with ExitStack() as stack:
        by_hand = calibration(pipe, stack, TEXTS[:2], seed=0, reuse="residual")
        for rung in ladder:
            assert rung.quality.calibration_loss == mean_loss(by_hand, rung.mask)
    with ExitStack() as stack:
        by_output = calibration(pipe, stack, TEXTS[:2], seed=0)
        assert mean_loss(by_output, ladder[2].mask) != ladder[2].quality.calibration_loss


def test_another_objective(pipe):
    def largest(student, teacher, run):
        return float((student - teacher).abs().max())

    ladder = search(pipe, prompts=TEXTS[:1], objective=largest)
    with ExitStack() as stack:
        by_hand = calibration(pipe, stack, TEXTS[:1], seed=0)
        for rung in ladder:
            difference = (by_hand.finals(Policy(mask=rung.mask))[0] - by_hand.teacher(0)).abs().max().item()
            assert rung.quality.calibration_loss == difference


# Selection


def test_finalists_are_judged_by_held_out_loss(pipe):
    """Of the three best on the first prompt, and uniform spacing, the one that is best on the others is taken."""
    ladder = search(pipe, strategy="random", selection=3)
    with ExitStack() as stack:
        judge = calibration(pipe, stack, TEXTS[1:], seed=1)
        for budget in BUDGETS:
            finalists = [*best(ladder, budget, 3), Mask.uniform(STEPS, budget)]
            assert ladder[budget].mask == min(finalists, key=lambda mask: geometric(losses(judge, mask)))
            assert ladder[budget].quality.loss == mean_loss(judge, ladder[budget].mask)
            assert ladder[budget].quality.samples == 3


def test_selection_can_change_the_choice(pipe):
    """An objective under which the judges prefer the opposite, so that the best in the search cannot win."""
    noises = []

    def moody(student, teacher, run):
        if not any(torch.equal(run.noise, noise) for noise in noises):
            noises.append(run.noise.clone())
        loss = float((student - teacher).square().mean())
        return loss if torch.equal(run.noise, noises[0]) else 1 - loss

    ladder = search(pipe, strategy="random", budgets=3, prompts=TEXTS[:2], selection=1, objective=moody)
    finalists = best(ladder, 3, 3)
    assert ladder[3].mask in [*finalists, Mask.uniform(STEPS, 3)]
    assert ladder[3].mask != finalists[0]


def test_without_selection_the_lowest_loss_wins(pipe):
    ladder = search(pipe, strategy="random", selection=0, prompts=TEXTS[:2])
    for budget in BUDGETS:
        rung, found = ladder[budget], scored(ladder)
        assert rung.mask == best(ladder, budget)[0]
        assert rung.quality.model_dump(exclude_none=True) == {
            "calibration_loss": min(loss for mask, loss in found.items() if mask.budget == budget)
        }


@pytest.mark.parametrize("reuse", ["output", "residual"])
def test_masks_alone_are_polished_if_asked_for(pipe, reuse):
    """The climb comes after the ladder, whatever is reused; by default there is none."""
    ladder = search(pipe, reuse=reuse, polish=1, rounds=1, prompts=TEXTS[:2])
    assert [*dict.fromkeys(step.phase for step in ladder.searched.history)] == ["ladder", "polish"]


def test_without_samples_to_judge_by_a_fit_says_so(pipe):
    ladder = search(pipe, refine="fit", prompts=TEXTS[:2], selection=0)
    for rung in ladder:
        (line,) = rung.refined
        assert (line.how, line.prompts, line.gain) == (
            "fit, not held out" if rung.is_blended else "fit, no gain",
            2,
            None,
        )
        assert rung.quality.calibration_loss <= scored(ladder)[best(ladder, rung.budget)[0]]
    assert any(rung.is_blended for rung in ladder)


def test_too_large_a_search_is_refused_before_anything_is_run(pipe):
    with counted(FLUX, pipe) as heard, pytest.raises(SearchError, match="masks"):
        search(pipe, steps=60, budgets=[20], strategy="exhaustive")
    assert not heard


# Limits


def test_a_limit_on_evaluations_ends_with_what_there_is(pipe):
    ladder = search(pipe, limits=Limits(evaluations=9), prompts=TEXTS[:1])  # budgets 1 and 2 have 1 and 7 masks
    assert ladder.searched.stopped == "evaluations limit of 9"
    assert len(scored(ladder)) == 9
    assert ladder.budgets == (2, 3)


def test_a_limit_on_calls_ends_with_what_there_is(pipe):
    ladder = search(pipe, limits=Limits(calls=STEPS + 12), prompts=TEXTS[:1])
    assert ladder.searched.stopped == "calls limit of 20"
    assert ladder.searched.calls == STEPS + 12  # one call a mask, so it is met exactly
    assert ladder.budgets == (2, 3)


@pytest.mark.parametrize("evaluations", [9, 19, 20, 24, 38])
def test_a_limit_before_or_in_the_fitted_climb_ends_with_what_there_is(pipe, evaluations):
    """Plain stretches take 19 masks, fitted ones 19 more, and the best of the first two others."""
    more = {"refine": "fit", "prompts": TEXTS[:2], "selection": 1, "limits": Limits(evaluations=evaluations)}
    ladder = search(pipe, **more)
    assert len([step for step in ladder.searched.history if step.new]) == evaluations
    assert len(scored(ladder)) == min(evaluations, 19)
    assert ladder.budgets == (BUDGETS if evaluations >= 19 else (2, 3))
    assert ladder.searched.stopped == f"evaluations limit of {evaluations}"


@pytest.mark.parametrize("limit", [Limits(seconds=0), Limits(calls=1), Limits(evaluations=1)], ids=str)
def test_a_limit_before_any_answer_is_said(limit):
    assert "Allow it more" in refused("stopped at its .* limit of [01] before any budget", limits=limit)


# Ledger


def test_a_ledger_is_written_and_gone_on_with(pipe, tmp_path):
    path = tmp_path / "a.ledger.jsonl"
    half = search(pipe, ledger=path, limits=Limits(evaluations=12))
    assert len(read_history(path)) == 12
    whole = search(pipe, ledger=path)
    assert known(whole) == known(plain_search())
    history = plain_search().searched.history
    assert [step.mask for step in whole.searched.history] == [step.mask for step in history]
    assert whole.searched.earlier == half.searched.calls
    assert whole.searched.calls > whole.searched.earlier
    with counted(FLUX, pipe) as heard:
        again = search(pipe, ledger=path)
    assert known(again) == known(whole)
    # All scores are known, so there are only the teachers, and the judge as ever.
    assert len(heard) == 3 * STEPS + plain_search().searched.calls - history[-1].sample_calls
    assert again.searched.calls - again.searched.earlier == len(heard)


def test_a_ledger_names_its_phases_as_the_history_does(pipe, tmp_path):
    path = tmp_path / "a.ledger.jsonl"
    ladder = search(pipe, refine="fit", prompts=TEXTS[:1], ledger=path, budgets=[2])
    fresh = [step for step in ladder.searched.history if step.new]
    assert read_history(path) == fresh
    assert {step.phase for step in fresh} == {"ladder", "ladder, fitted"}


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"prompts": ["something", "else"]}, "other prompts than this one"),
        ({"seed": 1}, "seed"),
        ({"steps": 9}, "steps"),
        ({"reuse": "residual"}, "reuse"),
        ({"batch": 2}, "batch"),
        ({"selection": 1}, "samples searched on"),
        ({"strategy": "anneal"}, "strategy"),
        ({"call": {"height": 48}}, "height"),
        ({"call": {"guidance_scale": 2.0}}, "guidance"),
        ({"teacher_steps": 12}, "teacher_steps"),
        ({"objective": lambda student, teacher, run: 0.0}, "objective"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, dict) else "",
)
def test_a_ledger_of_another_search_is_refused(pipe, one_ledger, change, names):
    path, usual = one_ledger
    before = path.read_bytes()
    refused(f"belongs to a search with {names}", BudcacheError, pipe=pipe, **{**usual, **change})
    assert path.read_bytes() == before


@pytest.fixture(scope="module")
def one_ledger(pipe, tmp_path_factory):
    """A ledger, and the options of its search."""
    path = tmp_path_factory.mktemp("ledger") / "a.ledger.jsonl"
    usual = {"prompts": TEXTS[:2], "selection": 0, "ledger": path, "strategy": "uniform"}
    search(pipe, **usual)
    return path, usual


def test_care_for_the_worst_tries_other_paths_unless_powers_are_chosen():
    usual, worst = SearchConfig(28, (5, 8)), SearchConfig(28, (5, 8), care="worst")
    assert usual.suited(32) == usual
    careful = worst.suited(32).strategy.powers
    assert len(careful) == len(usual.strategy.powers), "they cost as much"
    assert min(careful) < 0 <= min(usual.strategy.powers)
    assert worst.suited(4).strategy.powers == careful[:3]
    own = Paths(powers=(0.5,))
    assert SearchConfig(28, (5, 8), own, care="worst").suited(32).strategy == own


@pytest.mark.slow
def test_a_careful_search_has_a_ledger_of_its_own(pipe, tmp_path):
    options = {"strategy": "paths", "budgets": (3,), "prompts": TEXTS * 2, "refine": "full", "progress": False}
    options["ledger"] = tmp_path / "search.jsonl"
    usual = search(pipe, **options)
    with pytest.raises(SearchError, match="belongs to a search with"):
        search(pipe, **options, care="worst")
    options["ledger"] = tmp_path / "careful.jsonl"
    search(pipe, **{**options, "refine": "none"}, care="worst")
    careful = search(pipe, **options, care="worst")  # goes on from there
    found_by = [each[3].origin.strategy for each in (usual, careful)]
    assert found_by == ["paths", "paths with care for the worst"]
    with counted(FLUX, pipe) as calls, budcache.applied(pipe, careful[3]):
        pipe(TEXTS[0], **{**SHARED, "num_inference_steps": STEPS})
    assert len(calls) == 3


def test_a_ledger_of_another_model_is_refused(one_ledger):
    _, usual = one_ledger
    other = FLUX.build()
    with torch.no_grad():
        for parameter in other.transformer.parameters():
            parameter.mul_(1.5)
    refused("belongs to a search with other weights", BudcacheError, pipe=other, **usual)
    half = FLUX.build().to(torch.bfloat16)
    refused("belongs to a search with number format = 'float32'", BudcacheError, pipe=half, **usual)
    faster = FLUX.build()
    faster.scheduler = type(faster.scheduler).from_config(faster.scheduler.config, shift=1.0)
    refused("belongs to a search with scheduler_settings", BudcacheError, pipe=faster, **usual)


def test_a_limit_on_calls_counts_what_earlier_runs_have_spent(pipe, tmp_path):
    limited = {"limits": Limits(calls=20), "prompts": TEXTS[:1], "ledger": tmp_path / "kept.jsonl"}
    first, again = search(pipe, **limited), search(pipe, **limited)
    assert first.searched.stopped == again.searched.stopped == "calls limit of 20"
    assert again.budgets == first.budgets
    assert [step.mask for step in again.searched.history] == [step.mask for step in first.searched.history]


# Refusals


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"budgets": [0]}, "budget of 0 does not fit 8 steps.*from 1 to 8"),
        ({"budgets": [3, 9]}, "budget of 9 does not fit 8 steps"),
        ({"budgets": -1}, "budget of -1 does not fit"),
        ({"budgets": []}, "no budget to search for"),
        ({"steps": 0}, "run of 0 steps is not possible"),
        ({"steps": 10**9, "budgets": [3]}, "run of 1000000000 steps is not possible"),
        ({"prompts": []}, "no prompts to calibrate on"),
        ({"samples": []}, "no prompts to calibrate on"),
        ({"prompts": ["a"], "samples": [{"prompt": "b"}]}, "both given"),
        ({"strategy": "magic"}, "no strategy 'magic'.*ladder"),
        ({"reuse": "all"}, "there is no reuse 'all'"),
        ({"objective": "sound"}, "there is no objective 'sound'"),
        ({"reuse": "residual", "refine": "fit"}, 'only reuse="output" can be fitted'),
        ({"state_memory": -1}, "memory of -1 bytes"),
        ({"polish": -1}, "polish needs a window and rounds of at least 0"),
        ({"rounds": -1}, "polish needs a window and rounds of at least 0"),
        ({"teacher_steps": 7}, "teacher of 7 steps is coarser than the 8 steps"),
        ({"selection": 4}, "4 of 4 samples for selection leave none.*of 3 at most"),
        ({"selection": -1}, "-1 of 4 samples"),
        ({"batch": 0}, "batch must be at least 1, got 0"),
        ({"strategy": "exhaustive", "steps": 28, "budgets": [10]}, "4686825 masks"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_what_cannot_be_is_refused_before_the_model_runs(pipe, change, says):
    with counted(FLUX, pipe) as heard:
        refused(says, pipe=pipe, **change)
    assert heard == []


def test_a_pipeline_that_carries_a_policy_is_refused():
    pipe = FLUX.build()
    with budcache.applied(pipe, Policy(mask=Mask.uniform(STEPS, 3))):
        refused("carries a policy", PipelineError, pipe=pipe)
    search(pipe, prompts=TEXTS[:1], strategy="uniform")


def test_runs_that_start_midway_are_refused():
    kind = entry("flux-img2img")
    pipe = kind.build()
    call = {name: value for name, value in kind.kwargs().items() if name != "prompt"}
    usual = {"steps": STEPS, "budgets": [3], "prompts": TEXTS[:1], "strategy": "uniform"}
    with pytest.raises(SearchError, match=r"start midway\. Use strength=1"):
        budcache.search(pipe, call=call, **usual)
    assert budcache.search(pipe, call={**call, "strength": 1.0}, **usual).budgets == (3,)


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
    assert known(whole) == known(plain_search())


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
        search(pipe, prompts=TEXTS[:1], call={"prompt_embeds": torch.zeros(1, 16, 32)})
    assert search(pipe, prompts=TEXTS[:1], strategy="uniform").budgets == BUDGETS


# What is left behind


@pytest.mark.parametrize("reuse", ["output", "residual"])
@pytest.mark.parametrize("ending", ["well", "badly"])
def test_the_pipeline_is_left_as_it_was(reuse, ending):
    pipe = FLUX.build()
    call = {**FLUX.kwargs(), "num_inference_steps": STEPS, "output_type": "latent"}
    weights = {name: value.clone() for name, value in pipe.transformer.state_dict().items()}
    before = pipe(generator=torch.Generator().manual_seed(9), **call)[0]
    attributes, scheduler = dict(vars(pipe)), pipe.scheduler
    settings = json.dumps(dict(scheduler.config), default=str)
    if ending == "well":
        search(pipe, reuse=reuse, refine=None, prompts=TEXTS[:2], selection=1, budgets=[2])
    else:
        with pytest.raises(SearchError, match="before any budget was reached"):
            search(pipe, reuse=reuse, refine=None, prompts=TEXTS[:2], limits=Limits(evaluations=1))
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
    ladder = search(pipe, reuse=reuse, prompts=TEXTS[:1])
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


# A strategy of one's own


class Both:
    """Two masks a budget, asked for together, in one file and without a name."""

    def propose(self, steps, budgets, rng):
        for budget in budgets:
            yield Ask((Mask.of(steps, range(budget)), Mask.uniform(steps, budget)), "both")

    def expected(self, steps, budgets):
        return 2 * len(budgets)

    def __repr__(self):
        return "Both()"


def test_a_strategy_of_ones_own(pipe):
    seen = []
    ladder = search(pipe, strategy=Both(), prompts=TEXTS[:1], watch=seen.append)
    asked = [mask for budget in BUDGETS for mask in (Mask.of(STEPS, range(budget)), Mask.uniform(STEPS, budget))]
    assert [step.mask for step in ladder.searched.history] == asked
    assert tuple(event for event in seen if isinstance(event, Scored)) == ladder.searched.history
    assert ladder[3].origin.strategy == "Both()"


def test_the_seed_moves_the_search_too(pipe):
    shown = [{"prompt": "a cat", "generator": None, "latents": torch.ones(1, 64, 16)}]
    usual = {"samples": shown, "strategy": RandomMasks(5), "steps": 16, "budgets": [5]}
    one, other = (search(pipe, seed=seed, **usual) for seed in (0, 1))
    assert set(scored(one)) != set(scored(other))
