"""What can be taken away of a ladder."""

from __future__ import annotations

import zipfile

import pytest
import torch

from budcache import models
from budcache.errors import BudcacheError
from budcache.exports import TARGETS
from budcache.mask import Mask
from budcache.policy import Ladder, Origin, Policy
from budcache.studio import taking
from budcache.studio.job import Job
from budcache.studio.studio import UNIFORM

LEVELS = tuple(1 - k / 6 for k in range(7))
ORIGIN = Origin(model="tiny-flux", pipeline="FluxPipeline", scheduler="FlowMatchEulerDiscreteScheduler", levels=LEVELS)
FOUND = Ladder.of([Policy(mask=Mask.uniform(6, budget), origin=ORIGIN) for budget in (2, 3)])


@pytest.fixture
def studio(make):
    found = make(start=False)
    found.project.keep("mine", FOUND)
    return found


def test_the_line_of_python_names_the_file_that_is_downloaded(studio):
    assert taking.file_of(studio, "mine").name == "mine.json"
    code = taking.python(studio, "mine", 3)
    assert 'budcache.applied(pipe, "mine.json", budget=3)' in code
    compile(code, "line", "exec")
    assert Ladder.load(taking.file_of(studio, UNIFORM)).steps == 6


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_is_exported_or_says_why_not(target, studio):
    for runtime in taking.runtimes(target) or [None]:
        path, made = taking.exported(studio, "mine", 3, target, runtime, True, False)
        assert path.is_file()
        assert made.run
        assert str(studio.project.path) not in made.run  # it is run where it is taken to
        if path.suffix == ".zip":
            assert {name.partition("/")[0] for name in zipfile.ZipFile(path).namelist()} == {"policy"}


def test_what_would_be_lost_is_said_before_it_is(studio):
    rows = Ladder.of([Policy(mask="101010", weights=((1.0,), (1.5, -0.5), (1.5, -0.5)), origin=ORIGIN)])
    studio.project.keep("fitted", rows)
    found, refused = taking.tried(lambda: taking.exported(studio, "fitted", 3, "sigmas", None, False, False))
    assert found is None
    assert "cannot carry all of this policy" in refused


def test_uniform_masks_take_what_they_need_from_the_model_that_is_there(make, until):
    """None is loaded a second time, and while a job has it nothing waits for hours."""
    loads = []

    def load():
        loads.append(models.load("tiny-flux"))
        return loads[-1]

    studio = make(load)
    until(lambda: studio.runner.is_loaded)
    for target in ("sigmas", "diffusers"):
        path, _ = taking.exported(studio, UNIFORM, 3, target, None, False, False)
        assert path.is_file()
    assert len(loads) == 1
    options = {"prompts": ["red apple", "blue car"], "steps": 6, "budgets": [2, 3], "minutes": None, "refine": "fit"}
    job = studio.runner.submit("search", "one", options)
    until(lambda: job.state == "running")
    studio.runner.pause(job)
    _, refused = taking.tried(lambda: taking.exported(studio, UNIFORM, 3, "sigmas", None, False, False))
    assert "search-1 has the model" in refused


def test_a_whole_pipeline_is_the_one_that_was_seen(make, until):
    """With the LoRA, its scale and the numbers that the studio was given."""
    loaded = {"lora": "turbo", "lora_scale": 0.5}
    studio = make(lambda: models.load("tiny-flux", dtype=torch.bfloat16, **loaded), **loaded)
    studio.project.keep("mine", FOUND)
    until(lambda: studio.runner.is_loaded)
    path, made = taking.exported(studio, "mine", 3, "diffusers", None, False, True)
    assert "policy/lora/turbo.safetensors" in zipfile.ZipFile(path).namelist()
    assert "dtype=torch.bfloat16" in made.run
    assert 'pipe.set_adapters(["turbo"], [0.5])' in made.run


def test_the_line_of_python_has_the_settings_that_were_searched_at(make):
    studio = make(start=False, call={"height": 32})
    studio.project.keep("search-1", FOUND)
    studio.runner.jobs.append(Job("search-1", "search", "one", {"call": {"guidance_scale": 2.0}}, "done"))
    assert "pipe(prompt, height=32, guidance_scale=2.0).images[0]" in taking.python(studio, "search-1", 3)


@pytest.mark.parametrize(("name", "repository"), [(UNIFORM, "me/mine"), ("mine", "not a name"), ("mine", "")])
def test_what_cannot_be_pushed_is_refused_without_a_network(name, repository, studio):
    with pytest.raises(BudcacheError):
        taking.pushed(studio, name, repository, False, None)
