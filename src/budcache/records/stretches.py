"""The error of every stretch that a mask could have, from the full runs alone (F10).

A stretch leads from a computed step i to the next one e, with the outputs of i and of the computed steps before it at
hand. On the full run's own trajectory its best blend and its error follow from inner products: the target is what the
full run did between i and e, the basis what each output would do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from budcache.errors import SearchError
from budcache.mask import Mask
from budcache.records.gram import Array, Grams

__all__ = ["NONE", "Stretches"]

Whole = NDArray[np.int64]

ROUNDS = 3  # of reweighting, so that samples count relative to their own error; it settles at once
MAX_STEPS = 128  # there are about K^4 / 48 stretches
AT_ONCE = 1 << 21  # stretches times samples: some hundred megabytes
NONE = -1  # no such predecessor

Pair = tuple[int, int]  # of predecessors, the newest first


@dataclass
class Stretches:
    """Errors of stretches, worked out when first asked for.

    Args:
        grams: the full runs.
        fitted: blends of the newest three outputs, or plain reuse of the newest.
        ridge: pull of a blend towards plain reuse.
        longest: stretches of more steps are left out; None leaves out none.
        switch: the step at which another expert takes over: it is always computed, and nothing looks back before it.
    """

    grams: Grams
    fitted: bool = True
    ridge: float = 1e-3
    longest: int | None = None
    switch: int | None = None
    _known: dict[int, tuple[dict[Pair, int], Array]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.fitted and self.grams.steps > MAX_STEPS:
            raise SearchError(
                f"the table of all stretches of {self.grams.steps} steps would be too large; {MAX_STEPS} is the most. "
                "Take fewer steps, or search with the strategy ladder."
            )
        self._keep, self._push = self.grams.transitions()

    def errors(self, step: int) -> tuple[dict[Pair, int], Array]:
        """The mean squared errors of all stretches from a step.

        Returns:
            Which row belongs to which predecessors; and the errors by row and end, shape [rows + 1, K + 1], infinite
            where there is no stretch, as in all of the last row.
        """
        if step not in self._known:
            pairs = self._pairs(step)
            found = np.full((len(pairs) + 1, self.grams.steps + 1), np.inf)
            last = self.grams.steps if self.longest is None else min(self.grams.steps, step + self.longest)
            if self.switch is not None and step < self.switch:
                last = min(last, self.switch)
            ends = np.arange(step + 1, last + 1)
            size = max(1, AT_ONCE // (len(ends) * self.grams.samples))
            for begin in range(0, len(pairs), size):
                _, errors = self._solved(step, pairs[begin : begin + size], ends)
                found[begin : begin + len(errors), step + 1 : last + 1] = errors.mean(-1)
            self._known[step] = {pair: row for row, pair in enumerate(pairs)}, found
        return self._known[step]

    def row(self, step: int, before: Sequence[int]) -> int:
        """Which row of `errors(step)` belongs to a path that computed these steps before it.

        Of a path with a stretch that is left out, the last one.
        """
        newer, older = (before[-1] if before else NONE), (before[-2] if len(before) > 1 else NONE)
        return self.errors(step)[0].get((newer, older) if self.fitted else (NONE, NONE), -1)

    def blends(self, mask: Mask) -> tuple[tuple[float, ...], ...]:
        """A mask's blend weights, fitted on the full runs' own trajectories."""
        rows = []
        for place, (step, end) in enumerate(mask.segments):
            before = [each for each in mask.computed[max(0, place - 2) : place] if self._is_at_hand(each, step)]
            pair = (before[-1] if before else NONE, before[-2] if len(before) > 1 else NONE)
            weights, _ = self._solved(step, [pair], np.array([end]))
            rows.append(tuple(weights[0, 0, : 1 + len(before)].tolist()))
        return tuple(rows)

    def _is_at_hand(self, before: Any, step: int) -> Any:
        """Whether what was computed at a step before may be looked back on; of the same expert."""
        return before >= (self.switch if self.switch is not None and step >= self.switch else 0)

    def _pairs(self, step: int) -> list[Pair]:
        """The predecessors that a computed step may have: step 0 is always computed, and no stretch is too long."""
        if step == 0 or not self.fitted:
            return [(NONE, NONE)]
        longest = self.grams.steps if self.longest is None else self.longest
        pairs = [(newer, older) for newer in range(1, step) for older in range(newer)]
        near = [pair for pair in pairs if step - pair[0] <= longest and pair[0] - pair[1] <= longest]
        return [*[(0, NONE)] * (step <= longest), *near]

    def _solved(self, i: int, pairs: list[Pair], ends: Whole) -> tuple[Array, Array]:
        """The stretches from i, by pair of predecessors and end: weights [P, E, 3] and samples' errors [P, E, N]."""
        grams, keep, push = self.grams, self._keep[i, ends], self._push[i, ends]
        latents, mixed = grams.latents, grams.mixed
        # What is missing at each end if nothing moved, squared [N, E]; and its products with what outputs do [N, K, E].
        square = latents[:, ends, ends] - 2 * keep * latents[:, i, ends] + keep**2 * latents[:, i, i][:, None]
        right = push * (mixed[:, :, ends] - keep * mixed[:, :, i][:, :, None])
        if not self.fitted:
            errors = square - 2 * right[:, i] + push**2 * grams.outputs[:, i, i][:, None]
            return np.broadcast_to([1.0, 0.0, 0.0], (1, len(ends), 3)), np.maximum(errors, 0).T[None]
        basis = np.array([(i, *pair) for pair in pairs])  # [P, 3]
        there = self._is_at_hand(basis, i)
        both = there[:, :, None] & there[:, None, :]
        gram = np.where(both, grams.outputs[:, basis[:, :, None], basis[:, None, :]], 0.0)  # [N, P, 3, 3]
        side = np.where(there[..., None], right[:, basis], 0.0)  # [N, P, 3, E]
        return _least(gram, side, square, push, there, self.ridge)


