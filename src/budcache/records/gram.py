"""A full run as a matrix of inner products of its latents and outputs (F10)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from budcache.errors import SearchError
from budcache.numerics.shelf import Kept, part_of

__all__ = ["Array", "Grams", "gram_of"]

Array = NDArray[np.float64]
CHUNK = 1 << 16  # numbers of each vector that are in double precision at a time


def gram_of(latents: Sequence[Tensor | Kept], outputs: Sequence[Tensor | Kept]) -> Array:
    """Mean products of all pairs of a run's K + 1 latents and K outputs, shape [N, 2 K + 1, 2 K + 1], N samples.

    Row k is the latent at step k; row K + 1 + k the output at step k. The initial noise is row 0.
    """
    vectors = (*latents, *outputs)
    samples, size = vectors[0].shape[0], vectors[0].shape[1:].numel()
    products = torch.zeros(samples, len(vectors), len(vectors), dtype=torch.float64)
    for begin in range(0, size, CHUNK):
        part = torch.stack([part_of(vector, begin, begin + CHUNK).cpu() for vector in vectors], 1).double()
        products += part @ part.transpose(1, 2)
    return ((products + products.transpose(1, 2)) / (2 * size)).numpy()  # to the last bit symmetric


@dataclass(frozen=True)
class Grams:
    """The full runs of some samples, of one pipeline and one number of steps.

    Args:
        levels: K + 1 effective noise levels.
        products: mean products of latents and outputs, shape [N, 2 K + 1, 2 K + 1]; see `gram_of`.
    """

    levels: Array
    products: Array

    def __post_init__(self) -> None:
        moves = np.diff(self.levels, axis=0)
        falls_or_rises = (moves <= 0).all() or (moves >= 0).all()  # some schedulers count from 0 to 1
        if self.levels.ndim != 1 or not falls_or_rises or not moves.any() or not np.isfinite(self.levels).all():
            raise SearchError("the noise levels of a run do not lead from noise to data. Use another scheduler.")
        rows = 2 * self.steps + 1
        if self.products.ndim != 3 or self.products.shape[1:] != (rows, rows) or not len(self.products):
            raise SearchError(f"runs of {self.steps} steps have matrices of {rows} rows, not {self.products.shape}.")
        if not np.isfinite(self.products).all():
            raise SearchError("a run holds numbers that are not finite. Check the model and its number format.")

    @property
    def steps(self) -> int:
        """K."""
        return len(self.levels) - 1

    @property
    def samples(self) -> int:
        """N."""
        return len(self.products)

    @property
    def latents(self) -> Array:
        """Products of latents with latents, shape [N, K + 1, K + 1]."""
        return self.products[:, : self.steps + 1, : self.steps + 1]

    @property
    def outputs(self) -> Array:
        """Products of outputs with outputs, shape [N, K, K]."""
        return self.products[:, self.steps + 1 :, self.steps + 1 :]

    @property
    def mixed(self) -> Array:
        """Products of outputs with latents, shape [N, K, K + 1]."""
        return self.products[:, self.steps + 1 :, : self.steps + 1]

    def spread(self, most: int) -> Grams:
        """So many of the samples at most, evenly picked."""
        if self.samples <= most:
            return self
        return replace(self, products=self.products[np.linspace(0, self.samples - 1, most).astype(int)])

    def __add__(self, other: Grams) -> Grams:
        """The samples of both."""
        return replace(self, products=np.concatenate([self.products, other.products]))

    def transitions(self) -> tuple[Array, Array]:
        """How reuse carries a run from step i to step e: `x_e = keep[i, e] x_i + push[i, e] v`.

        The solver's own step, `x_(k+1) = a x_k + b v_k`, is read off the runs. For flow models with Euler a is 1 and b
        the difference of the levels; solvers with a memory are taken as if they had none.
        """
        steps = self.steps
        a, b = np.empty(steps), np.empty(steps)
        for k in range(steps):
            xx, vv, xv = self.latents[:, k, k].sum(), self.outputs[:, k, k].sum(), self.mixed[:, k, k].sum()
            right = self.latents[:, k, k + 1].sum(), self.mixed[:, k, k + 1].sum()
            a[k], b[k] = np.linalg.lstsq(np.array([[xx, xv], [xv, vv]]), np.array(right), rcond=1e-14)[0]
        keep, push = np.ones((steps, steps + 1)), np.zeros((steps, steps + 1))
        for i in range(steps):
            for e in range(i, steps):
                keep[i, e + 1], push[i, e + 1] = a[e] * keep[i, e], a[e] * push[i, e] + b[e]
        return keep, push

    def at(self, steps: int) -> Grams:
        """The same runs as if they had been made with another number of steps: between two steps on a straight line."""
        latents = _between(self.steps, np.arange(steps + 1) * self.steps / steps)
        outputs = _between(self.steps - 1, np.arange(steps) * self.steps / steps)
        mixer = np.zeros((2 * steps + 1, 2 * self.steps + 1))
        mixer[: steps + 1, : self.steps + 1], mixer[steps + 1 :, self.steps + 1 :] = latents, outputs
        return Grams(latents @ self.levels, mixer @ self.products @ mixer.T)


def _between(last: int, places: Array) -> Array:
    """The matrix that reads a sequence, numbered from 0 to `last`, at places between; beyond its end it stays there."""
    places = np.minimum(places, last)
    below = np.minimum(places.astype(int), max(last - 1, 0))
    matrix = np.zeros((len(places), last + 1))
    rows = np.arange(len(places))
    matrix[rows, below] = 1 - (places - below)
    matrix[rows, np.minimum(below + 1, last)] += places - below
    return matrix
