"""Fitted reuse on real pipelines: in a search and for masks that were found, and teachers finer than the run."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cache

import numpy as np
import pytest
import torch
from helpers import counted, latents, opened
from zoo import entry

import budcache
from budcache import Ladder, Mask, Origin, Policy, SearchError
from budcache.calibration.calibration import Calibration
from budcache.calibration.judge import Judge
from budcache.events import RungDone
from budcache.jobs.refining import SETTINGS
from budcache.refine.fit import FittedScorer
from budcache.strategies import LadderSearch, Limits

STEPS, BUDGETS = 6, (2, 3, 4)
TEXTS = ["a cat", "two dogs", "red", "the sea at night"]
FLUX = entry("flux")
ASKED = 1 + 5 + 4 + 3  # masks that a ladder up to 4 of 6 steps scores


def shared(kind):
    return {name: value for name, value in kind.kwargs().items() if name != "prompt"}


@cache
def pipeline(name):
    return entry(name).build()


def search(**more):
    usual = {"steps": STEPS, "budgets": BUDGETS, "prompts": TEXTS, "strategy": "ladder", "call": shared(FLUX)}
    return budcache.search(pipeline("flux"), **{**usual, **more})


@cache
def searched():
    """The search that several tests look at: three prompts to search on, one to choose by."""
    return search()


def calibration(stack, kind, texts, seed, **options):
    """Samples as a search has them: the i-th begins from noise of seed + i."""
    runs = [
        stack.enter_context(opened(kind, pipeline(kind.name), seed + i, steps=STEPS, prompt=text))
        for i, text in enumerate(texts)
    ]
    return Calibration(runs, **options)


def losses(known, policy):
    return known.losses(known.finals(policy))


def loss(known, policy):
    """The mean over samples, as policies have it."""
    found = losses(known, policy)
    return sum(found) / len(found)


def scored(ladder, fitted):
    """The losses of all masks that were scored under one kind of reuse, in order."""
    steps = (step for step in ladder.searched.history if step.new and step.phase.endswith(", fitted") == fitted)
    return {step.mask: step.loss for step in steps}


def best(found, budget, count=1):
    return sorted((mask for mask in found if mask.budget == budget), key=found.__getitem__)[:count]


def refused(says, action, *arguments, **more):
    with pytest.raises(SearchError, match=says) as caught:
        action(*arguments, **more)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["flux", "flux-dpm", "wan-t2v"])
def test_on_a_pipeline_too_the_loss_is_that_of_following_the_weights(name):
    with ExitStack() as stack:
        known = calibration(stack, entry(name), TEXTS[:2], 0)
        for fitted in (FittedScorer(known), FittedScorer(known, memory=10**9)):
            for mask in map(Mask.parse, ("110100", "100100", "110101")):
                found, scored = fitted.fit(mask), fitted.score(mask)
                policy = Policy(mask=mask, weights=found.weights)
                assert found.losses == scored.losses == losses(known, policy)
                assert found.weights == scored.weights


# In a search


def test_a_search_fits_its_policies_and_says_what_that_was_worth():
    ladder = searched()
    assert ladder.budgets == BUDGETS
    assert any(rung.is_blended for rung in ladder)
    with ExitStack() as stack:
        known = calibration(stack, FLUX, TEXTS[:3], 0)
        judge = calibration(stack, FLUX, TEXTS[3:], 3)
        for rung in ladder:
            (line,) = rung.refined
            assert line.how == ("fit" if rung.is_blended else "fit, no gain")
            assert (line.prompts, rung.quality.samples) == (4, 1)
            assert line.calls > 0 and line.gain is not None
            assert rung.quality.loss == loss(judge, rung)
            if rung.is_blended:
                settings = [FittedScorer(known, outputs=q, ridge=ridge).fit(rung.mask).weights for q, ridge in SETTINGS]
                assert rung.weights in settings
                assert rung.quality.calibration_loss == loss(known, rung)


def test_finalists_come_from_both_climbs_and_the_best_on_other_prompts_is_taken():
    ladder, plain = searched(), search(refine="none")
    without, fitted = scored(ladder, fitted=False), scored(ladder, fitted=True)
    assert without == scored(plain, fitted=False)
    assert len(without) == ASKED and not scored(plain, fitted=True)
    assert {step.phase for step in ladder.searched.history} <= {"ladder", "ladder, fitted", "start, fitted"}
    with ExitStack() as stack:
        known = calibration(stack, FLUX, TEXTS[:3], 0)
        judge = Judge(calibration(stack, FLUX, TEXTS[3:], 3))
        scorer = FittedScorer(known)
        for budget in BUDGETS:
            assert best(without, budget)[0] in fitted
            masks = [*best(fitted, budget, 3), best(without, budget)[0], Mask.uniform(STEPS, budget)]
            assert ladder[budget].mask in masks
            field = [Policy(mask=mask, weights=rows) for mask in masks for rows in (None, scorer.fit(mask).weights)]
            assert ladder[budget].quality.loss <= min(judge.losses(policy)[0] for policy in field)
        for mask, found in fitted.items():
            assert scorer.score(mask).loss == found


def test_what_a_fitted_search_finds_is_what_is_served(tmp_path):
    ladder, pipe = search(prompts=TEXTS[:1]), pipeline("flux")
    assert all(rung.is_blended for rung in ladder)  # nothing to choose by, so the fit is taken
    path = ladder.save(tmp_path / "flux.ladder.json")
    assert Ladder.load(path) == ladder
    full = latents(FLUX, pipe, num_inference_steps=STEPS)
    for budget in BUDGETS:
        with budcache.applied(pipe, path, budget=budget), counted(FLUX, pipe) as heard:
            fast = latents(FLUX, pipe, num_inference_steps=STEPS)
        assert len(heard) == budget
        error = (fast.double() - full.double()).square().mean().item()
        assert error == pytest.approx(ladder[budget].quality.calibration_loss, rel=1e-5)
        assert ladder[budget].quality.calibration_loss == scored(ladder, fitted=True)[ladder[budget].mask]


@pytest.mark.parametrize("teacher_steps", [None, 2 * STEPS])
def test_all_calls_of_a_fitted_search_are_counted(teacher_steps):
    with counted(FLUX, pipeline("flux")) as heard:
        ladder = search(teacher_steps=teacher_steps, prompts=TEXTS[:2], selection=1, polish=1)
    assert ladder.searched.calls == len(heard)
    assert "polish, fitted" in {step.phase for step in ladder.searched.history}


def test_a_limit_on_evaluations_holds_for_both_climbs_together():
    ladder = search(limits=Limits(evaluations=ASKED + 3))
    assert ladder.searched.stopped == f"evaluations limit of {ASKED + 3}"
    assert (len(scored(ladder, fitted=False)), len(scored(ladder, fitted=True))) == (ASKED, 3)
    assert ladder.budgets == BUDGETS
    early = search(limits=Limits(evaluations=6), prompts=TEXTS[:2])
    assert (len(scored(early, fitted=False)), len(scored(early, fitted=True))) == (6, 0)
    assert early.budgets == (2,)


def test_a_limit_on_calls_holds_for_both_climbs_together():
    history = searched().searched.history
    spent = [step.sample_calls for step in history if "fitted" not in step.phase][-1]
    ladder = search(limits=Limits(calls=spent + 10))
    assert ladder.searched.stopped == f"calls limit of {spent + 10}"
    assert len(scored(ladder, fitted=False)) == ASKED
    assert spent < ladder.searched.history[-1].sample_calls < spent + 10 + 3 * max(BUDGETS)


def test_a_strategy_without_a_ladder_is_fitted_where_it_ended():
    ladder = search(strategy="uniform", prompts=TEXTS[:2], selection=1)
    assert list(scored(ladder, fitted=True)) == list(scored(ladder, fitted=False))
    polished = search(strategy="uniform", prompts=TEXTS[:2], selection=1, polish=1)
    assert set(scored(polished, fitted=True)) > set(scored(ladder, fitted=True))


def test_residual_reuse_cannot_be_fitted_and_is_not_unless_asked_for():
    refused('only reuse="output" can be fitted', search, reuse="residual", refine="fit")
    ladder = search(reuse="residual", prompts=TEXTS[:1], budgets=[2])
    assert not scored(ladder, fitted=True)
    assert ladder[2].weights is None and ladder[2].refined == ()


# Of masks that were found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flux", "sd3", "wan-t2v"])
def test_a_fitted_ladder_is_never_worse_on_the_samples_it_was_chosen_by(name):
    kind = entry(name)
    plain = Ladder.of([Policy(mask=mask) for mask in ("100100", "110100", "110110")])
    seen = []
    ladder = budcache.fit(pipeline(name), plain, prompts=TEXTS, watch=seen.append, call=shared(kind))
    assert [event.policy for event in seen if isinstance(event, RungDone)] == list(ladder)
    assert [rung.mask for rung in ladder] == [rung.mask for rung in plain]
    with ExitStack() as stack:
        known = calibration(stack, kind, TEXTS[:3], 0)
        judge = calibration(stack, kind, TEXTS[3:], 3)
        for before, rung in zip(plain, ladder, strict=True):
            assert rung.quality.loss == loss(judge, rung) <= loss(judge, before)
            assert rung.refined[0].how == ("fit" if rung.is_blended else "fit, kept as it was")
            assert rung.weights is None or rung.quality.calibration_loss == pytest.approx(loss(known, rung), rel=1e-12)
    assert any(rung.is_blended for rung in ladder)
    # What is better already is not given up for what this fit alone would find.
    again = budcache.fit(pipeline(name), ladder, prompts=TEXTS, outputs=[1], ridges=[10.0], call=shared(kind))
    for before, rung in zip(ladder, again, strict=True):
        assert (rung.weights, rung.quality) == (before.weights, before.quality)
        assert rung.refined[0] == before.refined[0] and rung.refined[1].how == "fit, kept as it was"
        assert rung.refined[1].gain == 0


def test_the_calls_of_a_fit_are_counted():
    ladder = Ladder.of([Policy(mask=mask) for mask in ("100100", "110100")])
    with counted(FLUX, pipeline("flux")) as heard:
        fitted = budcache.fit(pipeline("flux"), ladder, prompts=TEXTS, teacher_steps=9, call=shared(FLUX))
    assert sum(rung.refined[0].calls for rung in fitted) == len(heard)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"policies": Policy(mask="1010", reuse="residual")}, "reuses residuals, and only outputs"),
        ({"policies": Policy(mask="10", sigmas=(1.0, 0.5, 0.0))}, "noise levels of its own, and fits"),
        ({"outputs": []}, "nothing to choose from"),
        ({"ridges": [-1.0]}, "ridge must be finite and at least 0, got -1"),
        ({"outputs": [129]}, "128 outputs, not 129"),
        ({"target": "last"}, "no target 'last'"),
        ({"selection": 0}, "needs samples to choose by"),
        ({"selection": 4}, "4 of 4 samples for selection leave none"),
        ({"prompts": TEXTS[:1]}, "needs samples to choose by"),
        ({"prompts": []}, "no prompts"),
        ({"teacher_steps": 3}, "teacher of 3 steps is coarser than the 6 steps"),
        ({"batch": 0}, "batch must be at least 1"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_what_cannot_be_fitted_is_refused(change, says):
    usual = {"policies": Policy(mask="110100"), "prompts": TEXTS, "call": shared(FLUX)}
    with counted(FLUX, pipeline("flux")) as heard:
        refused(says, budcache.fit, pipeline("flux"), **{**usual, **change})
    assert heard == []


# A finer teacher


def psnr_to(pictures, policy, seed, text, steps):
    """By hand: the pipeline's own pictures, of a policy and of a full run of so many steps."""

    def draw(steps):
        call = {**shared(FLUX), "prompt": text, "num_inference_steps": steps, "output_type": "np"}
        return pictures(generator=torch.Generator().manual_seed(seed), **call).images[0].astype(np.float64)

    full = draw(steps)
    with budcache.applied(pictures, policy):
        fast = draw(policy.steps)
    return -10 * np.log10(np.mean((full - fast) ** 2))


