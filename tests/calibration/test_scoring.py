"""Scoring masks with plain reuse: what a rollout gives, whatever is remembered on the way."""

from __future__ import annotations

import math
from contextlib import ExitStack
from functools import cache
from random import Random

import pytest
import torch
from helpers import opened
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import SOLVERS, Residual, Toy, velocity
from zoo import entry

from budcache import Mask, Policy, SearchError
from budcache.calibration.calibration import Calibration
from budcache.calibration.scoring import PlainScorer
from budcache.numerics.rollout import rollout
from budcache.plan import Plan
from budcache.strategies import Space

STEPS = 7
masks = st.text("01", min_size=STEPS - 1, max_size=STEPS - 1).map(lambda rest: Mask.parse("1" + rest))
several = st.lists(masks, min_size=1, max_size=8)
kinds = pytest.mark.parametrize("kind", [Toy, Residual])
each_solver = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)


def calibrated(kind, solver=SOLVERS["euler"], samples=(2, 1), **more):
    runs = [kind(seed, count, solver, STEPS) for seed, count in enumerate(samples)]
    return Calibration(runs, residual=kind is Residual, **more)


@kinds
@each_solver
@settings(max_examples=12)
@given(asked=several, bound=st.integers(1, 2000))
def test_scores_do_not_depend_on_what_is_remembered(kind, solver, asked, bound):
    calls, scores = [], []
    for memory in (10**9, bound, 0):
        calibration = calibrated(kind, solver)
        scorer = PlainScorer(calibration, memory=memory)
        scores.append(list(scorer.score_many(asked)))
        calls.append(calibration.calls)
    assert scores[0] == scores[1] == scores[2]
    assert calls[0] <= calls[1] <= calls[2]


def test_remembering_saves_calls_in_a_climb():
    """F4: neighbours share prefixes."""
    calls, start = {}, Mask.uniform(STEPS, 4)
    for memory in (0, 10**9):
        calibration = calibrated(Toy)
        list(PlainScorer(calibration, memory=memory).score_many([start, *Space(STEPS, 4).neighbours(start)]))
        calls[memory] = calibration.calls
    assert calls[10**9] < calls[0]


def test_masks_are_scored_when_they_are_asked_for():
    """So that a search may stop in the middle of an ask."""
    calibration = calibrated(Toy)
    scores = PlainScorer(calibration).score_many([Mask.parse("1000000"), Mask.parse("1001000")])
    assert calibration.calls == 3 * STEPS
    next(scores)
    assert calibration.calls == 3 * (STEPS + 1)


@kinds
@each_solver
@settings(max_examples=25)
@given(mask=masks, seed=st.integers(0, 2**32))
def test_losses_and_arrivals_are_those_of_a_rollout(kind, solver, mask, seed):
    """Sample by sample: at the end, and at every step that reuse alone reaches from the last computed one."""
    reuse = "residual" if kind is Residual else "output"
    calibration = Calibration([kind(seed, 2, solver, STEPS)], residual=kind is Residual)
    score, run = PlainScorer(calibration).score(mask), kind(seed, 2, solver, STEPS)

    def error(step):
        ends = [
            rollout(run, run.noise, Plan.of(Policy(mask=each, reuse=reuse), run.sigmas, 0, step), solver)
            for each in (mask, Mask.full(STEPS))
        ]
        return (ends[0] - ends[1]).square().mean(1).tolist()

    reached = mask.computed[-1] + 1
    assert score.arrivals[:reached] == (None,) * reached
    for step in range(reached, STEPS + 1):
        assert score.arrivals[step] == pytest.approx(error(step), rel=1e-12)
    assert score.losses == score.arrivals[STEPS]
    assert len(score.arrivals) == STEPS + 1


@kinds
@each_solver
def test_computing_everything_is_the_teacher(kind, solver):
    score = PlainScorer(calibrated(kind, solver)).score(Mask.full(STEPS))
    assert score.losses == (0.0,) * 3
    assert score.arrivals == (*[None] * STEPS, (0.0,) * 3)
    assert min(PlainScorer(calibrated(kind, solver)).score(Mask.uniform(STEPS, 2)).losses) > 0


