"""Reuse fitted in closed form (F6).

At a reused stretch, from a computed step to the next one, plain reuse repeats the last output. Here a blend of the last
few is used instead, with the weights that bring the student nearest to the teacher's own latent at the stretch's end.
Where a stretch ends is affine in the weights (for Euler it is `x + dsigma * sum_j w_j v_j`), so the best ones solve a
small linear system whose matrix is summed up sample by sample. One pass of B calls per sample fits the whole policy:
no gradients, and no more memory than running it.

The weights of a stretch depend only on the steps computed up to its end. So masks that agree so far share them, and
every search strategy works with fitted reuse as it does with plain reuse: only the scorer is another.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from budcache.calibration.calibration import Calibration
from budcache.calibration.score import Score
from budcache.calibration.scoring import Scorer
from budcache.errors import SearchError
from budcache.mask import Mask
from budcache.numerics.memory import unpark
from budcache.numerics.rollout import State
from budcache.plan import Stretch
from budcache.policy import MAX_BLEND
from budcache.refine.equations import Equations

if TYPE_CHECKING:
    from budcache.calibration.pictures import Pictures

__all__ = ["FittedScorer", "Rows", "Target", "check_blend"]

Rows = tuple[tuple[float, ...], ...]
Target = Literal["next", "final"]


def check_blend(outputs: int, ridge: float) -> None:
    """Refuse a number of outputs or a ridge that cannot be fitted."""
    if not 1 <= outputs <= MAX_BLEND:
        raise SearchError(f"a policy blends 1 to {MAX_BLEND} outputs, not {outputs}. Three are often enough.")
    if not 0 <= ridge < math.inf:
        raise SearchError(f"the ridge must be finite and at least 0, got {ridge:g}. 0.001 is usual.")


class FittedScorer(Scorer):
    """Scores masks whose reuse is fitted.

    Args:
        calibration: the samples to fit on, with their teachers.
        outputs: how many of the last outputs to blend.
        noise: whether the initial noise may move a sample as well; a stretch is then made in one go, without a solver.
        ridge: pull towards plain reuse, relative to the size of the outputs; more of it for few samples.
        target: what the blend is to come near to: "next" is the teacher's latent at the next computed step; "final" is
            its final latent, which the blend is to reach if it were kept to the end.
        balance: 0 lets samples count by their squared errors, so that the worst ones rule the fit; 1 lets each count
            relative to its own error, which suits measures in decibels.
        memory: bytes that may be spent on remembered states; 0 remembers none.
        pictures: who looks at the decoded pictures, too; None does not decode.
    """

    kind = "fitted"

    def __init__(
        self,
        calibration: Calibration,
        *,
        outputs: int = 3,
        noise: bool = False,
        ridge: float = 1e-3,
        target: Target = "next",
        balance: float = 1.0,
        memory: int = 0,
        pictures: Pictures | None = None,
    ) -> None:
        check_blend(outputs, ridge)
        if target not in ("next", "final"):
            raise SearchError(f"there is no target {target!r}. Use 'next' or 'final'.")
        super().__init__(calibration, outputs=outputs, memory=memory, pictures=pictures)
        self.ridge, self.target, self.balance, self.noise = ridge, target, balance, noise
        self._fitted: dict[tuple[tuple[Stretch, ...], int], Stretch] = {}  # by the way so far, and the next step

    def score(self, mask: Mask) -> Score:
        """Roll a mask with fitted reuse on all samples and compare with the teacher; see `Scorer`."""
        after, steps = mask.computed[-1] + 1, self.calibration.steps
        before = self._before_last(mask)
        states = self.prefixes.at(before)
        every = self._equations(states, after, steps)
        rows = [self._solve(equations, every[-1]) for equations in every]
        errors = [tuple(equations.errors(row).tolist()) for equations, row in zip(every, rows, strict=True)]
        last = self._made(after - 1, steps, rows[-1])
        rows_and_noise = _rows((*before, last))
        return self.scored(mask, self.prefixes.finals(states, last), (*[None] * after, *errors), *rows_and_noise)

    def rows(self, mask: Mask) -> Rows:
        """The blend weights of a mask, one row per computed step: the newest output's, then those before it."""
        rows, _, _ = self.fit(mask)
        return rows

    def fit(self, mask: Mask) -> tuple[Rows, tuple[float, ...] | None, tuple[float, ...]]:
        """The blend weights of a mask, those of the noise if it has some, and each sample's loss with them."""
        before = self._before_last(mask)
        states = self.prefixes.at(before)
        last = self._stretch(states, mask.computed[-1], self.calibration.steps)
        losses = self.calibration.checked_losses(mask, self.prefixes.finals(states, last))
        return (*_rows((*before, last)), losses)

    def _before_last(self, mask: Mask) -> tuple[Stretch, ...]:
        """The fitted stretches of a mask, without the last."""
        self.calibration.check(mask)
        found: tuple[Stretch, ...] = ()
        for step, end in mask.segments[:-1]:
            if (found, end) not in self._fitted:
                self._fitted[found, end] = self._stretch(self.prefixes.at(found), step, end)
            found = (*found, self._fitted[found, end])
        return found

    def _stretch(self, states: list[State], step: int, end: int) -> Stretch:
        """The stretch from where the runs are to a step, with the best blend."""
        steps = self.calibration.steps
        (equations,) = self._equations(states, end, end)
        to_end = equations if self.target == "next" else self._equations(states, steps, steps)[0]
        return self._made(step, end, self._solve(equations, to_end))

    def _made(self, step: int, end: int, row: tuple[float, ...]) -> Stretch:
        return Stretch(step, end, row[:-1], row[-1]) if self.noise else Stretch(step, end, row)

    def _solve(self, equations: Equations, to_end: Equations) -> tuple[float, ...]:
        aimed_at = equations if self.target == "next" else to_end
        return aimed_at.solve(self.ridge, self.balance, -1 if self.noise else None)

    def _equations(self, states: list[State], first: int, last: int) -> list[Equations]:
        """What is known of the stretches to the steps from `first` to `last`: how each output moves each sample."""
        parts: list[list[Equations]] = [[] for _ in range(first, last + 1)]
        for number, parked in enumerate(states):
            teacher, state = self.calibration.trajectory(number), unpark(parked)
            reach = self._in_one_go if self.noise else self._by_the_solver
            ends = enumerate(reach(number, state, first, last), first)
            for part, (end, (here, moves)) in zip(parts, ends, strict=True):
                missing = (teacher[end].to(here) - here).flatten(1)
                part.append(Equations.of(moves, missing))
        return [Equations.join(part) for part in parts]

    def _by_the_solver(self, number: int, state: State, first: int, last: int) -> Iterator[tuple[Tensor, Tensor]]:
        """For each end where a sample is if nothing moves it, and how far each output does, shape [N, q, size]."""
        still = self.prefixes.pushed(number, state, torch.zeros_like(state.outputs[0]), last)
        moved = [self.prefixes.pushed(number, state, v, last) for v in state.outputs]
        for at in range(first - state.step - 1, last - state.step):
            here = still[at].x.double()
            yield here, torch.stack([(each[at].x.double() - here).flatten(1) for each in moved], 1)

    def _in_one_go(self, number: int, state: State, first: int, last: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The same for a stretch without a solver, which the noise may move as well (F13)."""
        assert state.start is not None
        start, outputs = state.start.double().flatten(1), [v.double().flatten(1) for v in state.outputs]
        for end in range(first, last + 1):
            stretch = Stretch(state.step, end).on(self.calibration.moves(number))
            yield stretch.keep * state.x.double(), torch.stack([*(stretch.push * v for v in outputs), start], 1)


def _rows(stretches: Sequence[Stretch]) -> tuple[Rows, tuple[float, ...] | None]:
    """The weights of outputs and of the noise, one row per stretch."""
    noise = tuple(stretch.noise for stretch in stretches if stretch.noise is not None)
    return tuple(tuple(stretch.blend or ()) for stretch in stretches), noise or None
