"""Calibration: the score of a mask is what a rollout gives, whatever is remembered on the way."""

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
from levels import plain, static_shift
from zoo import entry

from budcache import Mask, OutputReuse, SearchError
from budcache.calibration.calibration import WORST, Calibration, arrival, latent_mse
from budcache.numerics.rollout import State, advance, rollout
from budcache.numerics.solvers import dpmpp2m, euler, ipndm2
from budcache.strategies import Space

STEPS = 7
SOLVERS = {"euler": euler, "ipndm2": ipndm2, "dpmpp2m": dpmpp2m}
masks = st.text("01", min_size=STEPS - 1, max_size=STEPS - 1).map(lambda rest: Mask.parse("1" + rest))
several = st.lists(masks, min_size=1, max_size=12)


def velocity(x, sigma):
    return torch.sin(3 * x + 2 * sigma) + x * (1.5 - sigma**2)


class Toy(OutputReuse):
    """A model with its run; reuses its output."""

    def __init__(self, batch=1, seed=0, solver=euler, field=velocity, steps=STEPS):
        super().__init__(field)
        self.noise = torch.randn(batch, 3, generator=torch.Generator().manual_seed(seed))
        self.sigmas = static_shift(plain(steps), 2.0)
        self._solver = solver

    def solver(self, sigmas=None):
        return self._solver


class Residual(Toy):
    """Reuses only a part of itself, so that reused steps matter."""

    def compute(self, x, sigma):
        self.calls += 1
        inside = torch.cos(2 * x)
        return inside + sigma * x, {"trunk": [inside]}

    def reuse(self, x, sigma, memo):
        return memo["trunk"][0] + sigma * x


kinds = pytest.mark.parametrize("kind", [Toy, Residual])
each_solver = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)


def state_bytes(x):
    """About what one remembered state of the toy weighs."""
    return 2 * x.nelement() * x.element_size()


@kinds
@each_solver
@settings(max_examples=20)
@given(asked=several, bound=st.integers(1, 400))
def test_scores_do_not_depend_on_what_is_remembered(kind, solver, asked, bound):
    runs = [(2, 0), (1, 1)]
    all_kept, some_kept, none_kept = (
        Calibration([kind(batch, seed, solver) for batch, seed in runs], state_memory=memory)
        for memory in (10**9, bound, 0)
    )
    for mask in asked:
        score = none_kept.score(mask)
        assert all_kept.score(mask) == score
        assert some_kept.score(mask) == score
    assert all_kept.calls <= some_kept.calls <= none_kept.calls


@kinds
@given(asked=several)
def test_without_memory_every_call_is_made(kind, asked):
    run = kind(batch=2)
    calibration = Calibration([run], state_memory=0)
    assert run.calls == STEPS
    for mask in asked:
        before = run.calls
        calibration.score(mask)
        assert run.calls - before == mask.budget


@kinds
@given(asked=several)
def test_with_memory_every_prefix_is_computed_once(kind, asked):
    run = kind()
    calibration = Calibration([run])
    for mask in asked:
        calibration.score(mask)
    prefixes = {mask.computed[:place] for mask in asked for place in range(1, mask.budget + 1)}
    assert run.calls == STEPS + len(prefixes)


def test_the_tree_saves_calls_in_a_climb():
    """F4: neighbours share prefixes."""
    calls = {}
    for memory in (0, 10**9):
        run = Toy()
        calibration = Calibration([run], state_memory=memory)
        start = Mask.uniform(STEPS, 4)
        for mask in [start, *Space(STEPS, 4).neighbours(start)]:
            calibration.score(mask)
        calls[memory] = run.calls
    assert calls[10**9] < calls[0]


@kinds
@given(asked=several, bound=st.integers(0, 300))
def test_no_more_is_remembered_than_allowed(kind, asked, bound):
    calibration = Calibration([kind(2), kind(1)], state_memory=bound)
    for mask in asked:
        calibration.score(mask)
        tree = calibration._tree
        held = {
            id(tensor): tensor.nelement() * tensor.element_size()
            for state in tree.known.values()
            for tensor in (state.x, state.memo if isinstance(state.memo, torch.Tensor) else state.memo["trunk"][0])
        }
        assert sum(held.values()) <= tree.size <= bound


def test_what_was_used_last_stays():
    one = Toy()
    room = state_bytes(one.noise) * 3
    calibration = Calibration([one], state_memory=room)
    often, other = Mask.of(STEPS, (0, 2)), [Mask.of(STEPS, (0, k)) for k in (3, 4, 5, 6)]
    calibration.score(often)
    for mask in other:  # each leaves one state more; the often used one never gets old
        calibration.score(mask)
        before = one.calls
        calibration.score(often)
        assert one.calls == before