@pytest.mark.parametrize("fit", [True, False], ids=["fitted", "plain"])
def test_a_search_may_imitate_a_run_of_more_steps(fit):
    (rung,) = search(teacher_steps=4 * STEPS, refine="fit" if fit else "none", budgets=[3])
    assert (rung.steps, rung.budget, rung.origin.teacher_steps) == (STEPS, 3, 4 * STEPS)
    assert rung.quality.psnr == pytest.approx(psnr_to(pipeline("flux"), rung, 3, TEXTS[3], 4 * STEPS), abs=1e-2)
    assert rung.quality.psnr != pytest.approx(psnr_to(pipeline("flux"), rung, 3, TEXTS[3], STEPS), abs=0.1)


def test_a_fit_says_which_run_its_quality_refers_to():
    start = Policy(mask="110100", origin=Origin(model="mine", seed=3))
    usual = {"prompts": TEXTS[:2], "selection": 1, "call": shared(FLUX)}
    (finer,) = budcache.fit(pipeline("flux"), start, teacher_steps=2 * STEPS, **usual)
    levels = finer.origin.levels
    assert len(levels) == STEPS + 1
    assert finer.origin == Origin(model="mine", seed=3, teacher_steps=2 * STEPS, levels=levels)
    expected = psnr_to(pipeline("flux"), finer, 1, TEXTS[1], 2 * STEPS)
    assert finer.quality.psnr == pytest.approx(expected, abs=1e-2)
    (usual_again,) = budcache.fit(pipeline("flux"), finer, **usual)
    assert usual_again.origin == Origin(model="mine", seed=3, levels=levels)


