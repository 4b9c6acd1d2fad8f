"""The public functions: signatures that editors and type checkers see, and options that are refused by name."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import counted
from zoo import entry

import budcache
from budcache import PipelineError, Policy, SearchError

FLUX = entry("flux")
SHARED = {name: value for name, value in FLUX.kwargs().items() if name != "prompt"}
POLICY = Policy(mask="110100")
DOORS = {
    "search": "Ladder",
    "fit": "Ladder",
    "align": "Ladder",
    "compare": "Comparison",
    "estimate": "Planned",
    "apply": "Handle",
    "applied": "AbstractContextManager[Handle]",
    "load": "DiffusionPipeline",
}
JOBS = {
    "search": lambda pipe, **more: budcache.search(pipe, **{"steps": 6, "budgets": 2, "prompts": ["a", "b"], **more}),
    "fit": lambda pipe, **more: budcache.fit(pipe, POLICY, **{"prompts": ["a", "b"], "selection": 1, **more}),
    "align": lambda pipe, **more: budcache.align(pipe, POLICY, **{"prompts": ["a", "b"], **more}),
}


@pytest.fixture(scope="module")
def pipe():
    return FLUX.build()


# Signatures


@pytest.mark.parametrize("name", DOORS)
def test_a_signature_says_every_option_and_what_comes_back(name):
    signature = inspect.signature(getattr(budcache, name))
    assert str(signature.return_annotation) == DOORS[name]
    loose = [each for each in signature.parameters.values() if each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
    # What `load` passes on to `from_pretrained` belongs to diffusers, and differs from model to model.
    assert len(loose) == (name == "load")
    assert all(each.annotation is not each.empty for each in signature.parameters.values())
    assert getattr(budcache, name).__doc__


@pytest.mark.parametrize("name", ["search", "fit", "align", "compare"])
def test_every_option_is_explained(name):
    function = getattr(budcache, name)
    explained = inspect.getdoc(function)
    assert [each for each in inspect.signature(function).parameters if f"    {each}: " not in explained] == []


USER = """\
import budcache
from budcache.events import Event, Progress

seen: list[float] = []


def watch(event: Event) -> None:
    if isinstance(event, Progress):
        seen.append(event.done / event.total)


pipe = budcache.load("tiny-flux")
cost: int = budcache.estimate(steps=28, budgets=range(4, 13), prompts=8, strategy="anneal").sample_calls
ladder: budcache.Ladder = budcache.search(
    pipe, steps=28, budgets=8, prompts=["a cat"], call={"height": 64}, reuse="output", watch=watch, progress=False
)
if ladder.searched is not None:
    losses: list[float] = [step.loss for step in ladder.searched.history]
ladder = budcache.fit(pipe, ladder, samples=[{"prompt": "a cat"}], outputs=[2], target="final")
ladder = budcache.align(pipe, ladder[8], prompts=["a cat"], mean="geometric", autocast="bfloat16")
ladder.merged(ladder).save("flux.json")
quality = ladder[8].quality
if quality is not None and quality.psnr is not None and quality.psnr_error is not None:
    best: float = quality.psnr + quality.psnr_error
with budcache.applied(pipe, "flux.json", budget=8) as handle:
    calls: int = handle.stats().last_run_calls
budcache.apply(pipe, budcache.Policy(mask=budcache.Mask.parse("1010"))).remove()
"""
WRONG = """\
import budcache

pipe = budcache.load("tiny-flux")
budcache.search(pipe, steps=28, budgets=8, promts=["a cat"])  # wrong: call-arg
budcache.search(pipe, steps=28, budgets="8", prompts=["a cat"])  # wrong: arg-type
budcache.search(pipe, steps=28, budgets=8, prompts=["a cat"], height=64)  # wrong: call-arg
budcache.search(pipe, steps=28, budgets=8, reuse="all")  # wrong: arg-type
budcache.search(pipe, steps=28, budgets=8)[8].qualty  # wrong: attr-defined
budcache.fit(pipe, pipe, rigdes=[1.0])  # wrong: call-arg
budcache.align(pipe, "ladder.json")  # wrong: arg-type
budcache.apply(pipe, "ladder.json", budgte=8)  # wrong: call-arg
with budcache.applied(pipe, "ladder.json") as handle:
    handle.stat()  # wrong: attr-defined