def _least(
    gram: Array, side: Array, square: Array, push: Array, there: NDArray[np.bool_], ridge: float
) -> tuple[Array, Array]:
    """The best blends and their errors, samples reweighted by their own errors."""
    samples, pairs, ends = len(gram), gram.shape[1], len(push)
    shares = np.ones((pairs, ends, samples))
    plain = np.array([1.0, 0.0, 0.0])
    blank = np.eye(3) * ~there[:, None, :]  # keeps the system solvable where an output is not there
    for turn in range(ROUNDS + 1):
        matrix = np.einsum("pen,npij->peij", shares, gram, optimize=True) * push[None, :, None, None] ** 2
        vector = np.einsum("pen,npie->pei", shares, side)
        pull = ridge * np.einsum("peii->pe", matrix) / there.sum(1)[:, None]
        pull = np.maximum(pull, 1e-200)  # outputs that are all zero
        matrix = matrix + pull[..., None, None] * np.eye(3) * there[:, None, :, None] + blank[:, None]
        try:
            weights = np.linalg.solve(matrix, (vector + pull[..., None] * plain)[..., None])[..., 0]
        except np.linalg.LinAlgError:  # the products of real runs have no negative squares, so that it can be solved
            raise SearchError("the inner products of the runs contradict each other. Record them anew.") from None
        pairs_of = weights[..., :, None] * weights[..., None, :] * push[None, :, None, None] ** 2
        quadratic = np.einsum("peij,npij->pen", pairs_of, gram, optimize=True)
        errors = np.maximum(square.T[None] - 2 * np.einsum("pei,npie->pen", weights, side) + quadratic, 0)
        if turn < ROUNDS:
            shares = 1 / np.maximum(errors + 0.01 * errors.mean(-1, keepdims=True), 1e-30)
            shares = shares / shares.mean(-1, keepdims=True)
    return weights, errors
