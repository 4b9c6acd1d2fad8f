"""The normal equations of a stretch: everything that a fit needs to know of the samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Equations"]


@dataclass(frozen=True)
class Equations:
    """The normal equations of one stretch, sample by sample: `minimise |missing - sum_j w_j moves_j|^2`."""

    gram: Tensor  # [N, q, q], moves times moves, per number of a latent
    right: Tensor  # [N, q], moves times what is missing
    square: Tensor  # [N], what is missing, squared

    @classmethod
    def of(cls, moves: Tensor, missing: Tensor) -> Equations:
        """From how far each output moves a sample, shape [N, q, size], and what is missing, shape [N, size]."""
        size = missing.shape[1]
        gram = moves @ moves.transpose(1, 2) / size
        right = (moves @ missing[:, :, None])[:, :, 0] / size
        return cls(gram.cpu(), right.cpu(), missing.square().mean(1).cpu())

    @classmethod
    def join(cls, parts: Sequence[Equations]) -> Equations:
        """Those of several runs together, in their order."""
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in ("gram", "right", "square")))

    def errors(self, weights: Sequence[float]) -> Tensor:
        """Each sample's mean squared error under given weights."""
        w = torch.tensor(weights, dtype=torch.float64)
        return (self.square - 2 * self.right @ w + (self.gram @ w) @ w).clamp(min=0)

    def solve(self, ridge: float, balance: float, outputs: int | None = None) -> tuple[float, ...]:
        """The weights of least error, pulled towards plain reuse.

        The first `outputs` moves are those of outputs, None is all of them. Any other is pulled to 0 by its own size.
        """
        shares = torch.ones(len(self.square), dtype=torch.float64)
        weights = self._weighted(shares, ridge, outputs)
        if balance:
            for _ in range(3):  # reweighted least squares; settles at once
                errors = self.errors(weights)
                shares = (errors + 0.01 * errors.mean()).clamp(min=1e-30) ** -balance
                weights = self._weighted(shares / shares.mean(), ridge, outputs)
        return weights

    def _weighted(self, shares: Tensor, ridge: float, outputs: int | None) -> tuple[float, ...]:
        gram = (shares[:, None, None] * self.gram).sum(0)
        right = (shares[:, None] * self.right).sum(0)
        plain = torch.zeros_like(right)
        plain[0] = 1.0
        pull = ridge * gram.diagonal().clone()
        pull[:outputs] = pull[:outputs].mean()
        weights: list[float] = torch.linalg.solve(gram + pull.diag(), right + pull * plain).tolist()
        return tuple(weights)
