"""The one loop: equation 2, for any plan, model and solver."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from levels import plain, static_shift
from torch.testing import assert_close

from budcache import Mask, OutputReuse, Policy
from budcache.numerics.rollout import State, blended, coast, compute, ended, levels_of, reuse, rollout
from budcache.numerics.solvers import dpmpp2m, euler, ipndm2
from budcache.plan import Plan, Stretch

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


def planned(mask, sigmas, rows=None, kind="output", **more):
    return Plan.of(Policy(mask=mask, weights=rows, reuse=kind), sigmas, **more)


def some_rows(mask, width, seed=0):
    """Blend weights of no meaning."""
    return [noise(min(width, row + 1), seed=seed + row).tolist() for row in range(mask.budget)]


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


def equation_2(model, x, sigmas, mask, solver, rows=None, kind="output", begin=0, end=None):
    """The definition, step by step: compute or reuse, then let the solver make its step."""
    past, outputs, memo, v = None, [], None, None
    for k in range(begin, len(mask) if end is None else end):
        if mask[k] or k == begin:
            v, memo = model.compute(x, sigmas[k])
            outputs.insert(0, v)
            row = None if rows is None else rows[sum(mask.bits[:k])]
            v = v if row is None else sum(w * old for w, old in zip(row, outputs, strict=False))
        elif kind == "residual":
            v = model.reuse(x, sigmas[k], memo)
        x, past = solver(x, v, sigmas[k], sigmas[k + 1], past)
    return x


kinds = pytest.mark.parametrize("kind", ["output", "residual", "blend"])


@solvers
@kinds
@given(mask=masks, shape=shapes, shift=shifts, seed=seeds)
def test_a_rollout_is_equation_2(solver, kind, mask, shape, shift, seed):
    x, sigmas = noise(*shape, seed=seed), levels(mask, shift)
    rows = some_rows(mask, 3, seed) if kind == "blend" else None
    kind, model = ("residual", Residual()) if kind == "residual" else ("output", OutputReuse(velocity))
    assert torch.equal(
        rollout(model, x, planned(mask, sigmas, rows, kind), solver),
        equation_2(model, x, sigmas, mask, solver, rows, kind),
    )


@solvers
@given(steps=st.integers(1, 12), shape=shapes, shift=shifts, seed=seeds)
def test_computing_every_step_is_the_plain_solver(solver, steps, shape, shift, seed):
    mask = Mask.full(steps)
    start, sigmas = noise(*shape, seed=seed, dtype=torch.float32), levels(mask, shift, torch.float32)
    x, past = start, None
    for k in range(steps):
        x, past = solver(x, velocity(x, sigmas[k]), sigmas[k], sigmas[k + 1], past)
    assert torch.equal(rollout(OutputReuse(velocity), start, planned(mask, sigmas), solver), x)


@solvers
@pytest.mark.parametrize("kind", ["output", "residual"])
@given(mask=masks)
def test_the_model_is_asked_as_the_mask_says(solver, kind, mask):
    model, sigmas = Diary(), levels(mask)
    rollout(model, noise(2, 3), planned(mask, sigmas, kind=kind), solver)
    assert model.calls == mask.budget
    steps = [("compute" if bit else "reuse", sigma.item()) for bit, sigma in zip(mask, sigmas, strict=False)]
    # Repeating an output needs no model at all.
    assert model.pages == [page for page in steps if kind == "residual" or page[0] == "compute"]


@given(masks, shapes, shifts, seeds)
def test_euler_with_output_reuse_is_euler_on_the_computed_levels(mask, shape, shift, seed):
    """F1: reused steps add up to one long step."""
    x, sigmas = noise(*shape, seed=seed), levels(mask, shift)
    fewer = sigmas[[*mask.computed, len(mask)]]
    assert_close(
        rollout(OutputReuse(velocity), x, planned(mask, sigmas)),
        rollout(OutputReuse(velocity), x, planned(Mask.full(mask.budget), fewer)),
    )


def test_reuse_of_a_part_does_not_add_up():
    """F1 holds for output reuse only; otherwise the test above would show nothing."""
    mask, x = Mask.parse("100100"), noise(8)
    sigmas = levels(mask)
    long = rollout(Residual(), x, planned("11", sigmas[[0, 3, 6]], kind="residual"))
    assert (rollout(Residual(), x, planned(mask, sigmas, kind="residual")) - long).abs().max() > 0.01


@given(masks, shifts, seeds)
def test_levels_inside_a_reused_run_have_no_gradient(mask, shift, seed):
    sigmas = levels(mask, shift).requires_grad_()
    end = rollout(OutputReuse(velocity), noise(3, seed=seed), planned(mask, sigmas))
    (gradient,) = torch.autograd.grad((end * noise(3, seed=seed + 1)).sum(), sigmas)
    felt = {*mask.computed, len(mask)}
    assert {k for k, slope in enumerate(gradient.tolist()) if slope != 0} == felt


@solvers
@given(mask=masks, width=st.integers(1, 3), seed=seeds)
def test_weights_of_plain_reuse_are_plain_reuse(solver, mask, width, seed):
    rows = [(1.0, 0.0, 0.0)[: min(width, row + 1)] for row in range(mask.budget)]
    x, sigmas = noise(2, 3, seed=seed, dtype=torch.float32), levels(mask, dtype=torch.float32)
    plan = planned(mask, sigmas)
    plainly = rollout(OutputReuse(velocity), x, plan, solver)
    assert torch.equal(rollout(OutputReuse(velocity), x, planned(mask, sigmas, rows), solver), plainly)
    tensors = tuple(replace(stretch, blend=torch.tensor(row)) for stretch, row in zip(plan, rows, strict=True))
    assert torch.equal(rollout(OutputReuse(velocity), x, replace(plan, stretches=tensors), solver), plainly)


@given(masks, st.integers(1, 4), shifts, seeds)
def test_a_blend_steps_from_stretch_to_stretch(mask, width, shift, seed):
    """F6: over the stretch from computed step i to j, x_j = x_i + (sigma_j - sigma_i) * sum of w_q v_(i-q)."""
    sigmas, rows = levels(mask, shift), some_rows(mask, width, seed)
    x, outputs = noise(2, 3, seed=seed), []
    for row, (begin, end) in zip(rows, mask.segments, strict=True):
        outputs.insert(0, velocity(x, sigmas[begin]))
        x = x + (sigmas[end] - sigmas[begin]) * sum(w * v for w, v in zip(row, outputs, strict=False))
    assert_close(rollout(OutputReuse(velocity), noise(2, 3, seed=seed), planned(mask, sigmas, rows)), x)


def test_gradients_reach_the_weights():
    plan = planned("10110", levels("10110"))
    rows = [
        torch.tensor(row, dtype=torch.float64, requires_grad=True) for row in ([1.0], [1.2, -0.2], [0.9, 0.3, -0.2])
    ]
    learned = tuple(replace(stretch, blend=row) for stretch, row in zip(plan, rows, strict=True))
    end = rollout(OutputReuse(velocity), noise(3), replace(plan, stretches=learned))
    for gradient in torch.autograd.grad(end.square().sum(), rows):
        assert gradient.isfinite().all()
        assert (gradient != 0).all()


def test_a_blend_by_hand():
    one, two = torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])
    assert blended([one, two], [2.0, 0.5]).tolist() == [7.0, 14.0]
    assert blended([one, two], [2.0]).tolist() == [2.0, 4.0]
    assert blended([one, two], None) is one


def test_levels_are_numbers_or_a_tensor_that_stays_itself():
    sigmas = levels("101").requires_grad_()
    assert levels_of(planned("101", sigmas)) is sigmas
    assert levels_of(planned("101", (1.0, 0.5, 0.25, 0.0))).tolist() == [1.0, 0.5, 0.25, 0.0]


def follow(model, state, plan, solver, stretches):
    """Some of a plan's stretches, one after the other."""
    sigmas = levels_of(plan)
    for stretch in stretches:
        computed = compute(model, state, sigmas, 3)
        state = ended(reuse(model, computed, stretch, sigmas, solver, plan.reuse == "residual"))
    return state