@kinds
@each_solver
@given(mask=masks, seed=st.integers(0, 2**32))
def test_the_loss_is_that_of_a_rollout(kind, solver, mask, seed):
    calibration, run = Calibration([kind(2, seed, solver)]), kind(2, seed, solver)
    full = rollout(run, run.noise, run.sigmas, Mask.full(STEPS), solver)
    end = rollout(run, run.noise, run.sigmas, mask, solver)
    mean = (end.double() - full.double()).square().mean().item()
    assert calibration.score(mask).loss == pytest.approx(mean, rel=1e-12)
    assert torch.equal(calibration.teacher(0), full)
    assert torch.equal(calibration.finals(mask)[0], end)


@kinds
@each_solver
@given(mask=masks)
def test_arrivals_are_what_a_rollout_finds_on_its_way(kind, solver, mask):
    calibration, run = Calibration([kind(2, 5, solver)]), kind(2, 5, solver)
    full, here, errors = State(run.noise), State(run.noise), [torch.zeros(2)]
    for bit in mask:
        full = advance(run, full, run.sigmas, True, solver)
        here = advance(run, here, run.sigmas, bit, solver)
        errors.append((here.x.double() - full.x.double()).square().mean(1))  # one a sample
    score = calibration.score(mask)
    reached = mask.computed[-1] + 1
    assert score.arrivals == (*[None] * reached, *map(arrival, errors[reached:]))
    assert score.loss == pytest.approx(float(errors[-1].mean()), rel=1e-12)
    alone = Calibration([kind(1, 5, solver)]).score(mask)
    assert alone.arrivals[-1] == alone.loss


@given(st.lists(st.just(0.0) | st.floats(1e-200, 1e6), min_size=1, max_size=8), st.floats(1e-9, 1e9))
def test_an_arrival_is_a_power_mean_near_to_the_worst(values, factor):
    errors = torch.tensor(values, dtype=torch.float64)
    together, worst = arrival(errors), max(values)
    assert (sum(values) / len(values)) * (1 - 1e-12) <= together <= worst * (1 + 1e-12)
    assert together >= worst * len(values) ** (-1 / WORST) * (1 - 1e-12)
    assert arrival(errors.flip(0)) == pytest.approx(together, rel=1e-12)
    assert arrival(errors * factor) == pytest.approx(together * factor, rel=1e-12)  # however small: no power is lost
    assert arrival(errors[:1]) == values[0]


def test_a_sample_that_strays_far_counts_more_than_many_that_stray_a_little():
    even, uneven = torch.full((8,), 2.0), torch.tensor([9.0, *[1.0] * 7])
    assert even.mean() == uneven.mean()
    assert arrival(uneven) > 2 * arrival(even) == 4.0
    assert arrival(torch.tensor([3.0, 1.0, 2.0, 2.0])) == pytest.approx(((81 + 1 + 16 + 16) / 4) ** 0.25)


@kinds
@each_solver
def test_computing_everything_is_the_teacher(kind, solver):
    score = Calibration([kind(2, 0, solver), kind(1, 1, solver)]).score(Mask.full(STEPS))
    assert score.loss == 0.0
    assert score.arrivals == (*[None] * STEPS, 0.0)
    assert Calibration([kind(1, 0, solver)]).score(Mask.uniform(STEPS, 2)).loss > 0


