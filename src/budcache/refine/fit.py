"""Reuse fitted in closed form.

At a reused stretch, from a computed step to the next one, plain reuse repeats the last output. Here a blend of the last
few is used instead, with the weights that bring the student nearest to the teacher's own latent at the stretch's end.
Where a stretch ends is affine in the weights (for Euler it is `x + dsigma * sum_j w_j v_j`), so the best ones solve a
small linear system whose matrix is summed up sample by sample. One pass of B calls per sample fits the whole policy:
no gradients, and no more memory than running it.

The weights of a stretch depend only on the steps computed up to its end. So masks that agree so far share them, and
every search strategy works with fitted reuse as it does with plain reuse: only the score is another (`Fitted`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from budcache.calibration.calibration import Calibration, arrival
from budcache.calibration.score import Score
from budcache.errors import SearchError
from budcache.mask import Mask
from budcache.numerics.memory import Tree, park, unpark
from budcache.numerics.rollout import State, blend
from budcache.policy import MAX_BLEND

__all__ = ["Fitted", "Rows", "Target", "check_blend", "fit"]

Rows = tuple[tuple[float, ...], ...]
Target = Literal["next", "final"]


def fit(calibration: Calibration, mask: Mask, **options: Any) -> Rows:
    """The blend weights of a mask, one row per computed step; the options are those of `Fitted`."""
    return Fitted(calibration, **options).weights(mask)


def check_blend(outputs: int, ridge: float) -> None:
    """Refuse a blend that cannot be."""
    if not 1 <= outputs <= MAX_BLEND:
        raise SearchError(f"a policy blends 1 to {MAX_BLEND} outputs, not {outputs}. Three are enough.")
    if not 0 <= ridge < math.inf:
        raise SearchError(f"a ridge of {ridge:g} pulls nowhere. Choose 0 or more; 0.001 is usual.")


class Fitted:
    """The score of masks whose reuse is fitted: in a search, it stands where `Calibration` does.

    Args:
        calibration: the samples to fit on, with their teachers.
        outputs: how many of the last outputs to blend.
        ridge: pull towards plain reuse, relative to the size of the outputs; more of it for few samples.
        target: what the blend is to come near to: "next" is the teacher's latent at the next computed step; "final" is
            its final latent, which the blend is to reach if it were kept to the end.
        balance: 0 lets samples count by their squared errors, so that the worst ones rule the fit; 1 lets each count
            relative to its own error, which suits measures in decibels.
        state_memory: bytes that may be spent on remembered states; 0 remembers none.
    """

    def __init__(
        self,
        calibration: Calibration,
        *,
        outputs: int = 3,
        ridge: float = 1e-3,
        target: Target = "next",
        balance: float = 1.0,
        state_memory: int = 0,
    ) -> None:
        check_blend(outputs, ridge)
        if target not in ("next", "final"):
            raise SearchError(f"there is no target {target!r}. Use 'next' or 'final'.")
        self.calibration, self.outputs, self.ridge = calibration, outputs, ridge
        self.target, self.balance = target, balance
        self._tree: Tree[tuple[list[State], Rows]] = Tree(state_memory)

    def score(self, mask: Mask) -> Score:
        """Roll a mask with fitted reuse on all samples and compare with the teacher; see `Calibration.score`."""
        states, _ = self._walk(mask)
        after, steps = mask.computed[-1] + 1, self.calibration.steps
        every = self._equations(states, after, steps)
        rows = [self._solve(equations, every[-1]) for equations in every]
        errors = [arrival(equations.errors(row)) for equations, row in zip(every, rows, strict=True)]
        loss = self.calibration.checked_loss(mask, self._finals(states, rows[-1]))
        return Score(loss, (*[None] * after, *errors))

    def weights(self, mask: Mask) -> Rows:
        """The blend weights of a mask, one row per computed step: the newest output's, then those before it."""
        return self._whole(mask)[1]

    def fit(self, mask: Mask) -> tuple[Rows, float]:
        """The blend weights of a mask, and what its loss is with them."""
        states, rows = self._whole(mask)
        return rows, self.calibration.checked_loss(mask, self._finals(states, rows[-1]))

    def _finals(self, states: list[State], row: Sequence[float]) -> list[Tensor]:
        steps = self.calibration.steps
        return [self._coast(number, state, row, steps).x.cpu() for number, state in enumerate(states)]

    def _whole(self, mask: Mask) -> tuple[list[State], Rows]:
        """As `_walk`, with the row of the last stretch, too."""
        states, rows = self._walk(mask)
        (last,) = self._equations(states, self.calibration.steps, self.calibration.steps)
        return states, (*rows, self._solve(last, last))

    def _walk(self, mask: Mask) -> tuple[list[State], Rows]:
        """The runs at the mask's last computed step, its output at hand, and the rows of the stretches before it.

        All states between here and `_finals` are parked but the one at work.
        """
        self.calibration.check(mask)
        computed = mask.computed
        known, found = len(computed), None
        while known and (found := self._tree.get(computed[:known])) is None:
            known -= 1
        states, rows = found or ([park(State(run.noise)) for run in self.calibration.runs], ())
        for place in range(known, len(computed)):
            if place:
                states, row = self._stretch(states, computed[place])
                rows = (*rows, row)
            states = [park(self._compute(number, unpark(state))) for number, state in enumerate(states)]
            self._tree.put(computed[: place + 1], (states, rows))
        return states, rows

    def _stretch(self, states: list[State], end: int) -> tuple[list[State], tuple[float, ...]]:
        """Fit the blend that leads to a step, and follow it."""
        steps = self.calibration.steps
        equations = self._equations(states, end, end)[0]
        to_end = equations if self.target == "next" else self._equations(states, steps, steps)[0]
        row = self._solve(equations, to_end)
        return [park(self._coast(number, state, row, end)) for number, state in enumerate(states)], row

    def _solve(self, equations: _Equations, to_end: _Equations) -> tuple[float, ...]:
        return (equations if self.target == "next" else to_end).solve(self.ridge, self.balance)

    def _compute(self, number: int, state: State) -> State:
        run = self.calibration.runs[number]
        v, _ = run.compute(state.x, run.sigmas[state.step])
        return replace(state, computed=state.computed + 1, outputs=(v, *state.outputs)[: self.outputs])

    def _coast(self, number: int, state: State, weights: Sequence[float], end: int) -> State:
        """Reuse one blend of the outputs down to a step."""
        state = unpark(state)
        return self._roll(number, state, blend(state.outputs, weights), end)[-1]

    def _roll(self, number: int, state: State, v: Tensor, end: int) -> list[State]:
        run, solver = self.calibration.runs[number], self.calibration.solver(number)
        states = []
        for k in range(state.step, end):
            x, past = solver(state.x, v, run.sigmas[k], run.sigmas[k + 1], state.past)
            state = replace(state, x=x, past=past, step=k + 1)
            states.append(state)
        return states

    def _equations(self, states: list[State], first: int, last: int) -> list[_Equations]:
        """What is known of the stretches to the steps from `first` to `last`: how each output moves each sample."""
        parts: list[list[_Equations]] = [[] for _ in range(first, last + 1)]
        for number, state in enumerate(states):
            teacher, state = self.calibration.trajectory(number), unpark(state)
            still = self._roll(number, state, torch.zeros_like(state.outputs[0]), last)
            moved = [self._roll(number, state, v, last) for v in state.outputs]
            for part, end in zip(parts, range(first, last + 1), strict=True):
                at = end - state.step - 1
                here = still[at].x.double()
                moves = torch.stack([(each[at].x.double() - here).flatten(1) for each in moved], 1)
                missing = (teacher[end].to(here) - here).flatten(1)
                part.append(_Equations.of(moves, missing))
        return [_Equations.join(part) for part in parts]


