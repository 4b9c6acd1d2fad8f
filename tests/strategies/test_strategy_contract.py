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
    expects_nothing = True


class TestPolishedToTheTop(StrategyContract):
    strategy = Polished(RandomMasks(3), window=8, rounds=None)
    expects_nothing = True


class TestUnpolished(StrategyContract):
    strategy = Polished(LadderSearch(), window=0)


class FromUniform(Polished):
    """A climb alone, from a start for every budget that is asked for."""

    def propose(self, steps, budgets, rng):
        starts = tuple(Mask.uniform(steps, budget) for budget in budgets)
        return Polished(None, starts, self.window, self.rounds).propose(steps, budgets, rng)


class TestPolishedStarts(StrategyContract):
    strategy = FromUniform()
    expects_nothing = True


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
            yield Ask.one(mask, "draw")

    def expected(self, steps, budgets):
        return 4 * len(budgets)


class TestHonest(StrategyContract):
    strategy = Honest()


class Together(Honest):
    """The same with all masks in one ask, and all once more."""

    def propose(self, steps, budgets, rng):
        masks = tuple(self.masks(steps, budgets, rng))
        yield Ask(masks, "draw")
        yield Ask((*masks, *masks), "again")


class TestTogether(StrategyContract):
    strategy = Together()


class OtherLength(Honest):
    def masks(self, steps, budgets, rng):
        yield from super().masks(steps, budgets, rng)
        yield Mask.full(steps - 1 or 2)


class Spendthrift(Honest):
    def masks(self, steps, budgets, rng):
        yield from super().masks(steps, budgets, rng)
        yield Mask.full(steps)


class Silent(Honest):
    def masks(self, steps, budgets, rng):
        return iter(())


class Nameless(Honest):
    def propose(self, steps, budgets, rng):
        for mask in self.masks(steps, budgets, rng):
            yield Ask.one(mask, " ")


class FirstBudgetOnly(Honest):
    def masks(self, steps, budgets, rng):
        return super().masks(steps, budgets[:1], rng)


class NeverFull(Honest):
    """Leaves out the mask that computes everything, where nothing is left to choose."""

    def masks(self, steps, budgets, rng):
        return super().masks(steps, [budget for budget in budgets if budget < steps], rng)


class NeedsRoom(Honest):
    """Takes for granted that a run has three steps."""

    def masks(self, steps, budgets, rng):
        rng.sample(range(steps), 3)
        return super().masks(steps, budgets, rng)


class GlobalChance(Honest):
    def masks(self, steps, budgets, rng):
        return super().masks(steps, budgets, random)


class HashOrder(Honest):
    """Goes through a set of texts, whose order differs from process to process."""

    def masks(self, steps, budgets, rng):
        for budget in budgets:
            for text in {str(mask) for mask in Space(steps, budget)}:
                yield Mask.parse(text)


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
            yield Ask.one(Mask.uniform(steps, budgets[0]), "one more")


class Understated(Honest):
    def expected(self, steps, budgets):
        return 2


class Overstated(Honest):
    def expected(self, steps, budgets):
        return 1000


class NoExpectation(Honest):
    def expected(self, steps, budgets):
        return None


BROKEN = [
    (OtherLength(), "asks_only_for_masks_of_the_space", "shorter than argument|zip|== 8"),
    (Spendthrift(), "asks_only_for_masks_of_the_space", "costs more than any budget allows"),
    (Silent(), "asks_only_for_masks_of_the_space", "nothing was asked"),
    (Nameless(), "names_its_phases", None),
    (FirstBudgetOnly(), "answers_every_budget_exactly", "not enough values"),
    (FirstBudgetOnly(), "all_budgets_at_once_work", "there is no mask of budget 2"),
    (NeverFull(), "every_single_budget_works", None),
    (NeedsRoom(), "the_shortest_runs_work", "Sample larger"),
    (GlobalChance(), "the_same_seed_gives_the_same_history", None),
    (Remembering(), "the_same_seed_gives_the_same_history", None),
    (GlobalChance(), "chance_comes_only_from_the_seed", "the global generator was used"),
    (HashOrder(), "the_same_seed_gives_the_same_history_in_a_fresh_process", None),
    (Remembering(), "searches_side_by_side_do_not_disturb_each_other", None),
    (Unstoppable(), "a_limit_on_evaluations_is_kept", "ignored GeneratorExit"),
    (Unstoppable(), "can_be_stopped_at_any_time", "ignored GeneratorExit"),
    (Understated(), "scores_about_as_many_masks_as_expected", "far more than the 2 expected"),
    (Overstated(), "scores_about_as_many_masks_as_expected", r"only \d+ of the 1000 expected"),
    (NoExpectation(), "scores_about_as_many_masks_as_expected", "set expects_nothing = True"),
]


@pytest.mark.parametrize(
    ("broken", "test", "says"),
    BROKEN,
    ids=[f"{type(broken).__name__}-{test}" for broken, test, _ in BROKEN],
)
def test_the_contract_notices(broken, test, says):
    contract = StrategyContract()
    contract.strategy = broken
    # The driver itself refuses a generator that goes on, and the toy a mask of another length.
    with pytest.raises((AssertionError, RuntimeError, ValueError), match=says):
        getattr(contract, f"test_{test}")()


def test_the_contract_notices_a_number_where_none_was_promised():
    contract = StrategyContract()
    contract.strategy, contract.expects_nothing = Honest(), True
    with pytest.raises(AssertionError, match="so expects_nothing is wrong"):
        contract.test_scores_about_as_many_masks_as_expected()


def test_every_promise_has_a_strategy_that_breaks_it():
    promises = {name for name in vars(StrategyContract) if name.startswith("test_")}
    assert {f"test_{test}" for _, test, _ in BROKEN} == promises


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_the_toy_is_honest(steps):
    """Without a reused step before it, an arrival is the teacher's own state; the last arrival is the loss."""
    score = toy_score(steps)
    for budget in range(1, steps + 1):
        for mask in Space(steps, budget):
            found, last = score(mask), mask.computed[-1]
            assert len(found.arrivals) == steps + 1
            assert all(arrival is None for arrival in found.arrivals[: last + 1])
            assert found.arrivals[-1] == found.losses == (found.loss,)
            assert all(math.isfinite(found.arrival(step)) for step in range(last + 1, steps + 1))
            assert (found.arrival(last + 1) == 0) == (last + 1 == budget)
    assert score(Mask.full(steps)).loss == 0


def test_the_toy_is_no_hill_of_one_top():
    """Otherwise climbing would always find the optimum, and a search that only climbs could not be told from more."""
    score = toy_score(12)
    losses = {mask: score(mask).loss for mask in Space(12, 4)}
    tops = [m for m in losses if all(losses[n] > losses[m] for n in Space(12, 4).neighbours(m))]
    assert len(tops) > 1
