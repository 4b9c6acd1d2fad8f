"""Each strategy against its own description: Algorithms 1 and 2, the authors' code, the ladder, all there is."""

from __future__ import annotations

import math
from functools import partial
from itertools import groupby, pairwise
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from budcache import Mask, OutputReuse, SearchError
from budcache.calibration.calibration import Calibration
from budcache.calibration.score import Score
from budcache.calibration.scoring import PlainScorer
from budcache.numerics.solvers import euler
from budcache.strategies import (
    STRATEGIES,
    Anneal,
    Authors,
    Exhaustive,
    LadderSearch,
    Polished,
    RandomMasks,
    Space,
    Uniform,
    drive,
    strategy,
)
from budcache.strategies.anneal import climb
from budcache.testing import ready, toy_score

HOT = {"hot": 1e12, "cold": 1e11}  # everything is accepted
COLD = {"hot": 1e-200, "cold": 1e-201}  # only what is no worse


def drawn(seed=0):
    """Scores without rhyme or reason, but always the same for the same mask."""

    def score(mask):
        rng = Random(f"{seed} {mask}")
        last = mask.computed[-1]
        arrivals = [None if j <= last else (rng.random(), rng.random()) for j in range(len(mask) + 1)]
        return Score((rng.random(), rng.random()), tuple(arrivals))

    return score


def told(loss):
    """Scores that are a function of the mask, or always the same."""
    return lambda mask: Score((loss(mask) if callable(loss) else loss,))


def many(score):
    return lambda ask: map(score, ask.masks)


def run(plan, steps, budgets, score=None, seed=0, **more):
    return drive(plan, many(score or toy_score(steps)), steps=steps, budgets=budgets, seed=seed, **more)


def phases(found):
    """The history cut where the phase changes."""
    return [(name, list(steps)) for name, steps in groupby(found.history, key=lambda step: step.phase)]


def lowest(found, budget):
    return found.scores[found.best(budget)[0]].loss


def losses(steps, budget, score=None):
    score = score or toy_score(steps)
    return {mask: score(mask).loss for mask in Space(steps, budget)}


def apart(one, other):
    """How many computed steps differ."""
    return len(set(one.computed) - set(other.computed))


# Algorithm 2


def climbed(space, start, score, **more):
    """The mask in which a climb ends, and all that it asked."""
    asked, walk = [], climb(space, start, **more)
    try:
        ask = next(walk)
        while True:
            asked.append(ask)
            ask = walk.send(tuple(map(score, ask.masks)))
    except StopIteration as end:
        return end.value, asked


@given(st.integers(0, 10**6), st.integers(1, 9), st.data())
def test_a_climb_ends_where_no_neighbour_is_better(seed, steps, data):
    space = Space(steps, data.draw(st.integers(1, steps)))
    score = data.draw(st.sampled_from([toy_score(steps), drawn(seed)]))
    start = space.random(Random(seed))
    top, asked = climbed(space, start, score)
    all_losses = losses(steps, space.budget, score)
    assert all_losses[top] <= all_losses[start]
    assert all(all_losses[other] >= all_losses[top] for other in space.neighbours(top))
    assert asked[0].masks == (start,)
    assert all(set(ask.masks) <= set(space) for ask in asked)
    assert {ask.phase for ask in asked} == {"climb"}


@given(st.integers(0, 10**6), st.integers(0, 4))
def test_a_climb_goes_to_the_best_neighbour_each_time(seed, rounds):
    space, score = Space(8, 4), drawn(seed)
    all_losses = losses(8, 4, score)
    mask = space.random(Random(seed))
    top, asked = climbed(space, mask, score, rounds=rounds, phase="up")
    for _ in range(rounds):
        best = min(space.neighbours(mask), key=all_losses.__getitem__)
        if all_losses[best] >= all_losses[mask]:
            break
        mask = best
    assert top == mask
    # Neighbours do not depend on each other's scores, so each round is one ask.
    assert len(asked) <= 1 + rounds
    assert all(len(ask.masks) == len(space.neighbours(mask)) for ask in asked[1:])
    assert {ask.phase for ask in asked} == {"up"}


