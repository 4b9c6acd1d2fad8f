"""The driver: scores what a strategy asks for, each mask once, until it is done or a limit is reached."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budcache import SearchError
from budcache.calibration.score import Score
from budcache.strategies import Ask, Exhaustive, Limits, Space, Uniform, drive
from budcache.strategies.strategy import Found
from budcache.testing import toy_score

STEPS = 5
POOL = list(Space(STEPS, 3))
asks = st.lists(st.lists(st.sampled_from(POOL), max_size=8), min_size=1, max_size=6)


class Script:
    """Asks what it is told to ask, and remembers what it was answered."""

    def __init__(self, *asks):
        self.asks, self.answers, self.closed = [Ask(tuple(masks), "script") for masks in asks], [], False

    def propose(self, steps, budgets, rng):
        try:
            for ask in self.asks:
                self.answers.append((yield ask))
        finally:
            self.closed = True

    def expected(self, steps, budgets):
        return len({mask for ask in self.asks for mask in ask.masks})


class Scoring:
    """A scoring function that remembers what it was asked, and what it really scored."""

    def __init__(self, cost=1):
        self.score, self.asked, self.scored, self.cost = toy_score(STEPS), [], [], cost

    def __call__(self, ask):
        self.asked.append(ask)
        return map(self.one, ask.masks)

    def one(self, mask):
        self.scored.append(mask)
        return self.score(mask)

    @property
    def calls(self):
        return self.cost * len(self.scored)


def run(script, scoring, **more):
    return drive(script, scoring, steps=STEPS, budgets=[3], **more)


@given(asks)
def test_every_mask_is_scored_once_and_every_ask_is_answered_in_its_order(given):
    """Also where one ask names a mask twice, or one that an earlier ask has named."""
    script, scoring = Script(*given), Scoring()
    found = run(script, scoring)
    named = [mask for masks in given for mask in masks]
    assert scoring.scored == list(dict.fromkeys(named))
    assert script.answers == [tuple(map(toy_score(STEPS), masks)) for masks in given]
    assert [step.mask for step in found.history] == named
    assert [step.mask for step in found.history if step.new] == scoring.scored == list(found.scores)
    assert script.closed and found.stopped is None


@given(asks)
def test_only_what_is_unknown_is_handed_on(given):
    """All of an ask at once, so that it can be scored side by side."""
    scoring, known = Scoring(), set()
    run(Script(*given), scoring)
    for masks, ask in zip(given, scoring.asked, strict=True):
        fresh = [mask for mask in dict.fromkeys(masks) if mask not in known]
        assert ask == Ask(tuple(fresh), "script")
        known.update(fresh)


@given(asks, st.integers(0, 12))
def test_a_limit_stops_in_the_middle_of_an_ask(given, limit):
    """Nothing is scored beyond it, and what the ask has found so far is kept."""
    for limits in (Limits(evaluations=limit), Limits(calls=7 * limit)):
        script, scoring = Script(*given), Scoring(cost=7)
        found = run(script, scoring, limits=limits, calls=lambda scoring=scoring: scoring.calls)
        whole = run(Script(*given), Scoring(cost=7))
        assert len(scoring.scored) == len(found.scores) == min(limit, len(whole.scores))
        assert [step.mask for step in found.history] == [step.mask for step in whole.history[: len(found.history)]]
        assert (found.stopped is None) == (limit >= len(whole.scores))
        # Whatever was known already is still told; the first mask that is not is where it ends.
        if found.stopped:
            assert whole.history[len(found.history)].new
        assert script.closed


def test_limits_name_themselves():
    scoring = Scoring()
    found = run(Script(POOL), scoring, limits=Limits(calls=5), calls=lambda: scoring.calls)
    assert (found.stopped, len(found.scores)) == ("calls limit of 5", 5)
    assert run(Script(POOL), Scoring(), limits=Limits(evaluations=2)).stopped == "evaluations limit of 2"
    found = run(Script(POOL), Scoring(), limits=Limits(seconds=0))
    assert (found.stopped, found.history) == ("seconds limit of 0", [])
    assert run(Uniform(), Scoring(), limits=Limits(9, 99, 9)).stopped is None


def test_limits_hold_for_searches_that_follow_each_other():
    limits = Limits(calls=9, seconds=60, evaluations=4).after(10.0, 3)
    assert limits.spent == (10.0, 3)
    found = run(Script(POOL), Scoring(), limits=limits)
    assert (found.stopped, len(found.scores)) == ("evaluations limit of 4", 1)
    assert limits.after(1.0, 1).reached(0, 0, 0) == "evaluations limit of 4"
    assert limits.reached(9, 0, 0) == "calls limit of 9"  # counted over both by whoever counts them
    assert limits.reached(0, 50, 0) == "seconds limit of 60"
    assert limits.reached(8, 49, 0) is None


def test_what_a_mask_has_cost_is_told_when_it_has_been_scored():
    scoring, seen = Scoring(cost=3), []
    found = run(Script(POOL[:2], POOL[:3]), scoring, calls=lambda: scoring.calls, watch=lambda step: seen.append(step))
    assert seen == found.history
    assert [(step.sample_calls, step.new) for step in seen] == [(3, True), (6, True), (6, False), (6, False), (9, True)]
    assert [step.loss for step in seen] == [toy_score(STEPS)(step.mask).loss for step in seen]
    assert {(step.phase, step.job) for step in seen} == {("script", "search")}


def test_it_is_watched_while_it_goes_on():
    """Each event comes before the next mask is scored."""
    scoring, counts = Scoring(), []
    run(Script(POOL), scoring, watch=lambda step: counts.append(len(scoring.scored)))
    assert counts == list(range(1, len(POOL) + 1))


def test_a_scoring_function_that_answers_too_little_is_not_taken_for_the_end():
    with pytest.raises((StopIteration, RuntimeError)):
        run(Script(POOL), lambda ask: iter([toy_score(STEPS)(POOL[0])]))


def test_an_error_of_the_scoring_function_ends_the_strategy():
    def fail(ask):
        yield toy_score(STEPS)(ask.masks[0])
        raise SearchError("no more")

    script = Script(POOL)
    with pytest.raises(SearchError, match="no more"):
        run(script, fail)
    assert script.closed


def test_the_first_of_equals_is_the_best():
    found = drive(Exhaustive(), lambda ask: (Score((1.0,)) for _ in ask.masks), steps=6, budgets=[3])
    assert found.best(3, 4) == list(Space(6, 3))[:4]
    assert found.best(2) == Found().best(3) == []


def test_the_best_are_in_order_and_of_the_budget():
    found = drive(Exhaustive(), Scoring(), steps=STEPS, budgets=[2, 3])
    losses = sorted(toy_score(STEPS)(mask).loss for mask in Space(STEPS, 3))
    assert [found.scores[mask].loss for mask in found.best(3, 4)] == losses[:4]


def test_budgets_are_handed_on_in_order_and_once():
    seen = []

    class Asked(Uniform):
        def propose(self, steps, budgets, rng):
            seen.append((steps, budgets, rng.random()))
            return super().propose(steps, budgets, rng)

    for seed in (3, 3, 4):
        drive(Asked(), Scoring(), steps=STEPS, budgets=[4, 2, 4], seed=seed)
    assert [(steps, budgets) for steps, budgets, _ in seen] == [(STEPS, (2, 4))] * 3
    assert seen[0] == seen[1] != seen[2]


@pytest.mark.parametrize("budgets", [[], [0], [9], [-1, 3]])
def test_what_cannot_be_is_refused(budgets):
    with pytest.raises(SearchError, match="budget"):
        drive(Uniform(), Scoring(), steps=STEPS, budgets=budgets)


def test_one_mask_is_an_ask_too():
    assert Ask.one(POOL[0], "start") == Ask((POOL[0],), "start")
    assert run(Script(()), Scoring()).history == []
