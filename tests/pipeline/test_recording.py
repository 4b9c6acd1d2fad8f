"""Recording ordinary runs of a user's own program: not a bit of them changes, and whole runs alone are kept."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, EulerAncestralDiscreteScheduler
from helpers import flux, latents, opened
from zoo import ENTRIES, Entry, entry

import budcache
from budcache import BudcacheWarning, Mask, PipelineError, Policy, Record, RecordError, SearchError

STEPS = 4
# One of each way to loop.
NAMES = (
    *("flux", "wan-t2v", "sd3", "qwen-image", "z-image", "sdxl", "ltx", "hunyuan-video"),
    *("modular-flux", "modular-wan"),
)
KINDS = [kind for kind in ENTRIES if kind.name in NAMES]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_recording_changes_no_bit_and_keeps_the_run(kind: Entry):
    pipe = kind.build()
    before = latents(kind, pipe, num_inference_steps=STEPS)
    scheduler = pipe.scheduler
    with budcache.recording(pipe) as record:
        during = latents(kind, pipe, num_inference_steps=STEPS)
    assert torch.equal(before, during)
    assert pipe.scheduler is scheduler
    (runs,) = record
    assert (runs.steps, runs.grams.samples) == (STEPS, 1)
    final = latents(kind, pipe, num_inference_steps=STEPS)
    assert torch.equal(before, final)


def test_what_is_recorded_is_what_a_search_would_record():
    kind, pipe = flux()
    call = {name: value for name, value in kind.kwargs().items() if name != "prompt"}
    with budcache.recording(pipe) as record:
        for seed, text in enumerate(("a cat", "red")):
            pipe(text, num_inference_steps=STEPS, generator=torch.Generator().manual_seed(seed), **call)
    from budcache.jobs.setup import Setup

    samples = [{"prompt": text, **call} for text in ("a cat", "red")]
    with Setup(pipe, STEPS).calibration(samples, 0, record=True) as known:
        assert np.allclose(record.groups[0].grams.products, known.grams.products, rtol=1e-5, atol=1e-7)
        assert np.allclose(record.groups[0].grams.levels, known.grams.levels)


def test_batches_steps_and_guidance_each_go_where_they_belong():
    kind, pipe = flux()
    with budcache.recording(pipe) as record:
        latents(kind, pipe, num_inference_steps=STEPS)
        latents(kind, pipe, num_inference_steps=STEPS, prompt=["one", "two"])
        latents(kind, pipe, num_inference_steps=STEPS + 1)
        latents(kind, pipe, num_inference_steps=STEPS, guidance_scale=7.0)
    assert [(runs.steps, runs.grams.samples, runs.origin.guidance) for runs in record] == [
        (STEPS, 3, record.groups[0].origin.guidance),
        (STEPS + 1, 1, record.groups[0].origin.guidance),
        (STEPS, 1, 7.0),
    ]


def test_a_record_is_gone_on_with():
    kind, pipe = flux()
    with budcache.recording(pipe) as record:
        latents(kind, pipe, num_inference_steps=STEPS)
    with budcache.recording(pipe, record) as same:
        latents(kind, pipe, 1, num_inference_steps=STEPS)
    assert same is record
    assert len(record) == 2


def test_a_run_that_fails_leaves_the_record_whole():
    kind, pipe = flux()
    scheduler = pipe.scheduler

    def fail(pipe, step, timestep, values):
        if step == 1:
            raise KeyboardInterrupt
        return values

    with pytest.raises(KeyboardInterrupt), budcache.recording(pipe) as record:
        latents(kind, pipe, num_inference_steps=STEPS)
        latents(kind, pipe, num_inference_steps=STEPS, callback_on_step_end=fail)
    assert len(record) == 1
    assert pipe.scheduler is scheduler


def test_a_run_that_is_left_midway_is_left_out_and_said():
    kind, pipe = flux()

    def stop(pipe, step, timestep, values):
        pipe._interrupt = step >= 1
        return values

    with pytest.warns(BudcacheWarning, match="1 run ended before the last step"), budcache.recording(pipe) as record:
        latents(kind, pipe, num_inference_steps=STEPS, callback_on_step_end=stop)
        latents(kind, pipe, num_inference_steps=STEPS)
    assert len(record) == 1


def test_image_to_image_begins_behind_the_first_step_and_is_left_out():
    kind = entry("flux-img2img")
    pipe = kind.build()
    with pytest.warns(BudcacheWarning, match="began behind the first"), budcache.recording(pipe) as record:
        latents(kind, pipe, num_inference_steps=STEPS, strength=0.5)
    assert len(record) == 0


def test_numbers_that_are_not_finite_are_left_out_and_the_run_goes_on():
    kind, pipe = flux()
    with torch.no_grad():
        pipe.transformer.proj_out.bias.fill_(float("nan"))
    with pytest.warns(BudcacheWarning, match="not finite"), budcache.recording(pipe) as record:
        assert latents(kind, pipe, num_inference_steps=STEPS).isnan().all()
    assert len(record) == 0


def test_what_cannot_be_recorded_is_refused():
    kind, pipe = flux()
    with pytest.raises(PipelineError, match="is not a diffusers pipeline"), budcache.recording(pipe.transformer):
        pass
    full = Policy(mask=Mask.full(STEPS))
    with (
        budcache.applied(pipe, full),
        pytest.raises(PipelineError, match="carries a policy"),
        budcache.recording(pipe),
    ):
        pass
    with budcache.recording(pipe):
        with pytest.raises(PipelineError, match="is being recorded"), budcache.recording(pipe):
            pass
        with pytest.raises(PipelineError, match="is being recorded"):
            budcache.apply(pipe, Policy(mask=Mask.uniform(STEPS, 2)))
        with pytest.raises(PipelineError, match="is being recorded"):
            opened(kind, pipe)
    with pytest.raises(RecordError, match="got str"), budcache.recording(pipe, "runs.record"):
        pass
    pipe.scheduler = EulerAncestralDiscreteScheduler()
    with pytest.raises(PipelineError, match="fresh noise"), budcache.recording(pipe):
        pass


def test_a_pipeline_that_copies_its_scheduler_gets_a_copy_of_its_own():
    """As pipelines with sound do; neither the pipeline nor the record goes with it."""
    _, pipe = flux()
    with budcache.recording(pipe):
        for copied in (copy.copy(pipe.scheduler), copy.deepcopy(pipe.scheduler)):
            assert type(copied) is type(flux()[1].scheduler)


def test_a_run_whose_levels_stay_is_kept_and_read_back(tmp_path):
    """DDIM's last two levels are both 0."""
    kind = entry("sdxl")
    pipe = kind.build()
    pipe.scheduler = DDIMScheduler()
    with budcache.recording(pipe) as record:
        for seed in (0, 1):
            latents(kind, pipe, seed, num_inference_steps=STEPS)
    assert record.groups[0].grams.levels[-2:].tolist() == [0, 0]
    assert Record.load(record.save(tmp_path / "a.record")).ladder([2]) == record.ladder([2])