@given(st.integers(0, 10**6), st.integers(1, 4))
def test_a_climb_with_a_window_ends_where_no_near_neighbour_is_better(seed, window):
    space, score = Space(9, 4), drawn(seed)
    top, _ = climbed(space, space.random(Random(seed)), score, window=window)
    all_losses = losses(9, 4, score)
    assert all(all_losses[other] >= all_losses[top] for other in space.neighbours(top, window))


def test_a_plateau_is_not_climbed():
    """Only strictly better masks are moved to, so equal ones do not send it round in circles."""
    start = Mask.parse("110100")
    assert climbed(Space(6, 3), start, told(1.0))[0] == start


# Algorithm 1


@pytest.mark.parametrize("budget", range(1, 10))
def test_annealing_starts_from_uniform_spacing(budget):
    found = run(Anneal(iterations=5), 9, [budget])
    assert found.history[0].mask == Mask.uniform(9, budget)
    assert found.history[0].phase == "anneal"


@given(st.integers(1, 300), st.floats(1e-9, 1e3), st.floats(1.1, 1e9))
def test_annealing_takes_the_iterations_it_was_given(iterations, cold, ratio):
    found = run(Anneal(iterations=iterations, hot=cold * ratio, cold=cold), 5, [2])
    assert sum(step.phase == "anneal" for step in found.history) == 1 + iterations


@pytest.mark.parametrize(
    ("hot", "cold", "gamma", "iterations"),
    [(1.0, 0.1, 0.5, 4), (1.0, 0.25, 0.5, 2), (1.0, 0.2, 0.9, 16), (0.05, 1e-5, 0.95, 167), (8.0, 1.0, 0.5, 3)],
)
def test_gamma_decides_how_long_annealing_takes(hot, cold, gamma, iterations):
    temperature, count = hot, 0
    while temperature > cold * (1 + 1e-9):
        temperature, count = temperature * gamma, count + 1
    assert count == iterations
    found = run(Anneal(hot=hot, cold=cold, gamma=gamma, iterations=7), 6, [3])
    assert sum(step.phase == "anneal" for step in found.history) == 1 + iterations


@given(st.integers(0, 10**6))
def test_when_hot_every_mask_is_accepted(seed):
    """Each candidate is a neighbour of the one before it, whatever their losses were."""
    found = run(Anneal(iterations=40, **HOT), 10, [4], drawn(seed), seed)
    (_, walk), *_ = phases(found)
    assert all(apart(here.mask, there.mask) == 1 for here, there in pairwise(walk))


@given(st.integers(0, 10**6))
def test_when_cold_only_improvements_are_accepted(seed):
    """Each candidate is a neighbour of the best so far, which is where the walk then stands."""
    found = run(Anneal(iterations=40, **COLD), 10, [4], drawn(seed), seed)
    (_, walk), *_ = phases(found)
    here = walk[0]
    for step in walk[1:]:
        assert apart(here.mask, step.mask) == 1
        here = step if step.loss <= here.loss else here


@pytest.mark.parametrize("worse", [0.2, 1.0, 2.5])
def test_worse_masks_are_accepted_as_often_as_metropolis_says(worse):
    """Two masks, each the other's only neighbour: from the better one, the worse is accepted with exp(-dE / T)."""
    better = Mask.parse("101")
    history = run(
        Anneal(iterations=20_000, hot=1.0, cold=0.9999),
        3,
        [2],
        told(lambda mask: 0.0 if mask == better else worse),
    ).history
    walk = [step.mask for step in history if step.phase == "anneal"]
    # In the better mask the worse one is asked; once it is accepted, the better one is asked next.
    accepted = [there == better for here, there in pairwise(walk[1:]) if here != better]
    assert len(accepted) > 5000
    assert sum(accepted) / len(accepted) == pytest.approx(math.exp(-worse), abs=0.02)