def test_the_finer_teacher_of_a_pipeline_is_its_own_run_of_more_steps():
    kind, pipe = FLUX, pipeline("flux")
    with opened(kind, pipe, steps=STEPS) as run, opened(kind, pipe, steps=3 * STEPS) as finer:
        known = Calibration([run], teacher_sigmas=finer.sigmas)
    torch.testing.assert_close(known.teacher(0), latents(kind, pipe, num_inference_steps=3 * STEPS))


def test_a_teacher_that_cannot_teach_is_refused():
    refused(r"teacher of 5 steps is coarser than the 6 steps.*more than 6", search, teacher_steps=STEPS - 1)
    kind = entry("sdxl")  # whose noise levels begin elsewhere for every number of steps
    usual = {"steps": STEPS, "budgets": [2], "prompts": TEXTS[:2], "call": shared(kind)}
    refused("begins at the noise level", budcache.search, kind.build(), teacher_steps=20, **usual)


def test_the_same_number_of_steps_is_no_other_teacher():
    same = search(teacher_steps=STEPS, strategy=LadderSearch(), budgets=[2], prompts=TEXTS[:1], refine="none")
    usual = search(strategy=LadderSearch(), budgets=[2], prompts=TEXTS[:1], refine="none")
    assert same.searched.history == usual.searched.history
    assert same.searched.calls == usual.searched.calls


