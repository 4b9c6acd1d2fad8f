"""Tests for strategies: what every one of them promises, ready to be run on yours.

    from budcache.testing import StrategyContract

    class TestMine(StrategyContract):
        strategy = MyStrategy()

pytest collects the inherited tests; `pytest.register_assert_rewrite("budcache.testing")` before the import makes their
failures tell more. Nothing here needs torch, a model or pytest itself.
"""
# ruff: noqa: D102  (the names of tests say what they test)

from __future__ import annotations

import math
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random
from typing import Any, ClassVar

from budcache.calibration.score import Score
from budcache.mask import Mask
from budcache.strategies import Ask, Found, Limits, Paths, ScoreMany, Strategy, drive

__all__ = ["StrategyContract", "ready", "toy_score"]

Point = tuple[float, float]


def toy_score(steps: int, *, wiggles: float = 9.0) -> Callable[[Mask], Score]:
    """A scoring function to search on: two numbers flow from noise to data by Euler steps with output reuse.

    The loss is the squared error against the run that computes every step, and the arrivals are honest. The more
    `wiggles` the field has, the more local optima there are.
    """

    def field(x: Point, sigma: float) -> Point:
        return (
            math.sin(3 * x[1] + wiggles * sigma) + x[0] * (1.5 - sigma**2),
            math.cos(2 * x[0] - wiggles * sigma * sigma) - 0.5 * x[1],
        )

    sigmas = [1 - k / steps for k in range(steps + 1)]

    def run(mask: Mask) -> list[Point]:
        x, v = (0.3, -0.7), (0.0, 0.0)
        states = [x]
        for k, compute in enumerate(mask):
            v = field(x, sigmas[k]) if compute else v
            x = (x[0] + (sigmas[k + 1] - sigmas[k]) * v[0], x[1] + (sigmas[k + 1] - sigmas[k]) * v[1])
            states.append(x)
        return states

    teacher = run(Mask.full(steps))

    def score(mask: Mask) -> Score:
        errors = [
            ((x[0] - right[0]) ** 2 + (x[1] - right[1]) ** 2) / 2 for x, right in zip(run(mask), teacher, strict=True)
        ]
        reached = mask.computed[-1] + 1
        return Score((errors[-1],), (*[None] * reached, *((error,) for error in errors[reached:])))

    return score


def _many(score: Callable[[Mask], Score]) -> ScoreMany:
    return lambda ask: map(score, ask.masks)


@dataclass(frozen=True)
class ToyPaths:
    """What full runs of the toy would say: its best masks, others for every power."""

    steps: int

    def __call__(self, budgets: Sequence[int], power: float, count: int = 1) -> dict[int, list[Mask]]:
        """See `budcache.strategies.paths.Find`."""
        score = toy_score(self.steps)

        def best(budget: int) -> list[Mask]:
            masks = [Mask.of(self.steps, (0, *rest)) for rest in combinations(range(1, self.steps), budget - 1)]
            return sorted(masks, key=lambda mask: score(mask).loss)[int(power) :][:count] or masks[:1]

        return {budget: best(budget) for budget in budgets}


def ready(strategy: Strategy, steps: int) -> Strategy:
    """A strategy as it can search on the toy: one that looks at full runs first is given some."""
    return strategy.on(ToyPaths(steps)) if isinstance(strategy, Paths) else strategy