@pytest.mark.parametrize("plan", [Anneal, partial(Authors, wan=True)], ids=["anneal", "authors"])
def test_the_temperature_falls(plan):
    """From where everything is accepted to where nothing worse is, evenly in its logarithm."""
    better = Mask.parse("101")
    history = run(
        plan(iterations=3000, hot=1e9, cold=1e-9), 3, [2], told(lambda mask: 0.0 if mask == better else 1.0)
    ).history
    walk = [step.mask for step in history if step.phase == "anneal"]
    accepted = [there == better for here, there in pairwise(walk[1:]) if here != better]
    assert all(accepted[:500])
    assert not any(accepted[-500:])
    # T is 1 halfway. Before, every second question is about the worse mask; after, every question is.
    assert len(accepted) == pytest.approx(750 + 1500, abs=100)


@given(st.integers(0, 10**6), st.sampled_from([HOT, COLD, {}]))
def test_climbing_starts_from_the_best_mask_seen(seed, heat):
    found = run(Anneal(iterations=25, **heat), 9, [4], drawn(seed), seed)
    (_, walk), (name, climbing) = phases(found)
    assert name == "climb"
    assert climbing[0].mask == min(walk, key=lambda step: step.loss).mask
    assert climbing[0].loss == min(step.loss for step in walk)


@given(st.integers(0, 10**6))
def test_annealing_ends_at_a_local_optimum(seed):
    found = run(Anneal(iterations=10), 9, [4], drawn(seed), seed)
    best = found.best(4)[0]
    all_losses = losses(9, 4, drawn(seed))
    assert all(all_losses[other] >= all_losses[best] for other in Space(9, 4).neighbours(best))


def test_restarts_start_elsewhere():
    found = run(Anneal(iterations=10, restarts=3), 20, [4, 5], seed=1)
    parts = phases(found)
    assert [name for name, _ in parts] == ["anneal", "climb"] * 6
    assert [len(steps) for name, steps in parts if name == "anneal"] == [11] * 6
    starts = [steps[0].mask for name, steps in parts if name == "anneal"]
    assert [mask.budget for mask in starts] == [4, 4, 4, 5, 5, 5]
    assert starts[0] == Mask.uniform(20, 4)
    assert starts[3] == Mask.uniform(20, 5)
    assert len(set(starts)) == 6


def test_restarts_begin_alike():
    once = run(Anneal(iterations=10), 12, [4], seed=1).history
    assert run(Anneal(iterations=10, restarts=2), 12, [4], seed=1).history[: len(once)] == once


@pytest.mark.parametrize(
    ("name", "iterations", "restarts"),
    [
        *[("anneal-r1-sa20", 20, 1), ("anneal-r2-sa100", 100, 2)],
        *[("authors-r1-sa20", 20, 1), ("authors-r2-sa100", 100, 2)],
        *[("anneal-r3-sa7", 7, 3), ("authors-r1-sa1", 1, 1)],  # any numbers, not only the paper's
    ],
)
def test_the_papers_settings_by_name(name, iterations, restarts):
    plan = strategy(name)
    assert isinstance(plan, Anneal if name.startswith("anneal") else Authors)
    parts = phases(run(plan, 10, [4]))
    assert [len(steps) for phase, steps in parts if phase == "anneal"] == [1 + iterations] * restarts


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(SearchError, match=r"no strategy 'annealing'.*ladder, anneal, .*random"):
        strategy("annealing")
    assert all(strategy(name) is plan for name, plan in STRATEGIES.items())
    for name in ("anneal-r0-sa20", "authors-r1-sa0"):
        with pytest.raises(SearchError, match="at least 1"):
            strategy(name)


# The authors' code


