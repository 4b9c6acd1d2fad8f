"""Errors are Python's own kinds, too, and are told apart from what a pipeline raises."""

from __future__ import annotations

import pickle

import pytest

import budcache
from budcache import BudcacheError, FileError, Mask, PipelineError, Policy, PolicyError, SearchError
from budcache.cli.common import pipeline_refusals


@pytest.mark.parametrize(("kind", "also"), [(PolicyError, ValueError), (SearchError, ValueError), (FileError, OSError)])
def test_an_error_is_also_of_the_kind_that_python_has_for_it(kind, also):
    assert issubclass(kind, BudcacheError) and issubclass(kind, also)
    again = pickle.loads(pickle.dumps(kind("a sentence.")))  # as from another process
    assert (type(again), str(again)) == (kind, "a sentence.")


def test_whoever_expects_the_usual_kinds_gets_them(tmp_path):
    with pytest.raises(ValueError, match="mask '01'"):
        Mask.parse("01")
    with pytest.raises(ValueError, match="reuse"):
        Policy(mask="11", reuse="nothing")
    with pytest.raises(OSError, match="there is no file"):
        Policy.load(tmp_path / "none.json")
    with pytest.raises(OSError, match="cannot be written"):
        Policy(mask="11").save(tmp_path)
    with pytest.raises(ValueError, match="budget"):
        budcache.search(None, steps=4, budgets=[9], prompts=["a"])


class Pipe:
    pass


@pytest.mark.parametrize("error", [PolicyError("a."), SearchError("b."), FileError("c."), PipelineError("d.")])
def test_our_own_errors_are_not_taken_for_the_pipelines(error):
    with pytest.raises(BudcacheError) as caught, pipeline_refusals(Pipe()):
        raise error
    assert caught.value is error


@pytest.mark.parametrize("kind", [ValueError, TypeError, RuntimeError])
def test_what_the_pipeline_raises_is_quoted_in_a_line(kind):
    with pytest.raises(PipelineError, match=r"^Pipe failed: `height` is odd\.$") as caught, pipeline_refusals(Pipe()):
        raise kind("`height` is odd.\nSee the manual.")
    assert type(caught.value.__cause__) is kind