@st.composite
def forks(draw):
    """A mask, and two ways to go on from its end."""
    mask, size = draw(masks), draw(st.integers(0, 5))
    return mask, [Mask.parse(f"{mask}1{draw(st.text('01', min_size=size, max_size=size))}") for _ in range(2)]


@solvers
@kinds
@given(fork=forks(), seed=seeds)
def test_plans_share_the_states_of_their_prefix(solver, kind, fork, seed):
    """F4: two ways on from one state, and neither disturbs it."""
    mask, wholes = fork
    model = Residual() if kind == "residual" else OutputReuse(velocity)
    x, sigmas = noise(2, 3, seed=seed, dtype=torch.float32), levels(wholes[0], dtype=torch.float32)
    plans = [
        planned(
            whole,
            sigmas,
            some_rows(whole, 3) if kind == "blend" else None,
            kind="residual" if kind == "residual" else "output",
        )
        for whole in wholes
    ]
    state = follow(model, State(x), plans[0], solver, plans[0].stretches[: mask.budget])
    assert state.step == len(mask)
    for plan in (*plans, plans[0]):
        end = follow(model, state, plan, solver, plan.stretches[mask.budget :])
        assert torch.equal(end.x, rollout(model, x, plan, solver))


@kinds
def test_a_stretch_tells_every_state_on_its_way(kind):
    model, sigmas = Residual() if kind == "residual" else OutputReuse(velocity), levels("1" * 6)
    start = compute(model, State(noise(3), step=1, outputs=(noise(3, seed=1),)), sigmas, keep=2)
    stretch = Stretch(1, 5, (1.4, -0.4) if kind == "blend" else None)
    states = list(reuse(model, start, stretch, sigmas, ipndm2, residual=kind == "residual"))
    assert [state.step for state in states] == [2, 3, 4, 5]
    for place, state in enumerate(states, 2):
        shorter = reuse(model, start, replace(stretch, end=place), sigmas, ipndm2, residual=kind == "residual")
        assert torch.equal(ended(shorter).x, state.x)
    if kind != "residual":
        coasted = coast(start, blended(start.outputs, stretch.blend), 5, sigmas, ipndm2)
        assert torch.equal(ended(coasted).x, states[-1].x)