def fresh(budget, wan):
    return max(1, int(0.3 * budget)) if wan else max(1, budget // 4)


@pytest.mark.parametrize("wan", [False, True])
@pytest.mark.parametrize("budget", [1, 3, 4, 7, 8, 10, 12])
def test_authors_never_touch_the_prefix(wan, budget):
    steps, prefix = 20, fresh(budget, wan)
    found = run(Authors(iterations=60, rounds=3, wan=wan, **HOT), steps, [budget])
    for step in found.history:
        assert step.mask.computed[:prefix] == tuple(range(prefix))
    if prefix < budget:
        assert not all(step.mask[prefix] for step in found.history)


def test_authors_start_at_random():
    starts = {str(run(Authors(iterations=1, rounds=0), 20, [6], seed=seed).history[0].mask) for seed in range(8)}
    assert len(starts) > 5


@given(st.integers(0, 10**6))
def test_authors_climb_from_the_last_accepted_mask(seed):
    (_, walk), (_, climbing) = phases(run(Authors(iterations=25, **HOT), 12, [5], drawn(seed), seed))
    assert climbing[0].mask == walk[-1].mask
    (_, walk), (_, climbing) = phases(run(Authors(iterations=25, **COLD), 12, [5], drawn(seed), seed))
    assert climbing[0].loss == min(step.loss for step in walk)


@given(st.integers(0, 10**6))
def test_for_wan_the_authors_climb_from_the_best_mask_after_the_first(seed):
    (_, walk), (_, climbing) = phases(run(Authors(iterations=25, wan=True, **HOT), 12, [5], drawn(seed), seed))
    assert climbing[0].mask == min(walk[1:], key=lambda step: step.loss).mask


def moves(wan):
    """The computed steps that changed in each move of a walk in which every move was accepted."""
    (_, walk), *_ = phases(run(Authors(iterations=2000, wan=wan, rounds=0, **HOT), 28, [10], seed=5))
    return [
        (set(here.mask.computed) - set(there.mask.computed), set(there.mask.computed) - set(here.mask.computed))
        for here, there in pairwise(walk)
    ]


def test_authors_move_near_by_and_at_times_two_steps_at_once():
    sizes = [len(gone) for gone, _ in moves(wan=False)]
    assert set(sizes) <= {0, 1, 2}
    assert 0.05 < sum(size == 2 for size in sizes) / len(sizes) < 0.13  # a tenth, less those that undo themselves
    near = [abs(min(gone) - min(come)) <= 3 for gone, come in moves(wan=False) if len(gone) == 1]
    assert sum(near) / len(near) > 0.7


def test_two_steps_at_once_go_anywhere():
    """Only single moves prefer steps near by: two computed steps land on any two free ones."""
    far = [
        abs(a - b)
        for gone, come in moves(wan=False)
        if len(gone) == 2
        for a, b in zip(sorted(gone), sorted(come), strict=True)
    ]
    single = [abs(min(gone) - min(come)) for gone, come in moves(wan=False) if len(gone) == 1]
    assert sum(far) / len(far) > 1.5 * sum(single) / len(single)


def test_for_wan_the_authors_move_one_step_anywhere():
    gone_and_come = moves(wan=True)
    assert {len(gone) for gone, _ in gone_and_come} == {1}
    near = [abs(min(gone) - min(come)) <= 3 for gone, come in gone_and_come]
    assert sum(near) / len(near) < 0.5


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_authors_climb_for_so_many_rounds_at_most(rounds):
    found = run(Authors(iterations=3, rounds=rounds, **HOT), 20, [8], seed=2)
    (_, _), (_, climbing) = phases(found)
    top, asked = climbing[0], climbing[1:]
    for _ in range(rounds):
        batch = [step for step in asked if apart(top.mask, step.mask) == 1]
        # Per movable step, the free places within 3 of it and 2 more.
        assert len(batch) <= (8 - 2) * (6 + 2)
        asked = asked[len(batch) :]
        top = min([top, *batch], key=lambda step: step.loss)
    assert all(apart(climbing[0].mask, step.mask) <= rounds for step in climbing)
    assert bool(rounds) == (len(climbing) > 1)


def test_authors_stop_climbing_at_the_top_but_not_for_wan():
    flat = told(1.0)
    found = run(Authors(iterations=3, rounds=20), 20, [8], flat)
    (_, _), (_, climbing) = phases(found)
    assert all(apart(climbing[0].mask, step.mask) <= 1 for step in climbing)
    assert len(climbing) <= 1 + (8 - 2) * (6 + 2)
    found = run(Authors(iterations=3, rounds=7, wan=True), 20, [8], flat)
    (_, _), (_, climbing) = phases(found)
    assert len(climbing) == 1 + 7 * 20


def test_for_wan_a_round_of_climbing_asks_for_no_mask_twice():
    found = run(Authors(iterations=3, rounds=1, wan=True), 12, [5], told(1.0))
    (_, _), (_, climbing) = phases(found)
    asked = [step.mask for step in climbing[1:]]
    assert len(asked) == len(set(asked)) == 20


def test_authors_defaults_are_the_published_ones():
    assert Authors() == Authors(iterations=200, restarts=1, hot=0.05, cold=1e-5, rounds=20, wan=False)
    assert STRATEGIES["authors-wan"] == Authors(iterations=200, hot=0.1, cold=1e-4, rounds=5, wan=True)
    assert STRATEGIES["authors-z-image"] == Authors(iterations=200, rounds=5)
    assert STRATEGIES["authors-z-image-turbo"] == Authors(iterations=2, rounds=1)


# The ladder


class Counting(OutputReuse):
    """A small torch model together with its run."""

    def __init__(self, steps):
        super().__init__(lambda x, sigma: torch.sin(3 * x + 9 * sigma) + x * (1.5 - sigma**2))
        self.noise = torch.linspace(-1, 1, 3).reshape(1, 3)
        self.sigmas = torch.linspace(1, 0, steps + 1)

    def solver(self, sigmas=None):
        return euler


@pytest.mark.parametrize(("budget", "masks"), [(10, 208), (12, 243)])
def test_the_ladder_takes_one_call_a_mask(budget, masks):
    """F5, in the numbers of the design."""
    calibration = Calibration([Counting(28)])
    assert calibration.calls == 28
    scorer = PlainScorer(calibration, memory=10**9)
    found = run(LadderSearch(), 28, [budget], scorer.score, calls=lambda: calibration.calls)
    assert len(found.history) == len(found.scores) == masks
    assert [step.sample_calls for step in found.history] == [28 + 1 + i for i in range(masks)]
    assert all(found.best(b) for b in range(1, budget + 1))
    assert LadderSearch().expected(28, (budget,)) == masks


@pytest.mark.parametrize("beam", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("steps", [1, 2, 6, 9])
def test_the_ladder_scores_as_many_masks_as_it_expects(beam, steps):
    plan = LadderSearch(beam=beam)
    for budget in range(1, steps + 1):
        found = run(plan, steps, [budget])
        assert len(found.history) == len(found.scores) == plan.expected(steps, (budget,))


def test_a_ladder_of_several_budgets_is_that_of_the_largest():
    assert run(LadderSearch(), 10, [2, 4, 6]).history == run(LadderSearch(), 10, [6]).history


@pytest.mark.parametrize("steps", [4, 9])
@pytest.mark.parametrize("score", [toy_score, lambda steps: drawn(steps)], ids=["toy", "drawn"])
def test_a_ladder_wide_enough_is_exhaustive(steps, score):
    found = run(LadderSearch(beam=1000), steps, [steps], score(steps))
    for budget in range(1, steps + 1):
        assert lowest(found, budget) == min(losses(steps, budget, score(steps)).values())


@given(st.integers(0, 10**6))
def test_up_to_three_calls_a_wider_beam_is_never_worse(seed):
    """The second layer holds one path a step for any beam, so what is kept in the third grows with the beam."""
    by_beam = [run(LadderSearch(beam=beam), 9, [3], drawn(seed)) for beam in (1, 2, 3, 5)]
    for narrow, wide in pairwise(by_beam):
        assert set(narrow.scores) <= set(wide.scores)
        assert all(lowest(wide, budget) <= lowest(narrow, budget) for budget in (1, 2, 3))


def test_with_more_calls_a_wider_beam_may_be_worse():
    """F9: two arrivals may be better than the one that would have ended best. So no more is promised than above."""
    narrow, wide = (run(LadderSearch(beam=beam), 7, [4], drawn(1)) for beam in (1, 2))
    assert lowest(wide, 4) > lowest(narrow, 4)


@given(st.integers(0, 10**6), st.integers(1, 3))
def test_the_ladder_keeps_the_best_arrivals(seed, beam):
    """Layer by layer by brute force: all kept paths to every later step, the best arrivals of each."""
    steps, score = 7, drawn(seed)
    found = run(LadderSearch(beam=beam), steps, [steps], score)
    kept = {(0,)}
    for budget in range(1, steps + 1):
        assert {mask.computed for mask in found.scores if mask.budget == budget} == kept
        scores = {path: score(Mask.of(steps, path)) for path in kept}
        kept = {
            (*path, step)
            for step in range(1, steps)
            for path in sorted((p for p in scores if p[-1] < step), key=lambda p: scores[p].arrival(step))[:beam]
        }


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 3))
def test_polish_never_makes_a_rung_worse(seed, polish, rounds):
    score = drawn(seed)
    plain = run(LadderSearch(), 9, range(1, 10), score)
    polished = run(Polished(LadderSearch(), window=polish, rounds=rounds), 9, range(1, 10), score)
    assert polished.history[: len(plain.history)] == plain.history
    rest = polished.history[len(plain.history) :]
    assert {step.phase for step in rest} == {"polish"}
    for budget in range(1, 10):
        assert lowest(polished, budget) <= lowest(plain, budget)
        top = next(step for step in rest if step.mask.budget == budget)
        assert top.mask == plain.best(budget)[0]
        assert all(apart(top.mask, step.mask) <= rounds for step in rest if step.mask.budget == budget)


