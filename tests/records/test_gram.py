"""Full runs as inner products: what they keep is what was there."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import recorded
from toys import SOLVERS, Toy

from budcache import SearchError
from budcache.calibration.calibration import Calibration
from budcache.records import gram
from budcache.records.gram import Grams, gram_of


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 40), st.integers(1, 9))
@settings(max_examples=30, deadline=None)
def test_products_are_means_over_numbers_whatever_the_chunks(samples, steps, size, chunk):
    rng = torch.Generator().manual_seed(size)
    latents = [torch.randn(samples, size, generator=rng) for _ in range(steps + 1)]
    outputs = [torch.randn(samples, size, generator=rng) for _ in range(steps)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gram, "CHUNK", chunk)
        found = gram_of(latents, outputs)
    vectors = torch.stack([*latents, *outputs], 1).double().numpy()
    assert np.allclose(found, np.einsum("nid,njd->nij", vectors, vectors) / size)


def test_latents_of_any_shape_and_format_are_taken():
    x, v = torch.ones(2, 3, 4, 4, dtype=torch.bfloat16), torch.full((2, 3, 4, 4), 2.0, dtype=torch.bfloat16)
    assert gram_of([x, x], [v]).tolist() == [[[1, 1, 2], [1, 1, 2], [2, 2, 4]]] * 2


def test_with_euler_a_transition_is_the_difference_of_levels():
    _, grams = recorded()
    keep, push = grams.transitions()
    for i in range(grams.steps):
        for e in range(i + 1, grams.steps + 1):
            assert keep[i, e] == pytest.approx(1, abs=1e-7)
            assert push[i, e] == pytest.approx(grams.levels[e] - grams.levels[i], abs=1e-7)


@pytest.mark.parametrize("solver", SOLVERS)
def test_every_solver_gets_a_transition_that_goes_about_where_it_went(solver):
    known, grams = recorded(solver=SOLVERS[solver])
    keep, push = grams.transitions()
    x = known.trajectory(0)
    for k in range(1, grams.steps - 1):
        moved = float((x[k + 1] - keep[k, k + 1] * x[k]).square().mean())
        assert push[k, k + 1] ** 2 * grams.outputs[0, k, k] == pytest.approx(moved, rel=0.3)


def test_full_runs_are_kept_only_if_asked_for():
    with pytest.raises(SearchError, match="not recorded"):
        Calibration([Toy(0)]).grams  # noqa: B018


def test_recording_changes_no_bit_of_a_full_run():
    plain, (known, _) = Calibration([Toy(0, steps=10)]), recorded(samples=1)
    assert all(torch.equal(a, b) for a, b in zip(plain.trajectory(0), known.trajectory(0), strict=True))
    assert plain.calls == known.calls


def test_samples_add_up():
    (_, both), (_, first), (_, second) = recorded(samples=4), recorded(samples=2), recorded(samples=2, seed=2)
    assert np.allclose((first + second).products, both.products)
    assert (first + second).samples == 4


@given(st.integers(2, 24))
@settings(max_examples=20, deadline=None)
def test_at_another_number_of_steps_the_ends_stay_where_they_are(steps):
    _, grams = recorded()
    there = grams.at(steps)
    assert there.steps == steps
    assert there.levels[[0, -1]] == pytest.approx(grams.levels[[0, -1]])
    assert (np.diff(there.levels) < 0).all()
    assert np.allclose(there.latents[:, [0, -1]][:, :, [0, -1]], grams.latents[:, [0, -1]][:, :, [0, -1]])


def test_at_the_same_number_of_steps_nothing_changes():
    _, grams = recorded()
    assert np.allclose(grams.at(grams.steps).products, grams.products)


def test_at_more_steps_it_is_about_the_run_of_more_steps():
    _, grams = recorded(steps=12)
    _, finer = recorded(steps=24)
    error = np.abs(grams.at(24).outputs - finer.outputs).mean() / np.abs(finer.outputs).mean()
    assert error < 0.1


@pytest.mark.parametrize(
    ("products", "says"),
    [
        (np.zeros((1, 4, 4)), "matrices of 5 rows"),
        (np.zeros((0, 5, 5)), "matrices of 5 rows"),
        (np.full((1, 5, 5), np.nan), "not finite"),
    ],
)
def test_what_is_no_record_of_runs_is_refused(products, says):
    with pytest.raises(SearchError, match=says):
        Grams(np.array([1.0, 0.5, 0.0]), products)
