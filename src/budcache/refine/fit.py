"""Reuse fitted in closed form.

At a reused stretch, from a computed step to the next one, plain reuse repeats the last output. Here a blend of the last
few is used instead, with the weights that bring the student nearest to the teacher's own latent at the stretch's end.
Where a stretch ends is affine in the weights (for Euler it is `x + dsigma * sum_j w_j v_j`), so the best ones solve a
small linear system whose matrix is summed up sample by sample. One pass of B calls per sample fits the whole policy:
no gradients, and no more memory than running it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from budcache.calibration import Calibration
from budcache.mask import Mask
from budcache.rollout import Weights, blend, rollout

__all__ = ["fit", "fitted"]


def fit(
    calibration: Calibration, mask: Mask, *, outputs: int = 3, ridge: float = 1e-3
) -> tuple[tuple[float, ...], ...]:
    """The blend weights of a mask, one row per computed step.

    Args:
        calibration: the samples to fit on, with their teachers.
        mask: which steps are computed.
        outputs: how many of the last outputs to blend.
        ridge: pull towards plain reuse, relative to the size of the outputs; more of it for few samples.

    Returns:
        For each computed step the weights of the newest output and of those before it.
    """
    walkers = [_Walker(calibration, number) for number in range(len(calibration.runs))]
    rows: list[tuple[float, ...]] = []
    for place, (begin, end) in enumerate(mask.segments):
        size = min(outputs, place + 1)
        gram = torch.zeros(size, size, dtype=torch.float64)
        right = torch.zeros(size, dtype=torch.float64)
        for walker in walkers:
            matrix, vector = walker.normal_equations(begin, end, size)
            gram, right = gram + matrix, right + vector
        plain = torch.zeros(size, dtype=torch.float64)
        plain[0] = 1.0
        pull = ridge * gram.diagonal().mean()
        weights = torch.linalg.solve(gram + pull * torch.eye(size, dtype=torch.float64), right + pull * plain)
        rows.append(tuple(weights.tolist()))
        for walker in walkers:
            walker.go_on(begin, end, rows[-1])
    return tuple(rows)


def fitted(calibration: Calibration, mask: Mask, weights: Weights | None) -> list[Tensor]:
    """The final latents of every run under a mask with blend weights, as it will be served; None is plain reuse."""
    return [
        rollout(run, run.noise, run.sigmas, mask, calibration.solver(number), weights)
        for number, run in enumerate(calibration.runs)
    ]


class _Walker:
    """One run's student on its way down: where it is, and the outputs it has seen."""

    def __init__(self, calibration: Calibration, number: int) -> None:
        self.run, self.solver = calibration.runs[number], calibration.solver(number)
        self.teacher = calibration.trajectory(number)
        self.x, self.past = self.run.noise, None
        self.outputs: tuple[Tensor, ...] = ()

    def normal_equations(self, begin: int, end: int, size: int) -> tuple[Tensor, Tensor]:
        """Compute the step, and tell how each output moves the end of its stretch: Gram matrix and right-hand side."""
        v, _ = self.run.compute(self.x, self.run.sigmas[begin])
        self.outputs = (v, *self.outputs)[:size]
        still = self._stretch(torch.zeros_like(v), begin, end)[0].double()
        moves = torch.stack([(self._stretch(v, begin, end)[0].double() - still).flatten() for v in self.outputs])
        missing = (self.teacher[end].double() - still).flatten()
        return (moves @ moves.T).cpu(), (moves @ missing).cpu()

    def go_on(self, begin: int, end: int, weights: tuple[float, ...]) -> None:
        """Take the stretch with the fitted blend."""
        self.x, self.past = self._stretch(blend(self.outputs, weights), begin, end)

    def _stretch(self, v: Tensor, begin: int, end: int) -> tuple[Tensor, Any]:
        x, past = self.x, self.past
        for k in range(begin, end):
            x, past = self.solver(x, v, self.run.sigmas[k], self.run.sigmas[k + 1], past)
        return x, past