def test_polish_is_worth_something():
    plain, polished = (run(Polished(LadderSearch(), window=polish), 12, [5]) for polish in (0, 2))
    assert lowest(polished, 5) < lowest(plain, 5)


def test_polish_climbs_only_the_budgets_that_are_wanted():
    found = run(Polished(LadderSearch()), 10, [4, 6])
    assert {step.mask.budget for step in found.history if step.phase == "polish"} == {4, 6}
    assert Polished(LadderSearch()).expected(10, (4, 6)) is None


@given(st.integers(0, 10**6), st.integers(1, 3))
def test_polish_begins_at_the_best_that_is_known_whoever_found_it(seed, window):
    score, steps = drawn(seed), 9
    starts = tuple(Space(steps, budget).random(Random(seed + budget)) for budget in (3, 4, 4, 5))
    found = run(Polished(LadderSearch(), starts, window), steps, [3, 4, 5], score)
    ladder = run(LadderSearch(), steps, [3, 4, 5], score)
    known = found.history[: len(ladder.history) + len(starts)]
    assert known[: len(ladder.history)] == ladder.history
    assert [step.mask for step in known[len(ladder.history) :]] == list(starts)
    assert {step.phase for step in known[len(ladder.history) :]} == {"start"}
    for budget in (3, 4, 5):
        best = min((step for step in known if step.mask.budget == budget), key=lambda step: step.loss)
        first = next(step for step in found.history[len(known) :] if step.mask.budget == budget)
        assert (first.phase, first.loss) == ("polish", best.loss)
    assert Polished(LadderSearch(), starts, 0).expected(steps, (3, 4, 5)) == len(starts) + LadderSearch().expected(
        steps, (3, 4, 5)
    )


