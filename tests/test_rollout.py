from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from levels import plain, static_shift
from torch.testing import assert_close

from budcache import Mask, OutputReuse
from budcache.numerics.rollout import State, advance, blend, rollout
from budcache.numerics.solvers import dpmpp2m, euler, ipndm2

solvers = pytest.mark.parametrize("solver", [euler, ipndm2, dpmpp2m], ids=lambda solver: solver.__name__)
masks = st.text("01", max_size=11).map(lambda rest: Mask.parse("1" + rest))
shapes = st.lists(st.integers(1, 3), min_size=1, max_size=4)
shifts = st.floats(0.3, 5)
seeds = st.integers(0, 2**32)


def noise(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def velocity(x, sigma):
    """A field that bends in x and sigma, so that reusing it is never right by accident."""
    return torch.sin(3 * x + 2 * sigma) + x * (1.5 - sigma**2)


def levels(mask, shift=1.0, dtype=torch.float64):
    return static_shift(plain(len(mask)).to(dtype), shift)


class Diary(OutputReuse):
    """A model that writes down what it is asked for."""

    def __init__(self):
        super().__init__(velocity)
        self.pages = []

    def compute(self, x, sigma):
        self.pages.append(("compute", sigma.item()))
        return super().compute(x, sigma)

    def reuse(self, x, sigma, memo):
        self.pages.append(("reuse", sigma.item()))
        return super().reuse(x, sigma, memo)


class Residual:
    """A model that reuses only a part of itself, as a transformer's block stack is reused."""

    def compute(self, x, sigma):
        inside = torch.cos(2 * x)
        return inside + sigma * x, inside

    def reuse(self, x, sigma, memo):
        return memo + sigma * x


@solvers
@given(steps=st.integers(1, 12), shape=shapes, shift=shifts, seed=seeds)
def test_computing_every_step_is_the_plain_solver(solver, steps, shape, shift, seed):
    mask = Mask.full(steps)
    start, sigmas = noise(*shape, seed=seed, dtype=torch.float32), levels(mask, shift, torch.float32)
    x, past = start, None
    for k in range(steps):
        x, past = solver(x, velocity(x, sigmas[k]), sigmas[k], sigmas[k + 1], past)
    assert torch.equal(rollout(OutputReuse(velocity), start, sigmas, mask, solver), x)


@solvers
@given(mask=masks)
def test_the_model_is_asked_as_the_mask_says(solver, mask):
    model, sigmas = Diary(), levels(mask)
    rollout(model, noise(2, 3), sigmas, mask, solver)
    assert model.calls == mask.budget
    assert model.pages == [
        ("compute" if bit else "reuse", sigma.item()) for bit, sigma in zip(mask, sigmas, strict=False)
    ]


@given(masks, shapes, shifts, seeds)
def test_euler_with_output_reuse_is_euler_on_the_computed_levels(mask, shape, shift, seed):
    """F1: reused steps add up to one long step."""
    x, sigmas = noise(*shape, seed=seed), levels(mask, shift)
    fewer = sigmas[[*mask.computed, len(mask)]]
    assert_close(
        rollout(OutputReuse(velocity), x, sigmas, mask),
        rollout(OutputReuse(velocity), x, fewer, Mask.full(mask.budget)),
    )


def test_reuse_of_a_part_does_not_add_up():
    """F1 holds for output reuse only; otherwise the test above would show nothing."""
    mask, x = Mask.parse("100100"), noise(8)
    sigmas = levels(mask)
    long = rollout(Residual(), x, sigmas[[0, 3, 6]], Mask.full(2))
    assert (rollout(Residual(), x, sigmas, mask) - long).abs().max() > 0.01


@given(masks, shifts, seeds)
def test_levels_inside_a_reused_run_have_no_gradient(mask, shift, seed):
    sigmas = levels(mask, shift).requires_grad_()
    end = rollout(OutputReuse(velocity), noise(3, seed=seed), sigmas, mask)
    (gradient,) = torch.autograd.grad((end * noise(3, seed=seed + 1)).sum(), sigmas)
    felt = {*mask.computed, len(mask)}
    assert {k for k, slope in enumerate(gradient.tolist()) if slope != 0} == felt


@solvers
@given(mask=masks, width=st.integers(1, 3), seed=seeds)
def test_weights_of_plain_reuse_are_plain_reuse(solver, mask, width, seed):
    rows = [(1.0, 0.0, 0.0)[: min(width, row + 1)] for row in range(mask.budget)]
    x, sigmas = noise(2, 3, seed=seed, dtype=torch.float32), levels(mask, dtype=torch.float32)
    plainly = rollout(OutputReuse(velocity), x, sigmas, mask, solver)
    assert torch.equal(rollout(OutputReuse(velocity), x, sigmas, mask, solver, rows), plainly)
    tensors = [torch.tensor(row) for row in rows]
    assert torch.equal(rollout(OutputReuse(velocity), x, sigmas, mask, solver, tensors), plainly)


@given(masks, st.integers(1, 4), shifts, seeds)
def test_a_blend_steps_from_stretch_to_stretch(mask, width, shift, seed):
    """F6: over the stretch from computed step i to j, x_j = x_i + (sigma_j - sigma_i) * sum of w_q v_(i-q)."""
    sigmas = levels(mask, shift)
    rows = [noise(min(width, row + 1), seed=seed + row).tolist() for row in range(mask.budget)]
    x, outputs = noise(2, 3, seed=seed), []
    for row, (begin, end) in zip(rows, mask.segments, strict=True):
        outputs.insert(0, velocity(x, sigmas[begin]))
        x = x + (sigmas[end] - sigmas[begin]) * sum(w * v for w, v in zip(row, outputs, strict=False))
    assert_close(rollout(OutputReuse(velocity), noise(2, 3, seed=seed), sigmas, mask, weights=rows), x)


def test_gradients_reach_the_weights():
    mask = Mask.parse("10110")
    rows = [
        torch.tensor(row, dtype=torch.float64, requires_grad=True) for row in ([1.0], [1.2, -0.2], [0.9, 0.3, -0.2])
    ]
    end = rollout(OutputReuse(velocity), noise(3), levels(mask), mask, weights=rows)
    for gradient in torch.autograd.grad(end.square().sum(), rows):
        assert gradient.isfinite().all()
        assert (gradient != 0).all()


def test_blend_by_hand():
    one, two = torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])
    assert blend([one, two], [2.0, 0.5]).tolist() == [7.0, 14.0]
    assert blend([one, two], [2.0]).tolist() == [2.0, 4.0]


