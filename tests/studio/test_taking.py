"""What can be taken away of a ladder."""

from __future__ import annotations

import zipfile

import pytest

from budcache.errors import BudcacheError
from budcache.exports import TARGETS
from budcache.mask import Mask
from budcache.policy import Ladder, Origin, Policy
from budcache.studio import taking
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
        if path.suffix == ".zip":
            assert zipfile.ZipFile(path).namelist()


def test_what_would_be_lost_is_said_before_it_is(studio):
    rows = Ladder.of([Policy(mask="101010", weights=((1.0,), (1.5, -0.5), (1.5, -0.5)), origin=ORIGIN)])
    studio.project.keep("fitted", rows)
    found, refused = taking.tried(lambda: taking.exported(studio, "fitted", 3, "sigmas", None, False, False))
    assert found is None
    assert "cannot carry all of this policy" in refused


def test_uniform_masks_take_their_levels_from_the_model(studio):
    path, _ = taking.exported(studio, UNIFORM, 3, "sigmas", None, False, False)
    assert path.suffix == ".json"


@pytest.mark.parametrize(("name", "repository"), [(UNIFORM, "me/mine"), ("mine", "not a name"), ("mine", "")])
def test_what_cannot_be_pushed_is_refused_without_a_network(name, repository, studio):
    with pytest.raises(BudcacheError):
        taking.pushed(studio, name, repository, False, None)