def test_polish_without_a_limit_on_its_rounds_goes_to_the_top():
    start, score = (Mask.of(12, range(5)),), toy_score(12)
    found = run(Polished(None, start, 2, None), 12, [5], score)
    (top,) = found.best(5)
    assert all(score(mask).loss >= score(top).loss for mask in Space(12, 5).neighbours(top, 2))
    assert lowest(run(Polished(None, start, 2, 1), 12, [5], score), 5) > lowest(found, 5)


@pytest.mark.parametrize("plan", [LadderSearch(), LadderSearch(beam=3), Polished(LadderSearch())], ids=str)
def test_the_loss_of_a_rung_is_that_of_its_mask(plan):
    found = run(plan, 9, range(1, 10), PlainScorer(Calibration([Counting(9)]), memory=10**9).score)
    again = PlainScorer(Calibration([Counting(9)]))
    for budget in range(1, 10):
        (mask,) = found.best(budget)
        assert lowest(found, budget) == again.score(mask).loss


# All there is, one there is, and some


@pytest.mark.parametrize("budget", range(1, 9))
def test_exhaustive_finds_the_optimum(budget):
    found = run(Exhaustive(), 8, [budget])
    assert set(found.scores) == set(Space(8, budget))
    assert lowest(found, budget) == min(losses(8, budget).values())
    assert len(found.history) == Exhaustive().expected(8, (budget,))


