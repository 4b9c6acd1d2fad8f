"""Rounds of a climb: 0 makes no move and None knows no limit, in Python and on the command line."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from budcache import Mask, SearchError, estimate
from budcache.cli.search import parse_rounds
from budcache.jobs.config import SearchConfig
from budcache.strategies import Polished, Space, drive, read_history
from budcache.testing import toy_score

STEPS, START = 10, Mask.parse("1111000000")


def climbed(rounds):
    """The masks that a climb scores, and where it ends."""
    score = toy_score(STEPS)
    plan = Polished(None, (START,), 1, rounds)
    found = drive(plan, lambda ask: map(score, ask.masks), steps=STEPS, budgets=[START.budget])
    return list(found.scores), found.best(START.budget)[0]


def test_no_rounds_make_no_move():
    assert climbed(0) == ([START], START)


def test_each_round_is_one_move_and_without_a_limit_they_go_to_the_top():
    score, ends = toy_score(STEPS), [climbed(rounds)[1] for rounds in range(12)]
    moves = [len(set(one.computed) - set(other.computed)) for one, other in pairwise(ends)]
    assert set(moves) == {0, 1}
    assert moves == sorted(moves, reverse=True)  # once there is nothing better it stays
    top = climbed(None)[1]
    assert top == ends[-1] != ends[1]
    assert all(score(near).loss >= score(top).loss for near in Space(STEPS, START.budget).neighbours(top, 1))


@pytest.mark.parametrize(("text", "rounds"), [("0", 0), ("3", 3), (" 12 ", 12), ("all", None), (" all ", None)])
def test_rounds_are_read(text, rounds):
    assert parse_rounds(text) == rounds


@pytest.mark.parametrize("text", ["-1", "1.5", "none", "", "ALL of them", "9" * 10, "1e3", "²"])
def test_what_are_no_rounds_is_refused(text):
    with pytest.raises(SearchError, match=r"--rounds .* cannot be read\. Write a number, or all\.") as caught:
        parse_rounds(text)
    assert "\n" not in str(caught.value)


def test_a_negative_number_is_refused_in_python_too():
    with pytest.raises(SearchError, match="rounds of at least 0, got 2 and -1"):
        SearchConfig(STEPS, (4,), polish=2, rounds=-1)


def planned(run_here, *rounds):
    """What the command line will spend."""
    given = (
        "search",
        "tiny-flux",
        "--budgets",
        "3-5",
        "--steps",
        STEPS,
        "--strategy",
        "paths",
        "--count",
        8,
        "--polish",
        2,
        "--refine",
        "none",
    )
    code, output, _ = run_here(*given, *rounds, "--dry-run", "--json")
    assert code == 0
    return json.loads(output)["sample_calls"]


def test_the_command_line_means_what_python_means(run_here):
    def cost(rounds, polish=2):
        return estimate(
            steps=STEPS, budgets=range(3, 6), prompts=8, polish=polish, rounds=rounds, refine="none", strategy="paths"
        ).sample_calls

    assert planned(run_here, "--rounds", 0) == cost(0) == cost(3, polish=0)
    assert planned(run_here) == planned(run_here, "--rounds", 3) == cost(3)
    assert planned(run_here, "--rounds", "all") == cost(None)
    assert cost(0) < cost(1) < cost(3) <= cost(None)


def test_the_command_line_refuses_with_a_sentence(run_here):
    code, _, errors = run_here("search", "tiny-flux", "--budgets", 3, "--rounds", "-1", "--dry-run")
    assert code != 0
    assert "--rounds '-1' cannot be read. Write a number, or all." in errors


@pytest.mark.parametrize(("rounds", "moves"), [("0", False), ("all", True)])
def test_the_command_line_climbs_as_it_was_told(run_here, tmp_path, rounds, moves):
    out = tmp_path / "ladder.json"
    given = ("search", "tiny-flux", "--budgets", 2, "--steps", 4, "--count", 1, "--selection", 0, "--out", out)
    code, _, errors = run_here(
        *given, "--strategy", "uniform", "--refine", "none", "--polish", 3, "--rounds", rounds, "--json"
    )
    assert code == 0, errors
    scored = [str(step.mask) for step in read_history(tmp_path / "ladder.ledger.jsonl")]
    assert scored == (["1010", "1100", "1001"] if moves else ["1010"])