@dataclass(frozen=True)
class _Equations:
    """The normal equations of one stretch, sample by sample: `minimise |missing - sum_j w_j moves_j|^2`."""

    gram: Tensor  # [N, q, q], moves times moves, per number of a latent
    right: Tensor  # [N, q], moves times what is missing
    square: Tensor  # [N], what is missing, squared

    @classmethod
    def of(cls, moves: Tensor, missing: Tensor) -> _Equations:
        size = missing.shape[1]
        gram = moves @ moves.transpose(1, 2) / size
        right = (moves @ missing[:, :, None])[:, :, 0] / size
        return cls(gram.cpu(), right.cpu(), missing.square().mean(1).cpu())

    @classmethod
    def join(cls, parts: Sequence[_Equations]) -> _Equations:
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in ("gram", "right", "square")))

    def errors(self, weights: Sequence[float]) -> Tensor:
        """Each sample's mean squared error under given weights."""
        w = torch.tensor(weights, dtype=torch.float64)
        return (self.square - 2 * self.right @ w + (self.gram @ w) @ w).clamp(min=0)

    def solve(self, ridge: float, balance: float) -> tuple[float, ...]:
        """The weights of least error, pulled towards plain reuse."""
        shares = torch.ones(len(self.square), dtype=torch.float64)
        weights = self._weighted(shares, ridge)
        if balance:
            for _ in range(3):  # reweighted least squares; settles at once
                errors = self.errors(weights)
                shares = (errors + 0.01 * errors.mean()).clamp(min=1e-30) ** -balance
                weights = self._weighted(shares / shares.mean(), ridge)
        return weights

    def _weighted(self, shares: Tensor, ridge: float) -> tuple[float, ...]:
        gram = (shares[:, None, None] * self.gram).sum(0)
        right = (shares[:, None] * self.right).sum(0)
        plain = torch.zeros_like(right)
        plain[0] = 1.0
        pull = ridge * gram.diagonal().mean()
        eye = torch.eye(len(right), dtype=torch.float64)
        weights: list[float] = torch.linalg.solve(gram + pull * eye, right + pull * plain).tolist()
        return tuple(weights)
