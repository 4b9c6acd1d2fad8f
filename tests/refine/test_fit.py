"""Fitting: the closed form does what it says."""

from __future__ import annotations

import pytest
import torch

from budcache import Mask, OutputReuse
from budcache.calibration import Calibration
from budcache.refine import fit
from budcache.sigmas import plain, static_shift
from budcache.solvers import Solver, dpmpp2m, euler, ipndm2

STEPS = 12
MASK = Mask.parse("110100100100")


class Toy(OutputReuse):
    """A curved flow in a few dimensions, one sample or several."""

    def __init__(self, seed: int, samples: int = 1, solver: Solver = euler) -> None:
        generator = torch.Generator().manual_seed(seed)
        turn = torch.randn(6, 6, generator=torch.Generator().manual_seed(7), dtype=torch.float64) * 0.6
        super().__init__(lambda x, sigma: torch.tanh(x @ turn * (1 + 2 * sigma)) - x * sigma)
        self.noise = torch.randn(samples, 6, generator=generator, dtype=torch.float64)
        self.sigmas = static_shift(plain(STEPS), 2.0).double()
        self._solver = solver

    def solver(self, sigmas: torch.Tensor | None = None) -> Solver:
        return self._solver


def calibration(seeds: range, solver: Solver = euler) -> Calibration:
    return Calibration([Toy(seed, solver=solver) for seed in seeds])


@pytest.mark.parametrize("solver", [euler, ipndm2, dpmpp2m])
def test_a_fitted_policy_is_nearer_to_the_teacher_on_samples_it_has_not_seen(solver):
    weights = fit(calibration(range(24), solver), MASK)
    unseen = calibration(range(100, 116), solver)
    plain = unseen.loss(unseen.finals(MASK))
    assert plain == pytest.approx(unseen.score(MASK).loss)
    assert unseen.loss(unseen.finals(MASK, weights)) < 0.5 * plain


def test_it_costs_one_pass():
    toys = [Toy(seed) for seed in range(3)]
    known = Calibration(toys)
    before = known.calls
    fit(known, MASK)
    assert known.calls - before == 3 * MASK.budget


def test_rows_grow_with_the_outputs_there_are():
    rows = fit(calibration(range(4)), MASK, outputs=3)
    assert [len(row) for row in rows] == [1, 2, 3, 3, 3]


def test_a_strong_ridge_is_plain_reuse_and_a_weak_one_is_least_squares():
    known = calibration(range(8))
    for row in fit(known, MASK, ridge=1e9):
        torch.testing.assert_close(torch.tensor(row), torch.eye(len(row))[0], atol=1e-6, rtol=0)
    # At the first stretch there is one weight, and its least-squares value can be written down.
    (first,), *_ = fit(known, MASK, ridge=0.0)
    end = MASK.segments[0][1]
    above = below = 0.0
    for number, run in enumerate(known.runs):
        move = (run.sigmas[end] - run.sigmas[0]) * run.field(run.noise, run.sigmas[0])
        above += float((move * (known.trajectory(number)[end] - run.noise)).sum())
        below += float((move * move).sum())
    assert first == pytest.approx(above / below)


def test_batches_and_single_samples_fit_the_same():
    single = calibration(range(4))
    together = Toy(0)
    together.noise = torch.cat([run.noise for run in single.runs])
    rows = fit(Calibration([together]), MASK)
    for ours, theirs in zip(rows, fit(single, MASK), strict=True):
        assert ours == pytest.approx(theirs)


def test_the_full_mask_needs_no_blend():
    for row in fit(calibration(range(4)), Mask.full(STEPS)):
        torch.testing.assert_close(torch.tensor(row), torch.eye(len(row))[0], atol=1e-3, rtol=0)