@pytest.mark.parametrize("job", [budcache.fit, budcache.align])
def test_what_is_refined_names_the_settings_of_its_samples(job):
    """Whatever the mask was searched at: it is the weights that know the settings."""
    start = Policy(mask=Mask.parse("110100"), weights=[[1.0], [1.2, -0.2], [1.1, -0.1]], origin=Origin(guidance=2.0))
    settings = {name: value for name, value in shared(FLUX).items() if name != "guidance_scale"}
    scales = [1.5, 3.5, 1.5, 7.0]
    samples = [{"prompt": text, "guidance_scale": scale} for text, scale in zip(TEXTS, scales, strict=True)]
    (mixed,) = job(pipeline("flux"), start, samples=samples, call=settings, selection=1)
    assert mixed.origin.guidance is None and mixed.origin.ranges == {"guidance": (1.5, 7.0)}
    (one,) = job(pipeline("flux"), mixed, prompts=TEXTS, call={**settings, "guidance_scale": 5.0}, selection=1)
    assert one.origin.guidance == 5.0 and one.origin.ranges == {}


def test_prompts_that_a_kept_rung_was_fitted_on_are_not_called_kept_out(monkeypatch):
    """Fitted on all four, then fitted again: the one that is put aside is not new to the rung."""
    from budcache.calibration.judge import Judge

    usual = {"prompts": TEXTS, "call": shared(FLUX), "progress": False}
    found = budcache.search(pipeline("flux"), steps=STEPS, budgets=3, strategy="paths", **usual)
    assert found[3].quality.used_to_fit
    monkeypatch.setattr(Judge, "best", lambda self, policies: policies[0])  # the rung stays as it is
    again = budcache.fit(pipeline("flux"), found, **usual)[3]
    assert again.moving_parts == found[3].moving_parts and again.quality.used_to_fit
    others = budcache.fit(pipeline("flux"), found, **{**usual, "prompts": [*TEXTS[:3], "another"]})[3]
    assert not others.quality.used_to_fit
