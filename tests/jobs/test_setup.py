"""What all jobs share: samples held open on a pipeline, their teachers run."""

from __future__ import annotations

import threading

import pytest
import torch
from helpers import flux, latents, opened
from zoo import entry

from budcache import PipelineError, SearchError
from budcache.jobs.setup import Setup
from budcache.pipeline import describe
from budcache.pipeline.arguments import usual_size
from budcache.samples.samples import digest

STEPS = 6


@pytest.fixture(scope="module")
def zoo():
    return flux()


def samples(kind, *prompts):
    return [{**kind.kwargs(), "prompt": prompt} for prompt in prompts]


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "budcache-pipeline"]


def test_sample_i_begins_from_noise_of_seed_plus_i_and_is_taught_by_the_pipeline_itself(zoo):
    kind, pipe = zoo
    told = []
    with Setup(pipe, STEPS).calibration(samples(kind, "a cat", "a dog"), 5, told.append) as calibration:
        assert told == [STEPS + 1, 2 * STEPS]  # the other pipeline is open already, which cost it its first call
        for number, prompt in enumerate(("a cat", "a dog")):
            assert torch.equal(calibration.teacher(number), latents(kind, pipe, seed=5 + number, prompt=prompt))
        assert calibration.calls == calibration.samples * STEPS == 2 * STEPS
        assert len(threads()) == 2
    assert threads() == []


@pytest.mark.parametrize(("batch", "sizes"), [(1, [1, 1, 1]), (2, [2, 1]), (3, [3]), (9, [3])])
def test_a_batch_is_several_samples_at_once(zoo, batch, sizes):
    kind, pipe = zoo
    given = samples(kind, "a cat", "a dog", "rain")
    with Setup(pipe, STEPS, batch=batch).calibration(given, 0) as calibration:
        assert [len(run.noise) for run in calibration.runs] == sizes
        noise = torch.cat([run.noise for run in calibration.runs])
        assert calibration.calls == 3 * STEPS
    for seed in range(3):
        with opened(kind, pipe, seed) as alone:
            assert torch.equal(noise[seed : seed + 1], alone.noise)


def test_samples_of_other_settings_are_other_batches(zoo):
    """Each with the noise of its own place among all."""
    kind, pipe = zoo
    cat, dog = samples(kind, "a cat", "a dog")
    with Setup(pipe, STEPS, batch=2).calibration([cat, {**cat, "height": 64}, dog], 0) as known:
        assert [len(run.noise) for run in known.runs] == [2, 1]
        with opened(kind, pipe, seed=2, prompt="a dog") as alone:
            assert torch.equal(known.runs[0].noise[1:], alone.noise)
    assert threads() == []


def test_samples_that_are_no_batch_are_refused_and_nothing_stays_open(zoo):
    kind, pipe = zoo
    given = [
        {**sample, "latents": torch.zeros(1, size, 8)}
        for size, sample in zip((4, 9), samples(kind, *"ab"), strict=True)
    ]
    with (
        pytest.raises(PipelineError, match="latents has another shape in each sample"),
        Setup(pipe, STEPS, batch=2).calibration(given, 0),
    ):
        pytest.fail("it was opened")
    assert threads() == []


def test_a_finer_teacher_costs_a_call_to_open(zoo):
    kind, pipe = zoo
    given = samples(kind, "a cat")
    with Setup(pipe, STEPS, teacher_steps=9).calibration(given, 3) as calibration:
        assert calibration.calls == 1 + 9
        assert calibration.steps == STEPS
        assert torch.equal(calibration.teacher(0), latents(kind, pipe, seed=3, num_inference_steps=9))
    assert Setup(pipe, STEPS, teacher_steps=STEPS).finer_sigmas(given[0]) is None


def test_residual_reuse_and_the_objective_are_handed_on(zoo):
    kind, pipe = zoo

    def loss(student, teacher, run):
        return 0.25

    with Setup(pipe, STEPS, "residual", objective=loss).calibration(samples(kind, "a cat"), 0) as calibration:
        assert calibration.residual
        assert calibration.runs[0].reuse_mode == "residual"
        assert calibration.losses([calibration.teacher(0)]) == (0.25,)


def test_runs_that_start_midway_are_refused():
    kind = entry("flux-img2img")
    with (
        pytest.raises(SearchError, match=r"these start midway\. Use strength=1\."),
        Setup(kind.build(), STEPS).calibration([kind.kwargs()], 0),
    ):
        pytest.fail("it was opened")
    assert threads() == []


def test_an_origin_says_what_a_policy_was_made_on(zoo):
    kind, pipe = zoo
    given = samples(kind, "a cat", "a dog")
    origin = Setup(pipe, STEPS, teacher_steps=9).origin(given, seed=4)
    assert (origin.pipeline, origin.prompts, origin.prompts_hash) == ("FluxPipeline", 2, digest(given))
    assert (origin.height, origin.guidance, origin.teacher_steps, origin.seed) == (32, 3.5, 9, 4)


# Origins


@pytest.mark.parametrize("name", ["sd3", "sdxl", "lumina2", "hidream"])
def test_the_usual_size_is_that_of_what_is_drawn(name):
    kind = entry(name)
    pipe, call = kind.build(), {key: value for key, value in kind.kwargs().items() if key not in ("height", "width")}
    pipe.set_progress_bar_config(disable=True)
    drawn = pipe(**call, num_inference_steps=2, output_type="np").images[0]
    origin = describe(pipe)
    assert (origin.height, origin.width) == drawn.shape[:2]


@pytest.mark.parametrize("name", ["flux-img2img", "flux-kontext", "wan-i2v", "sd3-controlnet"])
def test_no_size_is_usual_where_it_comes_from_a_picture(name):
    origin = describe(entry(name).build())
    assert origin.height is None and origin.width is None


def test_the_size_of_a_run_is_what_it_was_told_or_what_is_usual():
    setup = Setup(entry("sd3").build(), STEPS)
    usual = usual_size(setup.pipe)
    for told, expected in (({}, usual), ({"height": 48, "width": 64}, (48, 64)), ({"width": 64}, (usual[0], 64))):
        origin = setup.origin([{"prompt": "a cat", **told}])
        assert (origin.height, origin.width) == expected


def test_true_guidance_is_on_record_where_it_is_at_work():
    setup = Setup(entry("qwen-image").build(), STEPS)
    negative = {"prompt": "a cat", "negative_prompt": " "}
    assert setup.origin([{"prompt": "a cat"}]).true_guidance is None
    assert setup.origin([negative]).true_guidance == 4.0  # as its signature has it
    assert setup.origin([{**negative, "true_cfg_scale": 2.5}]).true_guidance == 2.5
    mixed = setup.origin([{**negative, "true_cfg_scale": scale} for scale in (2.0, 5.0)])
    assert mixed.true_guidance is None and mixed.ranges == {"true_guidance": (2.0, 5.0)}
    assert Setup(entry("sd3").build(), STEPS).origin([negative]).true_guidance is None
