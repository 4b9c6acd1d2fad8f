"""Searches and comparisons as jobs: what the fields mean, what comes of them, and going on after a stop."""

from __future__ import annotations

import json
import threading

import pytest

from budcache.errors import FileError
from budcache.policy import Ladder, Policy
from budcache.strategies import read_history
from budcache.studio import comparing, searching
from budcache.studio.fields import OWN, TEXT, UPLOAD
from budcache.studio.panel import panel, state_of

PROMPTS = "red apple\nblue car\ngreen tree\nyellow house"


def asked(studio, **fields):
    values = {"source": TEXT, "text": PROMPTS, "file": None, "count": 0, "steps": 6, "budgets": "2,3", "minutes": 0}
    return searching.read(studio, *{**values, "refine": "fit", **fields}.values())


def test_a_search_is_the_search_of_python(make, until):
    from budcache import load, search

    studio = make()
    options, refused = asked(studio)
    assert refused == {}
    told = searching.cost(studio, options)
    assert told.startswith("4 prompts, about ") and told.endswith("; all 15 masks of 2, 3 of 6 calls are tried.")
    limited = searching.cost(studio, {**options, "minutes": 5})  # a limit might end before the last mask
    assert limited.endswith("are weighed by the full runs, and the likeliest are tried.")
    job = studio.runner.submit("search", searching.title(options), options)
    until(lambda: job.is_over)
    assert (job.state, job.error) == ("done", "")
    found = studio.project.ladder("search-1")
    expected = search(load("tiny-flux"), steps=6, budgets=[2, 3], prompts=PROMPTS.split("\n"), batch=8, progress=False)
    assert [rung.moving_parts for rung in found] == [rung.moving_parts for rung in expected]
    assert set(job.told.rungs) == {2, 3}
    html = panel(studio, job)
    assert "2, 3 of 6 calls, 4 prompts" in html
    assert "expect clearly less on new ones" in html  # four prompts are too few to put some aside
    assert studio.ladders[0] == "search-1"


def test_a_stopped_search_goes_on_from_its_ledger(make, until):
    studio = make()
    options, _ = asked(studio, budgets="2-4")
    job = studio.runner.submit("search", "one", options)
    until(lambda: job.told.tried)
    studio.runner.stop(job)
    until(lambda: job.state == "stopped")
    known = {step.mask for step in read_history(studio.project.ledger(job.id))}
    assert known
    studio.close()
    again = make()
    job = again.runner.job("search-1")
    assert "resume it to go on" in panel(again, job)
    assert f"{job.sample_calls:,} sample-calls spent in " in panel(again, job)
    assert job.sample_calls > 0
    assert set().union(*job.told.tried.values()) == known  # what the ledger knows is shown before it goes on
    again.runner.resume(job)
    until(lambda: job.is_over)
    assert job.state == "done"
    assert again.project.ladder("search-1").budgets == (2, 3, 4)
    history = read_history(again.project.ledger(job.id))
    assert len({(step.mask, step.phase) for step in history}) == len(history)  # nothing was scored twice
    tried = len({step.mask for step in history})
    assert f"{tried} masks tried" in panel(again, job)  # and nothing is counted twice


def test_a_search_at_other_settings_is_that_of_python(make, until):
    from budcache import load, search

    studio = make(call={"height": 32, "width": 32})
    fields = {"text": "red apple\nblue car", "budgets": "2", "refine": "none"}
    options, refused = asked(studio, **fields, height=None, width=48, frames=None, guidance=2)
    assert (refused, options["call"]) == ({}, {"width": 48, "guidance_scale": 2.0})
    assert searching.title(options) == "2 of 6 calls, 2 prompts, width 48, guidance 2"
    job = studio.runner.submit("search", searching.title(options), options)
    until(lambda: job.is_over)
    assert (job.state, job.error) == ("done", "")
    call = {"height": 32, "width": 48, "guidance_scale": 2.0}
    wanted = {"steps": 6, "budgets": [2], "prompts": ["red apple", "blue car"], "batch": 8, "refine": "none"}
    expected = search(load("tiny-flux"), **wanted, call=call, progress=False)
    found = studio.project.ladder(job.id)
    assert [rung.moving_parts for rung in found] == [rung.moving_parts for rung in expected]
    assert (found[2].origin.height, found[2].origin.width, found[2].origin.guidance) == (32, 48, 2.0)


def test_minutes_end_a_search_early_and_the_note_says_so(make, until):
    studio = make()
    options, _ = asked(studio, minutes=1e-6)
    job = studio.runner.submit("search", "one", options)
    until(lambda: job.is_over)
    assert job.state == "done"
    assert any("seconds limit" in note for note in job.notes)


def test_a_pause_is_no_time_spent():
    from budcache.studio.runner import Clock

    clock = Clock()
    limits = searching.Worked(seconds=10, clock=clock)
    assert limits.reached(0, 11, 0) == "seconds limit of 10"
    clock.paused = 5
    assert limits.reached(0, 11, 0) is None
    assert limits.after(3, 0).reached(0, 13, 0) == "seconds limit of 10"


