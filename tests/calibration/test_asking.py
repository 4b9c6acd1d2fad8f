"""Asking runs: lines of thought that go side by side end as they do one by one."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import STEPS, Toy

from budcache import Mask
from budcache.calibration.asking import together
from budcache.calibration.calibration import Calibration
from budcache.calibration.scoring import PlainScorer
from budcache.refine.fit import FittedScorer

masks = st.text("01", min_size=STEPS - 1, max_size=STEPS - 1).map(lambda rest: Mask.parse("1" + rest))


class Roomy(Calibration):
    """Lets several masks go side by side, as workers do, and counts what it is asked."""

    asked = 0

    def room(self, scope, budget):
        return 3

    def ask(self, questions):
        self.asked += len(questions)
        assert len(set(questions)) == len(questions) <= 3
        return super().ask(questions)


@pytest.mark.parametrize("scorer", [PlainScorer, FittedScorer])
@settings(max_examples=10)
@given(asked=st.lists(masks, min_size=1, max_size=7))
def test_scores_and_calls_are_the_same_side_by_side(scorer, asked):
    found = []
    for kind in (Calibration, Roomy):
        known = kind([Toy(0, 2), Toy(1, 1)])
        found.append((list(scorer(known, memory=10**9).score_many(asked)), known.calls))
    assert found[0] == found[1]


def test_whoever_may_stop_goes_one_by_one():
    known = Roomy([Toy(0)])
    scores = PlainScorer(known).score_many([Mask.uniform(STEPS, budget) for budget in (2, 3, 4)], one_by_one=True)
    next(scores)
    assert known.asked == 1


class Double:
    """A question that every run answers with twice its number."""

    def answer(self, known, number):
        return 2 * number


def test_a_thought_is_sent_what_all_runs_answer():
    def thought(name, questions):
        heard = []
        for _ in range(questions):
            heard.append((yield Double()))
        return name, heard

    known = Calibration([Toy(seed) for seed in range(3)])
    ends = list(together(known, (thought(name, count) for name, count in (("a", 2), ("b", 0), ("c", 1))), 3))
    assert ends == [("a", [[0, 2, 4]] * 2), ("b", []), ("c", [[0, 2, 4]])]


def test_what_is_found_comes_in_order_as_soon_as_it_is_known():
    """Whoever writes it down should not lose it to what happens while the others go on."""

    def thought(name, questions):
        for number in range(questions):
            yield Numbered(number)
        return name

    known = Roomy([Toy(0)])
    ends = together(known, (thought(name, count) for name, count in (("a", 1), ("b", 3), ("c", 2))), 3)
    assert [(name, known.asked) for name in ends] == [("a", 1), ("b", 3), ("c", 3)]


@dataclass(frozen=True)
class Numbered(Double):
    """One of several questions; the same number is the same question."""

    which: int


def test_a_run_that_is_added_is_asked_too():
    known = Calibration([Toy(0)])
    scorer, mask = PlainScorer(known, memory=10**9), Mask.uniform(STEPS, 3)
    alone = scorer.score(mask).losses
    known.add(Toy(1, 2))
    both = scorer.score(mask).losses
    assert both[:1] == alone
    assert both == PlainScorer(Calibration([Toy(0), Toy(1, 2)])).score(mask).losses
    assert known.samples == 3