@settings(max_examples=15)
@given(mask=masks, sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4))
def test_a_sample_scores_the_same_whoever_is_beside_it(mask, sizes):
    """In one batch, in several, or by itself."""
    noises = [Toy(seed).noise for seed in range(sum(sizes))]

    def scored(sizes):
        runs, rest = [], list(noises)
        for size in sizes:
            run = Toy(0, steps=STEPS)
            run.noise, rest = torch.cat(rest[:size]), rest[size:]
            runs.append(run)
        return PlainScorer(Calibration(runs)).score(mask)

    together, alone = scored(sizes), scored([1] * len(noises))
    assert together.losses == pytest.approx(alone.losses, rel=1e-9, abs=1e-25)
    for one, other in zip(together.arrivals, alone.arrivals, strict=True):
        assert one == (other if other is None else pytest.approx(other, rel=1e-9, abs=1e-25))


def test_another_objective_changes_the_losses_but_not_the_arrivals():
    def largest(student, teacher, run):
        return (student - teacher).abs().amax(1)

    usual, other = calibrated(Toy), calibrated(Toy, objective=largest)
    mask = Mask.uniform(STEPS, 3)
    finals = usual.finals(Policy(mask=mask))
    score = PlainScorer(other).score(mask)
    expected = [(x - usual.teacher(run)).abs().amax(1) for run, x in enumerate(finals)]
    assert score.losses == tuple(torch.cat(expected).tolist())
    assert score.arrivals == PlainScorer(usual).score(mask).arrivals


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_refused(bad):
    """The model answers well on the teacher's way and badly beside it."""
    seen = []

    def field(x, sigma):
        seen.append(x)
        return velocity(x, sigma) * (bad if len(seen) > STEPS else 1.0)

    scorer = PlainScorer(Calibration([Toy(0, steps=STEPS, field=field)]))
    with pytest.raises(SearchError, match=r"the loss of mask 1001010 is (nan|inf)\. .*float16"):
        scorer.score(Mask.parse("1001010"))


@pytest.mark.parametrize("steps", [STEPS - 1, STEPS + 1])
def test_a_mask_of_another_length_is_refused(steps):
    scorer = PlainScorer(calibrated(Toy))
    for action in (scorer.score, lambda mask: next(scorer.score_many([mask]))):
        with pytest.raises(SearchError, match=f"the mask has {steps} steps, but the runs have {STEPS}"):
            action(Mask.full(steps))


# Real pipelines, through the seam.


@cache
def pipeline(name):
    return entry(name).build()


def opened_twice(stack, name, reuse):
    runs = [
        stack.enter_context(opened(entry(name), pipeline(name), seed, steps=STEPS, reuse=reuse, prompt=text))
        for seed, text in enumerate(("a cat", "a dog"))
    ]
    return Calibration(runs, residual=reuse == "residual")


ASKED = [*map(Mask.parse, ("1010010", "1010100", "1000000", "1111111", "1010011", "1010010"))]


@pytest.mark.parametrize(
    ("name", "reuse"),
    [("flux", "output"), ("flux", "residual"), ("flux-dpm", "output"), ("flux-dpm", "residual"), ("sd3", "residual")],
)
def test_pipelines_score_the_same_whatever_is_remembered(name, reuse):
    scores, calls, sizes = [], [], [10**9]
    with ExitStack() as stack:
        for share in (1, 0.6, 0):  # of what there is to remember
            calibration = opened_twice(stack, name, reuse)
            scorer = PlainScorer(calibration, memory=int(sizes[-1] * share))
            scores.append(list(scorer.score_many(ASKED)))
            calls.append(calibration.calls)
            sizes.append(calibration.prefixes(scorer.scope)._memory.size)
    assert scores[0] == scores[1] == scores[2]
    assert sizes[1] > sizes[2] > sizes[3] == 0
    assert calls[0] <= calls[1] <= calls[2] > calls[0]
    assert [score.loss == 0 for score in scores[0]] == [mask == Mask.full(STEPS) for mask in ASKED]


@pytest.mark.parametrize("reuse", ["output", "residual"])
def test_pipelines_are_called_as_often_as_they_say(reuse):
    """The first call is shared by the teacher and all masks: all begin with the same noise."""
    pipe, heard = pipeline("flux"), []
    hook = pipe.transformer.transformer_blocks[0].register_forward_hook(lambda *_: heard.append(1))
    rng = Random(0)
    try:
        with ExitStack() as stack:
            calibration = opened_twice(stack, "flux", reuse)
            assert len(heard) == calibration.calls == 2 * STEPS
            scorer = PlainScorer(calibration, memory=10**9)
            for _ in range(6):
                scorer.score(Space(STEPS, 4).random(rng))
                assert len(heard) == calibration.calls
    finally:
        hook.remove()