def test_a_state_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        State(noise(3)).step = 1


def test_only_as_many_outputs_are_kept_as_are_wanted():
    for keep in (1, 2, 5):
        state = State(noise(3))
        for step in range(4):
            state = compute(OutputReuse(velocity), replace(state, step=step), levels("1111"), keep)
            assert len(state.outputs) == min(keep, step + 1)
    assert planned("1101", levels("1101"), [[1.0], [1.0], [1.0, 0.0]]).outputs == 2
    assert planned("1101", levels("1101")).outputs == 1


@solvers
@kinds
@given(mask=masks, seed=seeds, data=st.data())
def test_a_part_of_a_run_is_equation_2_from_there(solver, kind, mask, seed, data):
    """It computes where it begins; blends that it cannot form are left out."""
    begin = data.draw(st.integers(0, len(mask) - 1))
    end = data.draw(st.integers(begin + 1, len(mask)))
    x, sigmas, rows = noise(2, 3, seed=seed), levels(mask), some_rows(mask, 3, seed) if kind == "blend" else None
    kind, model = ("residual", Residual()) if kind == "residual" else ("output", OutputReuse(velocity))
    plan = planned(mask, sigmas, rows, kind, begin=begin, end=end)
    if rows is not None:
        formed = {stretch.step: stretch.blend for stretch in plan}
        rows = [formed.get(step) for step in mask.computed]
        rows = rows if mask[begin] else [*rows[: sum(mask.bits[:begin])], None, *rows[sum(mask.bits[:begin]) :]]
        mask = Mask.of(len(mask), {*mask.computed, begin})
    found = rollout(model, x, plan, solver)
    assert torch.equal(found, equation_2(model, x, sigmas, mask, solver, rows, kind, begin, end))


@solvers
def test_a_run_leaves_its_inputs_alone(solver):
    x, sigmas, model = noise(2, 3), levels("11010"), OutputReuse(velocity)
    before = x.clone(), sigmas.clone()
    ends = [rollout(model, x, planned("11010", sigmas), solver) for _ in range(2)]
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(x, before[0])
    assert torch.equal(sigmas, before[1])
