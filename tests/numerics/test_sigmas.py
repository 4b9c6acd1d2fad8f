from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from levels import plain, static_shift
from torch.testing import assert_close

from budcache.numerics.sigmas import monotone


def falling(gaps):
    """Levels with given gaps, down to zero."""
    return torch.tensor([*gaps, 0.0], dtype=torch.float64).flip(0).cumsum(0).flip(0)


references = st.lists(st.floats(1e-4, 1.0), min_size=1, max_size=30).map(falling)


@given(st.integers(1, 60), st.floats(0.2, 12), st.sampled_from([torch.float32, torch.float64]), st.floats(0, 0.3))
def test_without_logits_learned_levels_are_the_reference_to_the_last_bit(steps, shift, dtype, end):
    reference = (static_shift(plain(steps), shift) + end).to(dtype)
    assert torch.equal(monotone(reference, torch.zeros(steps, dtype=dtype)), reference)


@given(references, st.data())
def test_learned_levels_fall_between_fixed_ends_whatever_the_logits(reference, data):
    size = len(reference) - 1
    logits = data.draw(st.lists(st.floats(-1e6, 1e6), min_size=size, max_size=size))
    given = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    levels = monotone(reference, given)
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
    shares = monotone(reference, logits).diff() / reference.diff()
    rest = torch.cat([shares[:gap], shares[gap + 1 :]])
    assert_close(rest, rest[:1].expand_as(rest))
    assert shares[gap] > 1 > rest[0]
    assert shares[gap] / rest[0] == pytest.approx(np.exp(5 * np.tanh(0.1)))


def test_no_gradient_comes_from_the_ends():
    """A solver may take the logarithm of the last level, which is zero: what comes back from there is no number."""
    reference, logits = plain(5).double(), torch.full((5,), 0.1, dtype=torch.float64, requires_grad=True)
    levels = monotone(reference, logits)
    (1 / levels[-1].log() + levels[2] ** 2).backward()  # its slope at zero is infinite
    assert logits.grad.isfinite().all() and logits.grad.abs().max() > 0