@pytest.mark.parametrize(
    ("fields", "field", "sentence"),
    [
        ({"text": ""}, "prompts", "there are no prompts"),
        ({"text": "red apple"}, "prompts", "one prompt says nothing of others"),
        ({"source": UPLOAD}, "prompts", "no file was chosen"),
        ({"budgets": "many"}, "budgets", "'many' cannot be read"),
        ({"budgets": "4-12"}, "budgets", "does not fit 6 steps"),
        ({"steps": None}, "steps", "whole number"),
        ({"minutes": -3}, "minutes", "-3 minutes cannot be spent"),
        ({"count": -1}, "prompts", "how many prompts is -1. Give 0 or more"),
        ({"height": -8, "width": None, "frames": None, "guidance": None}, "settings", "the height is -8"),
    ],
)
def test_a_refused_field_says_why(fields, field, sentence, make):
    _, refused = asked(make(start=False), **fields)
    assert list(refused) == [field]
    assert sentence in refused[field]


def test_as_many_prompts_as_there_are_will_do(make):
    options, refused = asked(make(start=False), count=9)
    assert (options["prompts"], refused) == (PROMPTS.split("\n"), {})


def test_a_bad_prompt_file_is_refused_by_its_name_and_not_by_where_it_lies(make, tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps({"prompt": "red apple"}) + "\nnonsense\n")
    _, refused = asked(make(start=False), source=UPLOAD, file=str(path))
    assert refused["prompts"].startswith("line 2 of mine.jsonl is not JSON")
    path.write_text("\n".join(json.dumps({"prompt": text}) for text in PROMPTS.split("\n")))
    options, refused = asked(make(folder=tmp_path / "other", start=False), source=UPLOAD, file=str(path))
    assert (options["prompts"], refused) == (PROMPTS.split("\n"), {})


def test_a_comparison_grows_into_a_report(make, until):
    studio = make()
    values = [TEXT, PROMPTS, None, 0, 6, "3", ["fewer-steps", "uniform"], [], False]
    options, refused = comparing.read(studio, *values, 32, 32, None, 2)
    assert refused == {}
    assert (options["calibration"], len(options["prompts"])) == ([], 4)
    assert comparing.cost(studio, options).startswith("4 prompts, about ")
    job = studio.runner.submit("compare", comparing.title(options), options)
    page = studio.project.comparison(job.id) / "comparison.html"
    until(page.exists)
    assert not job.is_over  # there before the last row
    first = page.read_text()
    until(lambda: job.is_over)
    assert job.state == "done", job.error
    assert "fewer steps" in first
    assert "uniform mask" in page.read_text()
    assert set(job.told.entries) == {("full", 6), ("fewer-steps", 3), ("uniform", 3)}
    assert "Finished: " in panel(studio, job)
    told = json.loads((page.parent / "comparison.json").read_text())
    assert '"height": 32' in json.dumps(told)


def test_who_waits_is_told_for_what(make, until):
    studio = make()
    first, second = (studio.runner.submit("search", "one", asked(studio)[0]) for _ in range(2))
    until(lambda: first.state == "running")
    studio.runner.pause(first)
    assert "Waits for search-1: there is one model" in panel(studio, second)
    assert state_of(studio).startswith("search-1 paused")
    assert state_of(studio).endswith("; 1 job waiting")
    for job in (second, first):
        studio.runner.stop(job)
    until(lambda: first.state == second.state == "stopped")


def test_methods_that_learn_have_prompts_of_their_own(make):
    studio = make(start=False)
    options, _ = comparing.read(studio, OWN, "", None, 2, 6, "3", ["budcache"], [], False)
    assert len(options["prompts"]) == 2
    assert not set(options["prompts"]) & set(options["calibration"])
    options, refused = comparing.read(studio, TEXT, PROMPTS, None, 0, 6, "3", ["budcache"], [], False)
    assert (len(options["calibration"]), len(options["prompts"]), refused) == (2, 2, {})
    _, refused = comparing.read(studio, TEXT, "a\nb", None, 0, 6, "3", ["budcache"], [], False)
    assert "Write three at least" in refused["prompts"]
    _, refused = comparing.read(studio, TEXT, PROMPTS, None, 0, 6, "3", [], [], False)
    assert "nothing to compare" in refused["methods"]


def test_one_line_says_what_the_model_does(make, until):
    hold = threading.Event()

    def load():
        hold.wait()
        raise FileError("there is no such model. Name another.")

    studio = make(load)
    assert state_of(studio) == "loading tiny-flux"
    hold.set()
    until(lambda: state_of(studio) != "loading tiny-flux")
    assert state_of(studio) == "there is no such model. Name another."


def test_ladders_of_a_project_are_ordinary_files(make):
    studio = make(start=False)
    studio.project.keep("my/ladder", Ladder.of([Policy(mask="101010")]))
    assert list(studio.project.ladders) == ["my-ladder"]
    assert Ladder.load(studio.project.ladders["my-ladder"]) == studio.project.ladder("my-ladder")
    studio.project.ladders["my-ladder"].write_text("{")
    assert studio.project.ladder("my-ladder") is None
    (studio.project.path / "ladders" / ".my-ladder.tmp.json").write_text("{")  # as while it is being written
    assert list(studio.project.ladders) == ["my-ladder"]
    (studio.project.path / "find.json").write_text("{")
    assert studio.project.remembered("find") == {}
    assert studio.ladder("my-ladder").budgets  # the uniform one, so that the page goes on
