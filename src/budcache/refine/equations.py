"""The normal equations of a stretch: everything that a fit needs to know of the samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
        return cls.summed([(moves, missing)])

    @classmethod
    def summed(cls, parts: Iterable[tuple[Tensor, Tensor]]) -> Equations:
        """From the same part by part: some numbers of each latent at a time."""
        totals: tuple[Tensor, ...] | None = None
        size = 0
        for moves, missing in parts:
            size += missing.shape[1]
            gram, right = moves @ moves.transpose(1, 2), (moves @ missing[:, :, None])[:, :, 0]
            found = gram, right, missing.square().sum(1)
            totals = found if totals is None else tuple(map(torch.add, totals, found))
        assert totals is not None
        return cls(*((total / size).cpu() for total in totals))

    @classmethod
    def join(cls, parts: Sequence[Equations]) -> Equations:
        """Those of several runs together, in their order."""
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in ("gram", "right", "square")))

    def looking_at(self, known: Tensor) -> Equations:
        """The same where each weight is `w + sum_f slope_f known_f`: the slopes follow, one feature after the other.

        Args:
            known: each sample's features, shape [N, F].
        """
        each = torch.cat([torch.ones(len(known), 1, dtype=self.gram.dtype), known.to(self.gram)], 1)
        gram = torch.einsum("nf,ng,nij->nfigj", each, each, self.gram).flatten(1, 2).flatten(2, 3)
        return Equations(gram, torch.einsum("nf,ni->nfi", each, self.right).flatten(1), self.square)

    def errors(self, weights: Sequence[float]) -> Tensor:
        """Each sample's mean squared error under given weights."""
        w = torch.tensor(weights, dtype=torch.float64)
        return (self.square - 2 * self.right @ w + (self.gram @ w) @ w).clamp(min=0)

    def shares(self, weights: Sequence[float], balance: float) -> Tensor:
        """How much each sample counts under given weights: 1 where `balance` is 0, by the inverse of its error at 1."""
        errors = self.errors(weights)
        shares = (errors + 0.01 * errors.mean()).clamp(min=1e-30) ** -balance
        return shares / shares.mean()

    def solve(
        self,
        ridge: float,
        balance: float,
        kinds: Sequence[int] | None = None,
        newest: int = 1,
        slopes: float = 0.0,
    ) -> tuple[float, ...]:
        """The weights of least error, pulled towards plain reuse.

        Args:
            ridge: the pull, relative to the size of what is pulled.
            balance: see `shares`.
            kinds: how many moves there are of each kind, None if there is one. All are pulled by the mean size of their
                kind.
            newest: how many of the kinds are of outputs: plain reuse takes the first of each once, and of others none.
            slopes: how strongly slopes are pulled to 0; see `looking_at`.
        """
        kinds = kinds or [self.right.shape[1]]
        pulls = torch.full((self.right.shape[1],), slopes, dtype=torch.float64)
        pulls[: sum(kinds)] = ridge
        plain = torch.zeros_like(pulls)
        for place in range(newest):
            plain[sum(kinds[:place])] = 1.0
        weights = self._weighted(torch.ones(len(self.square), dtype=torch.float64), pulls, kinds, plain)
        if balance:
            for _ in range(3):  # reweighted least squares; settles at once
                weights = self._weighted(self.shares(weights, balance), pulls, kinds, plain)
        return weights

    def step(self, damping: float) -> tuple[float, ...]:
        """The change of the weights that takes all errors down together: a damped Gauss-Newton step on their logarithm.

        The moves are those of a small change of each weight; damping is relative to their squared size.
        """
        shares = self.shares([0.0] * self.right.shape[1], balance=1.0)
        gram = (shares[:, None, None] * self.gram).sum(0)
        right = (shares[:, None] * self.right).sum(0)
        pull = damping * gram.diagonal().clamp(min=1e-30)
        changes: list[float] = torch.linalg.solve(gram + pull.diag(), right).tolist()
        return tuple(changes)

    def _weighted(self, shares: Tensor, pulls: Tensor, kinds: Sequence[int], plain: Tensor) -> tuple[float, ...]:
        gram = (shares[:, None, None] * self.gram).sum(0)
        right = (shares[:, None] * self.right).sum(0)
        parts = torch.split(gram.diagonal()[: sum(kinds)], list(kinds))
        sizes = torch.cat([part.mean().expand(len(part)) for part in parts])
        pull = pulls * sizes.repeat(len(right) // len(sizes))  # slopes are pulled by the size of their weight's kind
        pull = pull.clamp(min=1e-200)  # where all outputs are zero, any weights would do
        weights: list[float] = torch.linalg.solve(gram + pull.diag(), right + pull * plain).tolist()
        return tuple(weights)
