"""The headline and the line below it: true whoever wins, by whichever metric, at a budget fixed beforehand."""

from __future__ import annotations

import re

import pytest
from comparisons import CLIP, LPIPS, PSNR, STEPS, comparison

from budcache.comparison import best_other, headline
from budcache.comparison.verdict import main_budget, why_this_budget


@pytest.mark.parametrize(
    ("budgets", "says"),
    [
        ((3,), ""),
        ((3, 4, 5), "Shown at 4 calls, the middle one of 3, 4 and 5, which was fixed before the results."),
        (
            (3, 4, 5, 6),
            "Shown at 5 calls, the larger of the two in the middle of 3, 4, 5 and 6, which was fixed before",
        ),
    ],
)
def test_it_says_why_it_puts_a_budget_forward(budgets, says):
    found = why_this_budget(comparison(budgets=budgets))
    assert found.startswith(says) and bool(found) == bool(says)


@pytest.mark.parametrize(
    ("theirs", "says"),
    [
        (lambda number: 51.0 + number, " At 3 calls uniform is better."),
        (lambda number: 50.0 + number + (2 if number % 2 else -2.5), " At 3 calls the lead over uniform is undecided."),
        (
            lambda number: 50.0 + number + (3 if number % 2 else -1.0),
            " At 3 calls it is undecided whether uniform is better.",
        ),
        (lambda number: 40.0 + number, "fixed before the results."),
    ],
    ids=["behind", "undecided", "undecided and behind", "ahead"],
)
def test_it_says_at_which_other_budgets_ours_is_not_ahead(theirs, says):
    found = comparison(methods=("uniform", "budcache"), budgets=(3, 5))
    values = {"uniform": theirs, "budcache": lambda number: 50.0 + number}
    entries = tuple(
        each.model_copy(
            update={"values": {**each.values, "psnr": tuple(map(values[each.method], range(len(found.prompts))))}}
        )
        if each.method in values and each.budget == 3
        else each
        for each in found.entries
    )
    told = why_this_budget(found.model_copy(update={"entries": entries}))
    assert says in told and told.endswith(".") and ("At 3" in told) == ("At 3" in says)


def test_it_names_who_is_not_behind_at_the_budget_put_forward_beside_the_one_in_the_headline():
    """The best of the others by the mean is told there; another one's lead may be less certain."""
    found = comparison(methods=("uniform", "lemica", "budcache"), budgets=(3, 5))
    ours = [30.0, 31.0, 32.0]
    values = {"budcache": ours, "uniform": [each - 1 for each in ours], "lemica": [10.0, 60.0, 10.0]}
    entries = tuple(
        each.model_copy(update={"values": {**each.values, "psnr": tuple(values[each.method])}})
        if each.method in values and each.budget == 5
        else each
        for each in found.entries
    )
    found = found.model_copy(update={"entries": entries})
    assert main_budget(found) == 5
    assert "(uniform)" in headline(found)
    assert "At 5 calls the lead over lemica is undecided." in why_this_budget(found)
    assert "over uniform" not in why_this_budget(found)


def test_the_budget_put_forward_is_one_that_ours_has():
    found = comparison(budgets=(3, 4, 5, 6, 7))
    lacking = found.model_copy(
        update={"entries": tuple(e for e in found.entries if e.method != "budcache" or e.budget in (3, 4, 7))}
    )
    assert (main_budget(found), main_budget(lacking)) == (5, 4)
    without = found.model_copy(update={"entries": tuple(e for e in found.entries if e.method != "budcache")})
    assert main_budget(without) == 5 and why_this_budget(without) == ""


