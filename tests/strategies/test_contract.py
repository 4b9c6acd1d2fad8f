"""The contract for every strategy we ship, and strategies that break it."""

from __future__ import annotations

import math
import pickle
import random
from dataclasses import dataclass, field

import pytest

pytest.register_assert_rewrite("budcache.testing")

from budcache import Mask  # noqa: E402
from budcache.strategies import (  # noqa: E402
    STRATEGIES,
    Ask,
    Exhaustive,
    LadderSearch,
    Polished,
    RandomMasks,
    Space,
    drive,
)
from budcache.testing import StrategyContract, toy_score  # noqa: E402


@pytest.mark.parametrize("name", STRATEGIES)
class TestShipped(StrategyContract):
    @pytest.fixture(autouse=True)
    def _choose(self, name):
        self.strategy = STRATEGIES[name]

    def test_knows_its_name_after_a_journey(self, name):
        assert pickle.loads(pickle.dumps(self.strategy)) == self.strategy


class TestPolishedLadder(StrategyContract):
    strategy = Polished(LadderSearch(beam=2))


class TestPolishedToTheTop(StrategyContract):
    strategy = Polished(RandomMasks(3), window=8, rounds=None)


class TestUnpolished(StrategyContract):
    strategy = Polished(LadderSearch(), window=0)


class FromUniform(Polished):
    """A climb alone, from a start for every budget that is asked for."""

    def propose(self, steps, budgets, rng):
        starts = tuple(Mask.uniform(steps, budget) for budget in budgets)
        return Polished(None, starts, self.window, self.rounds).propose(steps, budgets, rng)


class TestPolishedStarts(StrategyContract):
    strategy = FromUniform()


class TestByMethod(StrategyContract):
    steps = 5
    budgets = (2, 4)

    def strategy(self):
        return Exhaustive()


class TestByClass(StrategyContract):
    strategy = Exhaustive


# What follows breaks the contract, each in one way.


@dataclass(frozen=True)
class Honest:
    """The base of the others; it breaks nothing."""

    def masks(self, steps, budgets, rng):
        for budget in budgets:
            for _ in range(4):
                yield Space(steps, budget).random(rng)

    def propose(self, steps, budgets, rng):
        for mask in self.masks(steps, budgets, rng):
            yield Ask(mask, "draw")

    def expected(self, steps, budgets):
        return 4 * len(budgets)


class TestHonest(StrategyContract):
    strategy = Honest()


class OtherLength(Honest):
    def masks(self, steps, budgets, rng):
        yield from super().masks(steps, budgets, rng)
        yield Mask.full(steps - 1 or 2)


class Spendthrift(Honest):
    def masks(self, steps, budgets, rng):
        yield from super().masks(steps, budgets, rng)
        yield Mask.full(steps)


class Nameless(Honest):
    def propose(self, steps, budgets, rng):
        for mask in self.masks(steps, budgets, rng):
            yield Ask(mask, " ")


class FirstBudgetOnly(Honest):
    def masks(self, steps, budgets, rng):
        return super().masks(steps, budgets[:1], rng)


class GlobalChance(Honest):
    def masks(self, steps, budgets, rng):
        return super().masks(steps, budgets, random)


class HashOrder(Honest):
    """Goes through a set of texts, whose order differs from process to process."""

    def masks(self, steps, budgets, rng):
        for budget in budgets:
            for text in {str(mask) for mask in Space(steps, budget)}:
                yield Mask.parse(text)

    def expected(self, steps, budgets):
        return None


@dataclass(frozen=True)
class Remembering(Honest):
    """What it asks depends on what was asked of it before."""

    asked: list[Mask] = field(default_factory=list)

    def masks(self, steps, budgets, rng):
        for mask in super().masks(steps, budgets, rng):
            if mask not in self.asked:
                self.asked.append(mask)
                yield mask


class Unstoppable(Honest):
    def propose(self, steps, budgets, rng):
        try:
            yield from super().propose(steps, budgets, rng)
        finally:
            yield Ask(Mask.uniform(steps, budgets[0]), "one more")


class Understated(Honest):
    def expected(self, steps, budgets):
        return 2


@pytest.mark.parametrize(
    ("broken", "test", "says"),
    [
        (OtherLength(), "asks_only_for_masks_of_the_space", "longer than argument 1"),  # by the toy itself
        (Spendthrift(), "asks_only_for_masks_of_the_space", "costs more than any budget allows"),
        (Nameless(), "names_its_phases", "strip"),
        (FirstBudgetOnly(), "answers_every_budget_exactly", "not enough values to unpack"),
        (FirstBudgetOnly(), "all_budgets_at_once_work", "there is no mask of budget 2"),
        (GlobalChance(), "chance_comes_only_from_the_seed", "the global generator was used"),
        (GlobalChance(), "the_same_seed_gives_the_same_history", "Evaluated.* == .*Evaluated"),
        (HashOrder(), "the_same_seed_gives_the_same_history_in_a_fresh_process", "== "),
        (Remembering(), "the_same_seed_gives_the_same_history", r"== \[\]"),
        (Remembering(), "searches_side_by_side_do_not_disturb_each_other", r"assert \[\[\], \[\]\] == "),
        (Unstoppable(), "can_be_stopped_at_any_time", "generator ignored GeneratorExit"),  # by Python itself
        (Understated(), "scores_about_as_many_masks_as_expected", r"<= \(2 \* 2\)"),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_the_contract_notices(broken, test, says):
    contract = StrategyContract()
    contract.strategy = broken
    with pytest.raises((AssertionError, RuntimeError, ValueError), match=says):
        getattr(contract, f"test_{test}")()


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_the_toy_is_honest(steps):
    """Without a reused step before it, an arrival is the teacher's own state; the last arrival is the loss."""
    score = toy_score(steps)
    for budget in range(1, steps + 1):
        for mask in Space(steps, budget):
            found, last = score(Ask(mask, "")), mask.computed[-1]
            assert len(found.arrivals) == steps + 1
            assert all(arrival is None for arrival in found.arrivals[: last + 1])
            assert found.arrivals[-1] == found.loss
            assert all(math.isfinite(arrival) for arrival in found.arrivals[last + 1 :])
            assert (found.arrivals[last + 1] == 0) == (last + 1 == budget)
    assert score(Ask(Mask.full(steps), "")).loss == 0


def test_the_toy_is_no_hill_of_one_top():
    """Otherwise climbing would always find the optimum, and a search that only climbs could not be told from more."""
    score = toy_score(12)
    losses = {mask: score(Ask(mask, "")).loss for mask in Space(12, 4)}
    tops = [m for m in losses if all(losses[n] > losses[m] for n in Space(12, 4).neighbours(m))]
    assert len(tops) > 1


def test_the_driver_refuses_what_cannot_be():
    from budcache import SearchError

    for budgets in ([], [0], [9], [-1, 3]):
        with pytest.raises(SearchError, match="budget"):
            drive(Honest(), toy_score(8), steps=8, budgets=budgets)