@pytest.mark.parametrize(
    ("model", "weighted"),
    [(OutputReuse(velocity), False), (OutputReuse(velocity), True), (Residual(), False)],
    ids=["output", "blend", "residual"],
)
@solvers
@given(mask=masks, tail=st.text("01", max_size=6), seed=seeds)
def test_masks_share_the_states_of_their_prefix(model, solver, weighted, mask, tail, seed):
    whole = Mask.parse(str(mask) + tail)
    x, sigmas = noise(2, 3, seed=seed, dtype=torch.float32), levels(whole, dtype=torch.float32)
    rows = [noise(min(3, row + 1), seed=row).tolist() for row in range(whole.budget)] if weighted else None
    state = State(x)
    for bit in mask:
        state = advance(model, state, sigmas, bit, solver, rows)
    assert (state.step, state.computed) == (len(mask), mask.budget)
    # Two tails from one saved state: neither may disturb it.
    for ending in (tail, tail[:-1] + "0" if tail else "", tail):
        rest = state
        for character in ending:
            rest = advance(model, rest, sigmas, character == "1", solver, rows)
        assert torch.equal(rest.x, rollout(model, x, sigmas, Mask.parse(str(mask) + ending), solver, rows))


def test_a_state_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        State(noise(3)).step = 1


def test_only_blended_outputs_are_kept():
    mask = Mask.full(6)
    state, blended = State(noise(3)), State(noise(3))
    rows = [(1.0,), (1.0, 0.0), *[(1.0, 0.0)] * 4]
    for _ in mask:
        state = advance(OutputReuse(velocity), state, levels(mask), True)
        blended = advance(OutputReuse(velocity), blended, levels(mask), True, weights=rows)
    assert len(state.outputs) == 0
    assert len(blended.outputs) == 2


@solvers
@given(mask=masks, seed=seeds, data=st.data())
def test_a_run_may_begin_midway_and_computes_there(solver, mask, seed, data):
    begin = data.draw(st.integers(0, len(mask)))
    x, sigmas, model = noise(2, 3, seed=seed), levels(mask), Diary()
    end = rollout(model, x, sigmas, mask, solver, begin=begin)
    rest = str(mask)[begin:]
    if not rest:
        assert torch.equal(end, x)
        return
    asked = ["compute", *("compute" if bit == "1" else "reuse" for bit in rest[1:])]
    assert model.pages == list(zip(asked, sigmas[begin:-1].tolist(), strict=True))
    assert torch.equal(end, rollout(OutputReuse(velocity), x, sigmas[begin:], Mask.parse("1" + rest[1:]), solver))


@solvers
def test_a_run_leaves_its_inputs_alone(solver):
    mask, x = Mask.parse("11010"), noise(2, 3)
    sigmas, model = levels(mask), OutputReuse(velocity)
    before = x.clone(), sigmas.clone()
    ends = [rollout(model, x, sigmas, mask, solver) for _ in range(2)]
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(x, before[0])
    assert torch.equal(sigmas, before[1])
