"""A run seen step by step: what a listener is told, and that the pipeline does not notice."""

from __future__ import annotations

import copy

import pytest
import torch
from helpers import STEPS, flux, latents
from zoo import entry

import budcache
from budcache import Mask, PipelineError, PipelineModel, Policy
from budcache.pipeline.steps import followed

KINDS = (
    "flux",
    "flux-true-cfg",
    "flux-dpm",
    "flux-img2img",
    "wan-t2v",
    "wan22",
    "z-image",
    "qwen-image",
    "sd3",
    "sdxl",
)


class Diary:
    """Writes down what it is told."""

    def __init__(self, levels=None):
        self.told, self.levels, self.sigmas = [], levels, None

    def run_begins(self, sigmas):
        self.told.append("run")
        self.sigmas = sigmas
        return self.levels

    def step_begins(self, step):
        self.told.append(step)

    def step_ends(self, step, last):
        self.told.append((step, last))

    def run_ends(self):
        self.told.append("end")

    @property
    def runs(self):
        """What was told of each run, without what was said before the first."""
        runs = []
        for each in self.told:
            if each == "run":
                runs.append([])
            elif runs:
                runs[-1].append(each)
        return runs


def whole(begin=0):
    steps = [each for step in range(begin, STEPS) for each in (step, (step, step == STEPS - 1))]
    return [*steps, "end"]


@pytest.mark.parametrize("name", KINDS)
def test_a_listener_is_told_of_every_step_and_changes_nothing(name):
    kind = entry(name)
    pipe = kind.build()
    bare, scheduler, diary = latents(kind, pipe), pipe.scheduler, Diary()
    with followed(pipe, STEPS, diary):
        assert torch.equal(latents(kind, pipe), bare)
        assert torch.equal(latents(kind, pipe), bare)
    begin = diary.runs[0][0]
    assert (begin > 0) == kind.strength
    assert [[each for each in run if each != "end"] for run in diary.runs] == [whole(begin)[:-1]] * 2
    assert all(run[-1] == "end" for run in diary.runs)
    assert diary.sigmas.shape == (STEPS + 1,)
    assert pipe.scheduler is scheduler
    assert torch.equal(latents(kind, pipe), bare)


class Stop(Exception):
    pass


def stop_at(step):
    def callback(pipe, i, t, kwargs):
        if i == step:
            raise Stop
        return {}

    return callback


def test_a_run_that_is_left_ends():
    kind, pipe = flux()
    diary = Diary()
    with followed(pipe, STEPS, diary):
        with pytest.raises(Stop):
            latents(kind, pipe, callback_on_step_end=stop_at(2))
        assert diary.runs[0] == [0, (0, False), 1, (1, False), 2, (2, False), "end"]
        latents(kind, pipe)
        assert diary.runs[1] == whole()


def test_what_is_left_of_a_broken_run_does_not_end_the_next():
    """A loop that an exception left may be kept alive by its frames, until another run has begun."""
    kind, pipe = flux()
    diary = Diary()
    with followed(pipe, STEPS, diary):
        pipe.scheduler.set_timesteps(STEPS, mu=1.0)
        left = iter(pipe.scheduler.timesteps)
        next(left)

        def let_go(pipe, i, t, kwargs):
            if i == 1:
                left.close()
            return {}

        latents(kind, pipe, callback_on_step_end=let_go)
    assert diary.runs == [[0, "end"], whole()]


def test_an_interrupted_run_ends():
    kind, pipe = flux()
    diary = Diary()

    def interrupt(pipe, i, t, kwargs):
        pipe._interrupt = i == 1
        return {}

    with followed(pipe, STEPS, diary):
        latents(kind, pipe, callback_on_step_end=interrupt)
    assert diary.runs[0] == [0, (0, False), 1, (1, False), 2, 3, 4, 5, "end"]


def test_other_noise_levels_are_run_on():
    kind, pipe = flux()
    diary = Diary()
    with followed(pipe, STEPS, diary):
        bare = latents(kind, pipe)
    levels = diary.sigmas**1.3
    policy = Policy(mask=Mask.full(STEPS), sigmas=levels.tolist())
    with budcache.applied(pipe, policy):
        wanted = latents(kind, pipe)
    with followed(pipe, STEPS, Diary(levels)):
        assert torch.equal(latents(kind, pipe), wanted)
    assert not torch.equal(wanted, bare)


def test_the_number_of_steps_may_be_left_out():
    kind, pipe = flux()
    wanted = latents(kind, pipe)
    call = {**kind.kwargs(), "output_type": "latent"}
    with followed(pipe, STEPS, Diary()):
        assert torch.equal(pipe(generator=torch.Generator().manual_seed(0), **call)[0], wanted)
        with pytest.raises(PipelineError, match=r"6 steps are expected, .* asked for 7\. Pass num_inference_steps=6"):
            pipe(num_inference_steps=7, **call)
        with pytest.raises(PipelineError, match=r"28 sigmas or timesteps of its own.*6 steps"):
            pipe(sigmas=[1 - 0.5 * k / 28 for k in range(28)], **call)


def test_a_pipeline_has_room_for_one():
    kind, pipe = flux()
    policy = Policy(mask="110100")
    with followed(pipe, STEPS, Diary()):
        with pytest.raises(PipelineError, match="already"), followed(pipe, STEPS, Diary()):
            pass
        with pytest.raises(PipelineError, match="Leave its `with` block"):
            budcache.apply(pipe, policy)
        with pytest.raises(PipelineError, match="Leave its `with` block"):
            PipelineModel(pipe, steps=STEPS, **kind.kwargs())
        with pytest.raises(PipelineError, match="Leave its `with` block"):
            copy.deepcopy(pipe)
    with (
        budcache.applied(pipe, policy),
        pytest.raises(PipelineError, match="already"),
        followed(pipe, STEPS, Diary()),
    ):
        pass


def test_a_pipeline_that_takes_its_timesteps_by_number_is_told_so():
    _, pipe = flux()
    with followed(pipe, STEPS, Diary()):
        pipe.scheduler.set_timesteps(STEPS, mu=1.0)
        x = torch.zeros(1, 4, 4)
        with pytest.raises(PipelineError, match="does not loop over"):
            pipe.scheduler.step(x, pipe.scheduler.timesteps[0], x)


def test_a_scheduler_under_which_skipping_has_no_meaning_is_refused():
    pipe = entry("cogvideox-dpm").build()
    scheduler = pipe.scheduler
    with pytest.raises(PipelineError, match="CogVideoXDPMScheduler"), followed(pipe, STEPS, Diary()):
        pass
    assert pipe.scheduler is scheduler
