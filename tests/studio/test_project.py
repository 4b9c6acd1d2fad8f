"""A project never loses a ladder."""

from __future__ import annotations

import socket

from budcache.policy import Ladder, Policy
from budcache.studio.looking import Look

ONE, OTHER, THIRD = (Ladder.of([Policy(mask=mask)]) for mask in ("101010", "110100", "111000"))


def test_a_given_ladder_replaces_none(make):
    studio = make(policy=("mine", ONE), start=False)
    assert studio.policy == "mine"
    for given, name in ((OTHER, "mine-2"), (THIRD, "mine-3"), (OTHER, "mine-2"), (ONE, "mine")):
        studio.close()
        studio = make(policy=("mine", given), start=False)
        assert (studio.policy, studio.ladders[0]) == (name, name)  # what was given last comes first
    assert [studio.project.ladder(name) for name in ("mine", "mine-2", "mine-3")] == [ONE, OTHER, THIRD]


def test_a_file_that_cannot_be_read_is_not_replaced_either(make):
    studio = make(start=False)
    studio.project.keep("mine", ONE).write_text("{")
    assert studio.project.add("mine", OTHER) == "mine-2"
    assert (studio.project.path / "ladders" / "mine.json").read_text() == "{"


def test_a_search_does_not_take_the_name_of_a_given_ladder_nor_a_given_one_that_of_a_search(make):
    studio = make(policy=("search-1", ONE), start=False)  # as it is called when it was taken away from another project
    job = studio.runner.submit("search", "one", {})
    assert job.id == "search-2"
    studio.close()
    assert make(policy=("search-2", OTHER), start=False).policy == "search-2-2"  # what job search-2 finds has its name


def test_what_is_given_is_looked_at_first_whatever_was_looked_at_last(make):
    studio = make(policy=("mine", ONE), start=False)
    studio.project.remember("look", {"prompts": ["a"], "seed": 3, "ladder": "mine", "budget": 3})
    studio.close()
    last = Look.last(make(policy=("other", OTHER), start=False))
    assert (last.ladder, last.seed, last.prompts) == ("other", 3, ("a",))


def test_the_command_says_under_which_name_it_is_kept(run_here, tmp_path):
    for number, ladder in enumerate((ONE, OTHER)):
        ladder.save(tmp_path / str(number) / "mine.json")
    with socket.socket() as taken:  # so that the command ends where it would begin to listen
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ends = ("--no-open", "--port", taken.getsockname()[1], "--project", tmp_path / "project", "--policy")
        _, _, first = run_here("studio", *ends, tmp_path / "0" / "mine.json")
        _, _, second = run_here("studio", *ends, tmp_path / "1" / "mine.json")
    assert "kept beside it" not in first
    assert "the project has another ladder mine." in second
    assert "kept beside it, as mine-2." in second
    assert Ladder.load(tmp_path / "project" / "ladders" / "mine.json") == ONE