class StrategyContract:
    """What a strategy promises. Subclass it and set `strategy`, or define a method of that name that returns one.

    `steps` and `budgets` may be set too, for a strategy that needs another size.
    """

    strategy: Any
    steps: ClassVar[int] = 8
    budgets: ClassVar[tuple[int, ...]] = (2, 3, 5)
    expects_nothing: ClassVar[bool] = False  # True for a strategy that cannot say how many masks it will score

    def _strategy(self, steps: int | None = None) -> Strategy:
        given = self.strategy
        strategy: Strategy = given() if isinstance(given, type) or not hasattr(given, "propose") else given
        return ready(strategy, steps or self.steps)

    def _drive(self, *, steps: int | None = None, budgets: Iterable[int] = (), seed: int = 3, **more: Any) -> Found:
        steps = steps or self.steps
        return drive(
            self._strategy(steps),
            _many(toy_score(steps)),
            steps=steps,
            budgets=budgets or self.budgets,
            seed=seed,
            **more,
        )

    def test_asks_only_for_masks_of_the_space(self) -> None:
        found = self._drive()
        assert found.history, "nothing was asked"
        for step in found.history:
            assert len(step.mask) == self.steps
            assert step.mask[0]
            assert 1 <= step.mask.budget <= max(self.budgets), f"{step.mask} costs more than any budget allows"

    def test_names_its_phases(self) -> None:
        for step in self._drive().history:
            assert isinstance(step.phase, str)
            assert step.phase.strip()

    def test_answers_every_budget_exactly(self) -> None:
        found = self._drive()
        for budget in self.budgets:
            (best,) = found.best(budget)
            assert best.budget == budget
            assert best[0]

    def test_every_single_budget_works(self) -> None:
        for budget in range(1, self.steps + 1):
            found = self._drive(budgets=[budget])
            assert [mask.budget for mask in found.best(budget)] == [budget]
        assert found.best(self.steps) == [Mask.full(self.steps)]
        assert found.scores[Mask.full(self.steps)].loss == 0

    def test_all_budgets_at_once_work(self) -> None:
        found = self._drive(budgets=range(1, self.steps + 1))
        for budget in range(1, self.steps + 1):
            assert found.best(budget), f"there is no mask of budget {budget}"

    def test_the_shortest_runs_work(self) -> None:
        for steps in (1, 2):
            found = self._drive(steps=steps, budgets=range(1, steps + 1))
            assert [found.best(budget)[0].budget for budget in range(1, steps + 1)] == list(range(1, steps + 1))

    def test_the_same_seed_gives_the_same_history(self) -> None:
        for seed in (0, 7):
            assert self._drive(seed=seed).history == self._drive(seed=seed).history

    def test_chance_comes_only_from_the_seed(self) -> None:
        before = random.getstate()
        try:
            histories = []
            for outside in (1, 2):
                random.seed(outside)
                state = random.getstate()
                histories.append(self._drive().history)
                assert random.getstate() == state, "the global generator was used"
            assert histories[0] == histories[1]
        finally:
            random.setstate(before)

    def test_the_same_seed_gives_the_same_history_in_a_fresh_process(self) -> None:
        task = pickle.dumps((sys.path, pickle.dumps(self._strategy()), self.steps, self.budgets))
        here = [[str(step.mask), step.loss, step.phase, step.new] for step in self._drive(seed=3).history]
        other_hashes = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
        done = subprocess.run(
            [sys.executable, "-c", _ELSEWHERE],
            input=task,
            capture_output=True,
            env={**os.environ, "PYTHONHASHSEED": other_hashes},
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        assert pickle.loads(done.stdout) == here

    def test_searches_side_by_side_do_not_disturb_each_other(self) -> None:
        strategy, score = self._strategy(), toy_score(self.steps)
        alone = [_answer(strategy.propose(self.steps, self.budgets, Random(seed)), score) for seed in (3, 4)]
        pair = [strategy.propose(self.steps, self.budgets, Random(seed)) for seed in (3, 4)]
        asks: list[list[Ask]] = [[], []]
        answers: list[tuple[Score, ...] | None] = [None, None]
        going = [0, 1]
        while going:
            for which in tuple(going):
                try:
                    ask = pair[which].send(answers[which])  # type: ignore[arg-type]
                except StopIteration:
                    going.remove(which)
                    continue
                asks[which].append(ask)
                answers[which] = tuple(map(score, ask.masks))
        assert asks == alone

    def test_a_limit_on_evaluations_is_kept(self) -> None:
        whole = self._drive()
        total = len(whole.scores)
        for limit in sorted({1, 2, 3, total - 1, total} & set(range(1, total + 1))):
            found = self._drive(limits=Limits(evaluations=limit))
            assert len(found.scores) == limit
            assert found.history == whole.history[: len(found.history)]
            assert (found.stopped is None) == (limit == total)
            for budget in self.budgets:
                seen = [step.loss for step in found.history if step.mask.budget == budget]
                answer = found.best(budget)
                assert bool(answer) == bool(seen)
                assert not seen or found.scores[answer[0]].loss == min(seen)

    def test_can_be_stopped_at_any_time(self) -> None:
        score = toy_score(self.steps)
        for stop in (0, 1, 4):
            proposals = self._strategy().propose(self.steps, self.budgets, Random(0))
            answer: tuple[Score, ...] | None = None
            for _ in range(stop):
                try:
                    ask = proposals.send(answer)  # type: ignore[arg-type]
                    answer = tuple(map(score, ask.masks))
                except StopIteration:
                    break
            proposals.close()  # raises if the strategy goes on all the same
            assert next(proposals, None) is None

    def test_scores_about_as_many_masks_as_expected(self) -> None:
        expected, scored = self._strategy().expected(self.steps, self.budgets), len(self._drive().scores)
        if self.expects_nothing:
            assert expected is None, "it does say how many, so expects_nothing is wrong"
            return
        assert expected is not None, "it does not say how many; if it cannot, set expects_nothing = True"
        assert scored <= 2 * expected, f"{scored} masks were scored, far more than the {expected} expected"
        assert expected <= 10 * scored, f"only {scored} of the {expected} expected masks were scored"


def _answer(proposals: Any, score: Callable[[Mask], Score]) -> list[Ask]:
    """All that a strategy asks when it is answered."""
    asks = []
    try:
        ask = next(proposals)
        while True:
            asks.append(ask)
            ask = proposals.send(tuple(map(score, ask.masks)))
    except StopIteration:
        return asks


# The strategy is unpickled only once the paths are known on which its module is found.
_ELSEWHERE = """
import pickle, sys
sys.path[:], strategy, steps, budgets = pickle.load(sys.stdin.buffer)
from budcache.strategies import drive
from budcache.testing.strategies import _many, toy_score
found = drive(pickle.loads(strategy), _many(toy_score(steps)), steps=steps, budgets=budgets, seed=3)
answer = [[str(step.mask), step.loss, step.phase, step.new] for step in found.history]
sys.stdout.buffer.write(pickle.dumps(answer))
"""