"""
SETTINGS = """\
[mypy]
strict = true
follow_imports = skip
[mypy-budcache.*,pydantic.*]
follow_imports = silent
"""


@pytest.mark.slow
def test_a_type_checker_passes_what_is_right_and_finds_what_is_wrong(tmp_path):
    """mypy as users run it; large libraries of others are left out, which would take it minutes."""
    for name, text in (("user.py", USER), ("wrong.py", WRONG), ("mypy.ini", SETTINGS)):
        (tmp_path / name).write_text(text)
    where = {**os.environ, "MYPYPATH": str(Path(budcache.__file__).parent.parent)}
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", "cache", "user.py", "wrong.py"]
    done = subprocess.run(command, cwd=tmp_path, env=where, capture_output=True, text=True, timeout=240)
    found = [line for line in done.stdout.splitlines() if ": error: " in line]
    lines = enumerate(WRONG.splitlines(), 1)
    expected = [(f"wrong.py:{number}:", line.split("# wrong: ")[1]) for number, line in lines if "# wrong" in line]
    assert [(line.split(" ")[0], line.split("[")[-1].rstrip("]")) for line in found] == expected, done.stdout


# Options


@pytest.mark.parametrize(
    ("job", "option", "meant"),
    [
        ("search", "promts", "prompts"),
        ("search", "bugdets", "budgets"),
        ("search", "teacher_step", "teacher_steps"),
        ("fit", "rigdes", "ridges"),
        ("align", "epoch", "epochs"),
    ],
)
def test_an_option_that_is_not_there_is_refused_with_the_nearest_name(pipe, job, option, meant):
    says = rf"^{job} has no option '{option}'\. Did you mean {meant}\? .* go into call=\{{'{option}': \.\.\.\}}\.$"
    with counted(FLUX, pipe) as heard, pytest.raises(SearchError, match=says):
        JOBS[job](pipe, call=SHARED, **{option: 3})
    assert heard == []


@pytest.mark.parametrize("job", JOBS)
def test_the_pipelines_own_arguments_are_shown_their_place(pipe, job):
    """The loose form of version 0.1."""
    with counted(FLUX, pipe) as heard, pytest.raises(SearchError, match=r"go into call=\{'height': \.\.\.\}\."):
        JOBS[job](pipe, height=32)
    assert heard == []


def test_an_estimate_has_no_pipeline_to_call():
    with pytest.raises(SearchError, match=r"^estimate has no option 'promts'\. Did you mean prompts\?$"):
        budcache.estimate(steps=28, budgets=8, promts=3)


@pytest.mark.parametrize("door", ["apply", "applied"])
def test_serving_refuses_an_option_that_is_not_there_with_the_nearest_name(pipe, door):
    before = pipe.scheduler
    with pytest.raises(PipelineError, match=rf"^{door} has no option 'budegt'\. Did you mean budget\?$"):
        getattr(budcache, door)(pipe, POLICY, budegt=3)
    assert pipe.scheduler is before
    with budcache.applied(pipe, policy=POLICY, budget=3) as handle:
        assert handle.policy == POLICY


NOT_WHOLE = {
    "text": ("budgets", "4-12", "'4-12'"),
    "one digit": ("budgets", "8", "'8'"),
    "texts": ("budgets", ["4", "8"], "'4'"),
    "a float": ("budgets", 4.0, "4.0"),
    "floats": ("budgets", [4.0], "4.0"),
    "true": ("budgets", True, "True"),
    "trues": ("budgets", [True, 4], "True"),
    "nothing": ("budgets", None, "None"),
    "an array": ("budgets", np.array([[2, 4]]), "array"),
    "half a step": ("steps", 6.0, "6.0"),
    "steps as text": ("steps", "6", "'6'"),
    "true steps": ("steps", True, "True"),
    "a teacher as text": ("teacher_steps", "12", "'12'"),
    "a teacher of halves": ("teacher_steps", 12.0, "12.0"),
    "a batch of halves": ("batch", 1.0, "1.0"),
}


@pytest.mark.parametrize("case", NOT_WHOLE)
@pytest.mark.parametrize("job", ["search", "compare", "estimate"])
def test_a_number_that_is_not_whole_is_refused_in_a_sentence(pipe, tmp_path, job, case):
    option, value, quoted = NOT_WHOLE[case]
    call = {"steps": 6, "budgets": [2], "prompts": 2 if job == "estimate" else ["a", "b"], option: value}
    if option not in inspect.signature(getattr(budcache, job)).parameters:
        pytest.skip(f"{job} has no {option}")
    more = {"folder": tmp_path, "methods": ["uniform"]} if job == "compare" else {}
    says = rf"^{option} must be whole, but {re.escape(quoted)}.* is not a whole number\. Give "
    with pytest.raises(SearchError, match=says) as refused:
        getattr(budcache, job)(*[] if job == "estimate" else [pipe], **call, **more)
    assert str(refused.value).isprintable()


def test_whole_numbers_of_numpy_are_whole_numbers(pipe, tmp_path):
    def search(number, several, ledger):
        options = {"teacher_steps": number(12), "batch": number(1), "ledger": tmp_path / ledger}
        return budcache.search(pipe, steps=number(6), budgets=several, prompts=["a", "b"], call=SHARED, **options)

    ladder = search(np.int64, np.array([4, 2]), "numpy")
    assert ladder.budgets == (2, 4) and ladder[2].origin.teacher_steps == 12
    assert search(int, [2, 4], "plain") == ladder
    assert (tmp_path / "numpy").read_text() == (tmp_path / "plain").read_text()
    assert budcache.estimate(steps=np.int32(6), budgets=np.array(2), prompts=2).sample_calls > 0


# Arguments of the pipeline


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("place", ["call", "samples", "one sample"])
def test_an_argument_that_the_pipeline_does_not_take_is_refused_before_it_runs(pipe, job, place):
    prompts = [{"prompt": "a"}, {"prompt": "b"}]
    given = {
        "call": {"call": {**SHARED, "hight": 32}},
        "samples": {"prompts": (), "samples": [{**each, "hight": 32} for each in prompts], "call": SHARED},
        "one sample": {"prompts": (), "samples": [prompts[0], {**prompts[1], "hight": 32}], "call": SHARED},
    }[place]
    says = r"^FluxPipeline takes no argument 'hight'\. Did you mean height\?$"
    with counted(FLUX, pipe) as heard, pytest.raises(PipelineError, match=says):
        JOBS[job](pipe, **given)
    assert heard == []


@pytest.mark.parametrize(
    ("job", "says"),
    [("search", "Give steps= instead"), ("fit", "Leave it out"), ("align", "Leave it out")],
)
def test_the_number_of_steps_is_not_for_a_sample_to_say(pipe, job, says):
    with counted(FLUX, pipe) as heard, pytest.raises(PipelineError, match=rf"^num_inference_steps is what .*{says}\.$"):
        JOBS[job](pipe, call={**SHARED, "num_inference_steps": 50})
    assert heard == []


def test_a_name_like_none_there_is_is_answered_with_all_of_them(pipe):
    with pytest.raises(PipelineError, match=r"'zzz'\. Choose one of prompt, prompt_2, .*max_sequence_length\.$"):
        budcache.search(pipe, steps=6, budgets=2, prompts=["a"], call={"zzz": 1})


def test_modular_pipelines_are_asked_for_the_inputs_of_their_blocks():
    kind = entry("modular-flux")
    pipe = kind.build()
    with counted(kind, pipe) as heard, pytest.raises(PipelineError, match=r"takes no argument 'hight'\. .* height\?$"):
        budcache.search(pipe, steps=6, budgets=2, prompts=["a"], call={"hight": 32})
    assert heard == []


def test_a_pipeline_that_takes_anything_is_given_anything():
    class Open(type(FLUX.build())):
        def __call__(self, *, ours=None, **anything):
            return super().__call__(**anything)

    pipe = Open(**FLUX.build().components)
    from budcache.jobs.setup import check_call

    check_call(pipe, [{"whatever": 1}], "search")
    with pytest.raises(PipelineError, match="num_inference_steps"):
        check_call(pipe, [{"num_inference_steps": 1}], "search")