@given(mask=masks, sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_every_sample_weighs_the_same(mask, sizes):
    runs = [Toy(size, seed) for seed, size in enumerate(sizes)]
    together = Calibration(runs)
    apart = [Calibration([Toy(size, seed)]).score(mask) for seed, size in enumerate(sizes)]
    score = together.score(mask)
    assert together.samples == sum(sizes)
    mean = sum(size * one.loss for size, one in zip(sizes, apart, strict=True)) / sum(sizes)
    assert score.loss == pytest.approx(mean, rel=1e-12)
    for j in range(mask.computed[-1] + 1, STEPS + 1):
        powers = [size * one.arrivals[j] ** WORST for size, one in zip(sizes, apart, strict=True)]
        assert score.arrivals[j] == pytest.approx((sum(powers) / sum(sizes)) ** (1 / WORST), rel=1e-12, abs=1e-30)


def test_calls_count_samples_and_the_teacher():
    calibration = Calibration([Toy(3), Toy(2)], state_memory=0)
    assert calibration.calls == STEPS * 5
    calibration.score(Mask.uniform(STEPS, 2))
    assert calibration.calls == (STEPS + 2) * 5


def test_the_teacher_and_the_noise_are_not_disturbed():
    run = Toy(2)
    noise = run.noise.clone()
    calibration = Calibration([run])
    teacher = calibration.teacher(0).clone()
    for mask in Space(STEPS, 3):
        calibration.score(mask)
    assert torch.equal(run.noise, noise)
    assert torch.equal(calibration.teacher(0), teacher)


def test_another_objective_changes_the_loss_but_not_the_arrivals():
    def largest(student, teacher, run):
        return float((student - teacher).abs().max())

    mask = Mask.uniform(STEPS, 3)
    usual, other = Calibration([Toy(2)]), Calibration([Toy(2)], objective=largest)
    difference = (usual.finals(mask)[0] - usual.teacher(0)).abs().max().item()
    assert other.score(mask).loss == difference
    assert other.score(mask).arrivals == usual.score(mask).arrivals


def test_small_errors_are_not_lost_in_half_precision():
    teacher = torch.full((2, 4), 300.0, dtype=torch.float16)
    assert latent_mse(teacher + 0.25, teacher, None).tolist() == [0.0625] * 2
    assert latent_mse(torch.zeros(2, 4, dtype=torch.float16), teacher, None).tolist() == [90_000] * 2  # beyond float16


def test_losses_are_told_sample_by_sample():
    """From an objective that tells one number, each sample has its run's; the geometric mean is of the samples."""
    mask, runs = Mask.uniform(STEPS, 4), [Toy(2, 0), Toy(3, 9)]
    calibration = Calibration(runs)
    finals = calibration.finals(mask)
    losses = calibration.losses(finals)
    expected = [
        (x.double() - y.double()).square().mean()
        for i, final in enumerate(finals)
        for x, y in zip(final, calibration.teacher(i), strict=True)
    ]
    torch.testing.assert_close(losses, torch.stack(expected))
    assert len(set(losses.tolist())) == 5
    assert calibration.loss(finals) == losses.mean()
    assert calibration.typical_loss(finals) == pytest.approx(math.prod(losses.tolist()) ** (1 / 5))
    told = Calibration([Toy(2, 0), Toy(3, 9)], objective=lambda student, teacher, run: float(len(student)))
    assert told.losses(finals).tolist() == [2, 2, 3, 3, 3]
    assert told.loss(finals) == pytest.approx(13 / 5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_full_run_that_is_not_finite_is_refused(bad):
    with pytest.raises(SearchError, match="the full run itself ends in numbers that are not finite"):
        Calibration([Toy(field=lambda x, sigma: x * bad)])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_refused(bad):
    """The model answers well on the teacher's way and badly beside it."""
    seen = []

    def field(x, sigma):
        if len(seen) < STEPS:
            seen.append(x)
            return velocity(x, sigma)
        return velocity(x, sigma) * bad

    calibration = Calibration([Toy(field=field)])
    with pytest.raises(SearchError, match=r"the loss of mask 1001010 is (nan|inf)\. .*float16") as caught:
        calibration.score(Mask.parse("1001010"))
    assert "\n" not in str(caught.value)


def test_an_objective_that_is_not_finite_is_refused():
    calibration = Calibration([Toy()], objective=lambda *_: math.nan)
    with pytest.raises(SearchError, match="is nan"):
        calibration.score(Mask.full(STEPS))


def test_nothing_to_calibrate_on():
    with pytest.raises(SearchError, match="at least one prompt"):
        Calibration([])


@pytest.mark.parametrize("steps", [STEPS - 1, STEPS + 1])
def test_a_mask_of_another_length_is_refused(steps):
    with pytest.raises(SearchError, match=f"the mask has {steps} steps, but the runs have {STEPS}"):
        Calibration([Toy()]).score(Mask.full(steps))


# A finer teacher (F7)


@kinds
@each_solver
@pytest.mark.parametrize("times", [2, 5])
def test_a_finer_teacher_passes_exactly_through_the_levels_that_it_shares(kind, solver, times):
    run, finer = kind(2, 3, solver), kind(2, 3, solver, steps=STEPS * times)
    torch.testing.assert_close(finer.sigmas[::times], run.sigmas, rtol=0, atol=1e-7)  # but for rounding
    calibration = Calibration([run], teacher_sigmas=finer.sigmas)
    state, states = State(finer.noise), [finer.noise]
    for _ in range(STEPS * times):
        state = advance(finer, state, finer.sigmas, True, solver)
        states.append(state.x)
    assert all(map(torch.equal, calibration.trajectory(0), states[::times]))
    assert len(calibration.trajectory(0)) == STEPS + 1
    assert torch.equal(calibration.teacher(0), states[-1])
    assert calibration.calls == 2 * STEPS * times
    # What is scored is still the run of K steps: even in full it is not the teacher.
    loss = calibration.score(Mask.full(STEPS)).loss
    mean = (calibration.finals(Mask.full(STEPS))[0].double() - states[-1].double()).square().mean().item()
    assert loss == pytest.approx(mean, rel=1e-12) and loss > 0


def test_between_its_levels_a_finer_teacher_goes_straight():
    run, finer = Toy(2), static_shift(plain(10), 2.0)
    calibration = Calibration([run], teacher_sigmas=finer)
    state, states = State(run.noise), [run.noise]
    for _ in range(10):
        state = advance(run, state, finer, True)
        states.append(state.x)
    for k in range(1, STEPS):
        before = int((finer > run.sigmas[k]).sum()) - 1
        part = float((run.sigmas[k] - finer[before]) / (finer[before + 1] - finer[before]))
        between = torch.lerp(states[before].double(), states[before + 1].double(), part).float()
        torch.testing.assert_close(calibration.trajectory(0)[k], between)
    assert torch.equal(calibration.trajectory(0)[0], run.noise)
    assert torch.equal(calibration.teacher(0), states[-1])


def test_a_teacher_that_begins_elsewhere_is_refused():
    with pytest.raises(
        SearchError, match=r"a teacher of 20 steps begins at the noise level 0\.9, the run of 7 steps at 1"
    ):
        Calibration([Toy()], teacher_sigmas=0.9 * plain(20))


def test_levels_of_ones_own_are_followed_to_the_last_bit():
    run = Toy(2)
    run.noise, run.sigmas = run.noise.double(), run.sigmas.double()
    levels = tuple((run.sigmas**1.1).tolist())
    (end,) = Calibration([run]).finals(Mask.parse("1101010"), None, levels)
    expected = rollout(run, run.noise, torch.tensor(levels, dtype=torch.float64), Mask.parse("1101010"))
    assert torch.equal(end, expected)


# Real pipelines, through the seam.


@cache
def pipeline(name):
    return entry(name).build()


def calibration_of(stack, name, reuse, memory, seeds=(0, 1)):
    kind = entry(name)
    runs = [
        stack.enter_context(opened(kind, pipeline(name), seed, steps=STEPS, reuse=reuse, prompt=text))
        for seed, text in zip(seeds, ("a cat", "a dog"), strict=False)
    ]
    return Calibration(runs, state_memory=memory)


@pytest.mark.parametrize(
    ("name", "reuse"),
    [("flux", "output"), ("flux", "residual"), ("flux-dpm", "output"), ("flux-dpm", "residual"), ("sd3", "residual")],
)
@settings(max_examples=3)
@given(asked=st.lists(masks, min_size=4, max_size=8), bound=st.integers(2_000, 40_000))
def test_pipelines_score_the_same_whatever_is_remembered(name, reuse, asked, bound):
    with ExitStack() as stack:
        all_kept, some_kept, none_kept = (calibration_of(stack, name, reuse, memory) for memory in (10**9, bound, 0))
        for mask in asked:
            score = none_kept.score(mask)
            assert score.loss > 0 or mask == Mask.full(STEPS)
            assert all_kept.score(mask) == score
            assert some_kept.score(mask) == score
            assert some_kept._tree.size <= bound
        assert all_kept.calls <= some_kept.calls <= none_kept.calls
        assert none_kept.score(Mask.full(STEPS)).loss == 0.0


@pytest.mark.parametrize("reuse", ["output", "residual"])
def test_pipelines_are_called_as_often_as_they_say(reuse):
    """The first call is shared by the teacher and all masks: all begin with the same noise."""
    pipe, heard = pipeline("flux"), []
    hook = pipe.transformer.transformer_blocks[0].register_forward_hook(lambda *_: heard.append(1))
    rng = Random(0)
    try:
        with ExitStack() as stack:
            calibration = calibration_of(stack, "flux", reuse, 10**9)
            assert len(heard) == calibration.calls == 2 * STEPS
            for _ in range(6):
                calibration.score(Space(STEPS, 4).random(rng))
                assert len(heard) == calibration.calls
    finally:
        hook.remove()