def test_another_policy_of_ours_is_not_the_best_of_the_others():
    found = comparison(methods=("uniform", "policy:budcache, careful", "policy:somebody's", "budcache"))
    titled = [e.model_copy(update={"title": e.title.removeprefix("policy:")}) for e in found.entries]
    found = found.model_copy(update={"entries": tuple(titled)})
    means = {e.method: e.summed(PSNR).mean for e in found.at(5) if "budcache" not in e.method}
    assert best_other(found, 5, PSNR).method == max(means, key=means.get)
    assert len(means) == 2
    brought = comparison(methods=("uniform", "policy:mine", "policy:budcache.json"))
    brought = brought.model_copy(
        update={
            "entries": tuple(e.model_copy(update={"title": e.title.removeprefix("policy:")}) for e in brought.entries)
        }
    )
    (rival,) = (e for e in brought.at(5) if e.method == "policy:budcache.json")
    raised = {name: tuple(value + 100 for value in row) for name, row in rival.values.items()}
    entries = (e if e != rival else rival.model_copy(update={"values": raised}) for e in brought.entries)
    brought = brought.model_copy(update={"entries": tuple(entries)})
    assert brought.ours == "policy:mine"
    assert best_other(brought, 5, PSNR).method == rival.method, "where budcache has not searched, a name is only a name"


def test_the_headline_is_true_whoever_wins():
    def titled(better):
        found = comparison(methods=("uniform", "budcache"))
        entries = [
            entry.model_copy(update={"values": {**entry.values, "psnr": tuple(value + better for value in row)}})
            if entry.method == "budcache" and (row := entry.values["psnr"])
            else entry
            for entry in found.entries
        ]
        return headline(found.model_copy(update={"entries": tuple(entries)}))

    assert re.search(
        r"With 5 instead of 12 model calls, budcache stays at PSNR \d\d\.\d ± \d\.\d dB to the full run: \d", titled(0)
    )
    assert " dB closer than the best of the others shown (uniform), on 3 prompts." in titled(0)
    assert " dB further away than the best of the others shown (uniform)" in titled(-20)
    assert "undecided" not in titled(0) + titled(-20)


def test_the_headline_speaks_of_the_full_run_only_where_it_compares_with_it():
    found = comparison(methods=("uniform", "budcache")).model_copy(update={"measures": (CLIP,)})
    said = headline(found)
    assert "budcache reaches CLIP (B) " in said and "the full run" not in said
    assert re.search(r": \d\.\d+ ± \d\.\d+ (better|worse) than the best of the others shown \(uniform\)", said)
    lower = comparison(methods=("uniform", "budcache")).model_copy(update={"measures": (LPIPS,)})
    assert re.search(r"stays at LPIPS 0\.\d+ ± 0\.\d+ to the full run: 0\.\d+ ± 0\.\d+ closer than", headline(lower))


def test_the_headline_says_how_much_faster_where_that_is_known():
    found = comparison(methods=("uniform", "budcache"))
    assert "times faster" not in headline(found)
    pairs = {"full_seconds": (1.0,) * 25, "full_calls": (STEPS,) * 25, "timed_seconds": (0.5,) * 25}
    entries = [e.model_copy(update={**pairs, "timed_calls": (e.budget,) * 25}) for e in found.entries[1:]]
    known = found.model_copy(update={"entries": (found.full, *entries)})
    assert headline(known).startswith("With 5 instead of 12 model calls, 2.0 times faster, budcache stays at PSNR")
    alone = [each for each in known.entries if each.method in ("full", "budcache")]
    assert headline(known.model_copy(update={"entries": tuple(alone)})).endswith(" dB to the full run.")


def test_the_headline_says_so_where_a_better_one_took_more_calls():
    def titled(theirs):
        found = comparison(methods=("uniform", "teacache", "budcache"))
        entries = [
            entry.model_copy(update={"values": {"psnr": (theirs,) * 3}}) if entry.method == "teacache" else entry
            for entry in found.entries
        ]
        return headline(found.model_copy(update={"entries": tuple(entries)}))

    assert "best of the others shown (uniform)" in titled(10.0)
    assert "best of the others shown that kept to the budget (uniform)" in titled(99.0)


def test_a_bound_is_said_as_one():
    """Pairs of runs told a little more than 5 of 12 calls allow."""
    found = comparison(methods=("uniform", "budcache"), budgets=(5,))
    pairs = {"full_seconds": (2.41,) * 25, "full_calls": (12,) * 25, "timed_seconds": (1.0,) * 25}
    entries = [
        each.model_copy(update={**pairs, "timed_calls": (5,) * 25}) if each.method == "budcache" else each
        for each in found.entries
    ]
    said = headline(found.model_copy(update={"entries": tuple(entries)}))
    assert "at most 2.4 times faster" in said