def test_a_scheduler_that_the_user_set_meanwhile_stays():
    _, pipe = flux()
    other = DDIMScheduler()
    with budcache.recording(pipe):
        pipe.scheduler = other
    assert pipe.scheduler is other


def test_recorded_runs_become_a_ladder_that_is_served(tmp_path):
    kind, pipe = flux()
    with budcache.recording(pipe) as record:
        for seed in range(3):
            latents(kind, pipe, seed, num_inference_steps=8)
    ladder = Record.load(record.save(tmp_path / "a.record")).ladder([2, 4])
    full = latents(kind, pipe, 7, num_inference_steps=8)
    errors = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it was made on this very pipeline
        for rung in ladder:
            with budcache.applied(pipe, rung) as handle:
                errors.append(float((latents(kind, pipe, 7, num_inference_steps=8) - full).square().mean()))
                assert handle.stats().calls == rung.budget
    assert errors[1] < errors[0]


def test_a_search_starts_from_a_record():
    kind, pipe = flux()
    call = {name: value for name, value in kind.kwargs().items() if name != "prompt"}
    search = {"steps": 8, "budgets": 3, "prompts": ["a cat", "red"], "call": call}
    with budcache.recording(pipe) as record:
        latents(kind, pipe, 5, num_inference_steps=8)
    from_record = budcache.search(pipe, record=record, **search)
    assert from_record.searched.calls <= budcache.search(pipe, **search).searched.calls + 30
    with budcache.recording(pipe) as other:
        latents(kind, pipe, num_inference_steps=6)
    with pytest.raises(RecordError, match="no runs of 8 steps: it has 1 run of 6 steps"):
        budcache.search(pipe, record=other, **search)
    with pytest.raises(SearchError, match="a record is for paths"):
        budcache.search(pipe, record=record, strategy="uniform", **search)


def test_a_record_of_other_settings_is_refused_before_the_full_runs(tmp_path):
    kind, pipe = flux()
    call = {name: value for name, value in kind.kwargs().items() if name != "prompt"}
    with budcache.recording(pipe) as record:
        latents(kind, pipe, num_inference_steps=STEPS, guidance_scale=7.0)
    calls = []
    watched = pipe.transformer.register_forward_pre_hook(lambda *_: calls.append(1))
    with pytest.raises(RecordError, match="guidance is 7"):
        budcache.search(
            pipe, steps=STEPS, budgets=2, prompts=["a", "b"], call=call, record=record.save(tmp_path / "a.record")
        )
    watched.remove()
    assert not calls


# Pipelines whose model cannot be driven are refused when they are opened (see test_coverage.py).
ALL = [kind for kind in ENTRIES if kind.name not in ("cogvideox-dpm", "ltx2") and not kind.strength]


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[] if kind.name in NAMES else pytest.mark.slow, id=kind.name) for kind in ALL],
)
def test_every_kind_is_searched_from_its_full_runs(kind):
    """Paths, fitted without a solver, on two samples: exactly the calls, and nearer than plain uniform reuse."""
    pipe, call = kind.build(), kind.kwargs()
    seeds = [{**call, "generator": torch.Generator().manual_seed(seed)} for seed in (0, 1)]
    ladder = budcache.search(pipe, steps=6, budgets=[3], samples=seeds)
    full = latents(kind, pipe, num_inference_steps=6)
    errors = []
    for policy in (ladder[3], Policy(mask=Mask.uniform(6, 3))):
        with budcache.applied(pipe, policy.model_copy(update={"origin": None})) as handle:
            errors.append(float((latents(kind, pipe, num_inference_steps=6) - full).square().mean()))
            assert handle.stats().last_run_calls == 3
    assert errors[0] < errors[1]