def test_nothing_ends_below_the_optimum():
    floor = min(losses(12, 4).values())
    ends = {name: lowest(run(ready(plan, 12), 12, [4]), 4) for name, plan in STRATEGIES.items()}
    assert ends["exhaustive"] == floor
    assert all(end >= floor for end in ends.values())
    assert ends["uniform"] > floor  # or the toy would be too easy to tell them apart


def test_exhaustive_says_how_many_masks_would_be_too_many():
    asked = []
    with pytest.raises(SearchError, match=f"{math.comb(27, 9)} masks") as caught:
        drive(Exhaustive(), asked.append, steps=28, budgets=[10])
    assert "20000" in str(caught.value)
    assert asked == []
    with pytest.raises(SearchError, match="there are 35 masks"):
        run(Exhaustive(limit=34), 8, [4])
    assert len(run(Exhaustive(limit=35), 8, [4]).scores) == 35


def test_uniform_asks_for_one_mask_a_budget():
    found = run(Uniform(), 10, [3, 7])
    assert [step.mask for step in found.history] == [Mask.uniform(10, 3), Mask.uniform(10, 7)]


def test_random_masks_are_as_many_as_were_ordered():
    found = run(RandomMasks(count=30), 20, [6, 9])
    assert [step.mask.budget for step in found.history] == [6] * 30 + [9] * 30
    assert run(RandomMasks(count=30), 20, [6], seed=1).history != run(RandomMasks(count=30), 20, [6], seed=2).history
    assert RandomMasks(count=30).expected(4, (2,)) == 3


# Bad parameters


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Anneal(iterations=0), "iterations"),
        (lambda: Anneal(restarts=0), "restarts"),
        (lambda: Anneal(hot=1e-5, cold=0.05), "temperatures"),
        (lambda: Anneal(cold=0), "temperatures"),
        (lambda: Anneal(hot=math.nan), "temperatures"),
        (lambda: Anneal(gamma=1.0), "gamma"),
        (lambda: Anneal(gamma=0.0), "gamma"),
        (lambda: Authors(iterations=0), "iterations"),
        (lambda: Authors(restarts=0), "restarts"),
        (lambda: Authors(rounds=-1), "rounds"),
        (lambda: Authors(cold=0), "temperatures"),
        (lambda: LadderSearch(beam=0), "beam"),
        (lambda: Polished(window=-1), "polish"),
        (lambda: Polished(LadderSearch(), rounds=-1), "rounds"),
        (lambda: RandomMasks(count=0), "mask"),
    ],
)
def test_bad_parameters_are_refused(make, says):
    with pytest.raises(SearchError, match=says):
        make()
