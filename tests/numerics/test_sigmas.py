from __future__ import annotations

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from budcache.numerics import sigmas

STEPS = [1, 2, 5, 28, 50]


def of_diffusers(steps, mu=None, **config):
    """The noise levels that diffusers' own scheduler sets for a pipeline of `steps` steps."""
    scheduler = FlowMatchEulerDiscreteScheduler(**config)
    scheduler.set_timesteps(sigmas=np.linspace(1, 1 / steps, steps), mu=mu)
    return scheduler.sigmas


def same(ours, theirs):
    assert_close(ours, theirs, rtol=1e-6, atol=0)


@pytest.mark.parametrize("steps", STEPS)
def test_plain_levels_are_those_of_diffusers(steps):
    same(sigmas.plain(steps), of_diffusers(steps))


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("shift", [1.0, 3.0, 7.0])
def test_static_shift_is_that_of_diffusers(steps, shift):
    same(sigmas.static_shift(sigmas.plain(steps), shift), of_diffusers(steps, shift=shift))


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("tokens", [64, 256, 1024, 4096])
def test_flux_is_that_of_diffusers(steps, tokens):
    mu = sigmas.flux_mu(tokens)
    theirs = of_diffusers(steps, mu, shift=3.0, use_dynamic_shifting=True)
    same(sigmas.dynamic_shift(sigmas.plain(steps), mu), theirs)
    same(sigmas.flux(steps, tokens), theirs)


def test_flux_mu_by_hand():
    assert sigmas.flux_mu(256) == 0.5
    assert sigmas.flux_mu(4096) == pytest.approx(1.15, abs=1e-12)
    assert sigmas.flux_mu((256 + 4096) // 2) == pytest.approx((0.5 + 1.15) / 2, abs=1e-12)
    assert sigmas.flux_mu(300, base_tokens=100, max_tokens=500, base_shift=1.0, max_shift=2.0) == 1.5


def test_shifts_by_hand():
    assert_close(sigmas.static_shift(torch.tensor([0.5, 0.25]), 3.0), torch.tensor([0.75, 0.5]))
    assert_close(sigmas.dynamic_shift(torch.tensor([0.5]), float(np.log(3.0))), torch.tensor([0.75]))


@given(st.integers(1, 200), st.floats(0.1, 12), st.integers(16, 16384))
def test_levels_fall_from_one_to_zero(steps, shift, tokens):
    for levels in (
        sigmas.plain(steps),
        sigmas.static_shift(sigmas.plain(steps), shift),
        sigmas.flux(steps, tokens),
    ):
        assert levels.shape == (steps + 1,)
        assert (levels[0], levels[-1]) == (1, 0)
        assert (levels.diff() < 0).all()


@given(st.floats(0.1, 12), st.floats(0.1, 12))
def test_shifts_multiply(one, other):
    levels = sigmas.plain(20).double()
    assert_close(sigmas.static_shift(sigmas.static_shift(levels, one), other), sigmas.static_shift(levels, one * other))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_end_is_appended(dtype):
    levels = sigmas.with_end(torch.tensor([1.0, 0.5], dtype=dtype), end=0.25)
    assert levels.tolist() == [1.0, 0.5, 0.25]
    assert levels.dtype == dtype


# Levels that are learned


def falling(gaps):
    """Levels with given gaps, down to zero."""
    return torch.tensor([*gaps, 0.0], dtype=torch.float64).flip(0).cumsum(0).flip(0)


references = st.lists(st.floats(1e-4, 1.0), min_size=1, max_size=30).map(falling)


@given(st.integers(1, 60), st.floats(0.2, 12), st.sampled_from([torch.float32, torch.float64]), st.floats(0, 0.3))
def test_without_logits_learned_levels_are_the_reference_to_the_last_bit(steps, shift, dtype, end):
    reference = sigmas.with_end(sigmas.static_shift(sigmas.plain(steps)[:-1], shift) + end, end).to(dtype)
    assert torch.equal(sigmas.monotone(reference, torch.zeros(steps, dtype=dtype)), reference)


@given(references, st.data())
def test_learned_levels_fall_between_fixed_ends_whatever_the_logits(reference, data):
    size = len(reference) - 1
    logits = data.draw(st.lists(st.floats(-1e6, 1e6), min_size=size, max_size=size))
    given = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    levels = sigmas.monotone(reference, given)
    assert (levels.diff() < 0).all()
    assert torch.equal(levels[[0, -1]], reference[[0, -1]])
    if size > 1:
        (slope,) = torch.autograd.grad(levels.log1p().sum(), given)
        assert slope.isfinite().all()


@given(references.filter(lambda levels: len(levels) > 2), st.data())
def test_a_logit_stretches_its_gap_against_the_others(reference, data):
    gap = data.draw(st.integers(0, len(reference) - 2))
    logits = torch.zeros(len(reference) - 1, dtype=torch.float64)
    logits[gap] = 0.5
    shares = sigmas.monotone(reference, logits).diff() / reference.diff()
    rest = torch.cat([shares[:gap], shares[gap + 1 :]])
    assert_close(rest, rest[:1].expand_as(rest))
    assert shares[gap] > 1 > rest[0]
    assert shares[gap] / rest[0] == pytest.approx(np.exp(5 * np.tanh(0.1)))


def test_no_gradient_comes_from_the_ends():
    """A solver may take the logarithm of the last level, which is zero: what comes back from there is no number."""
    reference, logits = sigmas.plain(5).double(), torch.full((5,), 0.1, dtype=torch.float64, requires_grad=True)
    levels = sigmas.monotone(reference, logits)
    (1 / levels[-1].log() + levels[2] ** 2).backward()  # its slope at zero is infinite
    assert logits.grad.isfinite().all() and logits.grad.abs().max() > 0
