"""Reuse fitted in closed form (F6, F11 to F13).

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from budcache.calibration.calibration import Calibration
from budcache.calibration.score import Score
from budcache.calibration.scoring import Scorer
from budcache.errors import SearchError
from budcache.mask import Mask
from budcache.numerics.features import features_of, standardised
from budcache.numerics.memory import unpark
from budcache.numerics.rollout import State
from budcache.plan import Stretch
from budcache.records.gram import CHUNK
from budcache.refine.equations import Equations
from budcache.rows import LOOKED_AT, MAX_BLEND, Features, Row

if TYPE_CHECKING:
    from budcache.calibration.pictures import Pictures

__all__ = ["FittedScorer", "Form", "Target", "Weights", "check_blend"]

Weights = tuple[tuple[float, ...], ...]
Target = Literal["next", "final"]
# Some numbers of each latent: where a sample is if nothing moves it, shape [N, part], and how far each output does,
# [N, q, part].
Moved = Callable[[slice], tuple[Tensor, Tensor]]
SAME = 1e-6  # a feature that spreads less is the same for all samples


def check_blend(outputs: int, ridge: float) -> None:
    """Refuse a number of outputs or a ridge that cannot be fitted."""
    if not 1 <= outputs <= MAX_BLEND:
        raise SearchError(f"a policy blends 1 to {MAX_BLEND} outputs, not {outputs}. Three are often enough.")
    if not 0 <= ridge < math.inf:
        raise SearchError(f"the ridge must be finite and at least 0, got {ridge:g}. 0.001 is usual.")


@dataclass(frozen=True)
class Form:
    """What a fit may use.

    Args:
        outputs: how many of the last outputs to blend.
        noise: rows (F13): the initial noise may move a sample as well, and a stretch is made in one go, without a
            solver. What follows needs them.
        apart: the conditional branch's outputs have weights of their own (F12).
        features: the weights look at the sample (F11).
        ridge: pull towards plain reuse, relative to the size of the outputs; more of it for few samples.
        slopes: likewise of what features change, towards weights that are the same for all samples.
    """

    outputs: int = 3
    noise: bool = False
    apart: bool = False
    features: bool = False
    ridge: float = 1e-3
    slopes: float = 3e-3

    def __post_init__(self) -> None:
        check_blend(self.outputs, self.ridge)
        check_blend(self.outputs, self.slopes)
        if (self.apart or self.features) and not self.noise:
            raise SearchError("only rows tell branches apart or look at the sample. Fit with the noise as well.")


class FittedScorer(Scorer):
    """Scores masks whose reuse is fitted.

    Args:
        calibration: the samples to fit on, with their teachers.
        form: what the fit may use; None is the newest three outputs.
        target: what the blend is to come near to: "next" is the teacher's latent at the next computed step; "final" is
            its final latent, which the blend is to reach if it were kept to the end.
        balance: 0 lets samples count by their squared errors, so that the worst ones rule the fit; 1 lets each count
            relative to its own error, which suits measures in decibels.
        memory: bytes that may be spent on remembered states; 0 remembers none.
        pictures: who looks at the decoded pictures, too; None does not decode.
        arrivals: whether scores tell the errors on the way, which the ladder wants; on long videos they cost time.
        **parts: fields of the form, one by one.
    """

    kind = "fitted"

    def __init__(
        self,
        calibration: Calibration,
        form: Form | None = None,
        *,
        target: Target = "next",
        balance: float = 1.0,
        memory: int = 0,
        pictures: Pictures | None = None,
        arrivals: bool = True,
        **parts: Any,
    ) -> None:
        self.form = form or Form(**parts)
        if target not in ("next", "final"):
            raise SearchError(f"there is no target {target!r}. Use 'next' or 'final'.")
        if self.form.apart and not calibration.is_guided:
            raise SearchError("the branches of these runs' guidance are not known apart. Fit the combined output.")
        outputs = max(self.form.outputs, LOOKED_AT) if self.form.features else self.form.outputs
        super().__init__(calibration, outputs=outputs, memory=memory, pictures=pictures, branch=self.form.apart)
        self.target, self.balance, self.arrivals = target, balance, arrivals
        self._fitted: dict[tuple[tuple[Stretch, ...], int], Stretch] = {}  # by the way so far, and the next step

    def score(self, mask: Mask) -> Score:
        """Roll a mask with fitted reuse on all samples and compare with the teacher; see `Scorer`."""
        if not self.arrivals:
            return self._fit(mask, pictures=True)
        after, steps = mask.computed[-1] + 1, self.calibration.steps
        before = self._before_last(mask)
        states = self.prefixes.at(before)
        looks = self._looks(states)
        every = self._equations(states, after, steps, looks)
        found = [self._solve(equations, every[-1], states) for equations in every]
        errors = [tuple(equations.errors(weights).tolist()) for equations, weights in zip(every, found, strict=True)]
        last = self._made(after - 1, steps, found[-1], states, looks)
        arrivals = (*[None] * after, *errors)
        return self.scored(mask, self.prefixes.finals(states, last), arrivals, (*before, last))

    def fit(self, mask: Mask) -> Score:
        """What is fitted for a mask, and each sample's loss with it; without the arrivals, which cost time."""
        return self._fit(mask, pictures=False)

    def _fit(self, mask: Mask, pictures: bool) -> Score:
        before = self._before_last(mask)
        states = self.prefixes.at(before)
        last = self._stretch(states, mask.computed[-1], self.calibration.steps)
        return self.scored(mask, self.prefixes.finals(states, last), (), (*before, last), pictures=pictures)

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
        steps, looks = self.calibration.steps, self._looks(states)
        (equations,) = self._equations(states, end, end, looks)
        to_end = equations if self.target == "next" else self._equations(states, steps, steps, looks)[0]
        return self._made(step, end, self._solve(equations, to_end, states), states, looks)

    def _kinds(self, states: list[State]) -> tuple[int, ...]:
        """How many weights there are of outputs, of the branch and of the noise."""
        outputs = min(len(states[0].outputs), self.form.outputs)
        return (outputs, outputs if self.form.apart else 0, 1) if self.form.noise else (outputs,)

    def _solve(self, equations: Equations, to_end: Equations, states: list[State]) -> tuple[float, ...]:
        aimed_at = equations if self.target == "next" else to_end
        kinds = [kind for kind in self._kinds(states) if kind]
        return aimed_at.solve(self.form.ridge, self.balance, kinds, 1 + self.form.apart, self.form.slopes)

    def _made(
        self, step: int, end: int, weights: tuple[float, ...], states: list[State], looks: _Looks | None
    ) -> Stretch:
        """The stretch that goes by the weights that were found."""
        kinds = self._kinds(states)
        if not self.form.noise:
            return Stretch(step, end, weights)
        outputs, terms = kinds[0], sum(kinds)
        found = torch.tensor(weights, dtype=torch.float64).reshape(-1, terms)  # the weights, then slope by slope
        if self.form.apart:  # from weights of v - c and c to weights of v and c
            found[:, outputs : 2 * outputs] -= found[:, :outputs]
        own, slopes = found[0].tolist(), found[1:].T.tolist()
        features = None if looks is None else looks.features.model_copy(update={"slopes": slopes})
        return Stretch.of(
            step,
            end,
            Row(outputs=tuple(own[:outputs]), branch=tuple(own[outputs:-1]), noise=own[-1], features=features),
        )

    def _looks(self, states: list[State]) -> _Looks | None:
        """What is known of the samples, if the weights look at them."""
        if not self.form.features or len(states[0].outputs) < 2:
            return None
        return _Looks.of(torch.cat([features_of(unpark(state).outputs).double().cpu() for state in states]))

    def _equations(self, states: list[State], first: int, last: int, looks: _Looks | None) -> list[Equations]:
        """What is known of the stretches to the steps from `first` to `last`: how each output moves each sample."""
        parts: list[list[Equations]] = [[] for _ in range(first, last + 1)]
        for number, parked in enumerate(states):
            teacher, state = self.calibration.trajectory(number), unpark(parked)
            reach = self._in_one_go if self.form.noise else self._by_the_solver
            ends = enumerate(reach(number, state, first, last), first)
            for part, (end, moved) in zip(parts, ends, strict=True):
                part.append(Equations.summed(_by_parts(moved, teacher[end].flatten(1))))
        joined = [Equations.join(part) for part in parts]
        return joined if looks is None else [equations.looking_at(looks.known) for equations in joined]

    def _by_the_solver(self, number: int, state: State, first: int, last: int) -> Iterator[Moved]:
        """For each end where a sample is if nothing moves it, and how far each output does."""
        still = torch.zeros_like(state.outputs[0])
        walks = [self.prefixes.pushed(number, state, v, last) for v in (still, *state.outputs)]
        for states in zip(*walks, strict=True):  # step by step, side by side: all steps together would be many
            if states[0].step >= first:
                yield partial(_apart, [each.x.flatten(1) for each in states])

    def _in_one_go(self, number: int, state: State, first: int, last: int) -> Iterator[Moved]:
        """The same for a row, which the branch and the noise may move as well (F12, F13)."""
        assert state.start is not None
        outputs, branch, _ = self._kinds([state])
        flat = _Flat(
            state.x.flatten(1),
            [v.flatten(1) for v in state.outputs[:outputs]],
            [c.flatten(1) for c in state.branch[:branch]],
            state.start.flatten(1),
        )
        for end in range(first, last + 1):
            yield partial(flat.moved, Stretch(state.step, end).on(self.calibration.moves(number)))


def _by_parts(moved: Moved, target: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """How each output moves a sample, and what is missing of the target, some numbers of the latent at a time."""
    for begin in range(0, target.shape[1], CHUNK):
        part = slice(begin, begin + CHUNK)
        here, moves = moved(part)
        yield moves, target[:, part].to(here) - here


def _apart(flat: Sequence[Tensor], part: slice) -> tuple[Tensor, Tensor]:
    """Where the first of some latents is, and how far the others are from it."""
    here, *moved = (x[:, part].double() for x in flat)
    return here, torch.stack([each - here for each in moved], 1)


@dataclass(frozen=True)
class _Flat:
    """A state's tensors, each of shape [N, size]."""

    x: Tensor
    outputs: list[Tensor]
    branch: list[Tensor]
    start: Tensor

    def moved(self, stretch: Stretch, part: slice) -> tuple[Tensor, Tensor]:
        """Where a sample is at the end of a stretch if nothing moves it, and how far each of the others does."""
        velocities = [v[:, part].double() for v in self.outputs]
        if self.branch:  # what guidance adds is small beside the output, and has a size, and so a ridge, of its own
            apart = [c[:, part].double() for c in self.branch]
            velocities = [*(v - c for v, c in zip(velocities, apart, strict=True)), *apart]
        moves = [*(stretch.push * v for v in velocities), self.start[:, part].double()]
        return stretch.keep * self.x[:, part].double(), torch.stack(moves, 1)


@dataclass(frozen=True)
class _Looks:
    """What is known of the samples at a computed step."""

    features: Features  # without slopes
    known: Tensor  # [N, F], standardised

    @classmethod
    def of(cls, found: Tensor) -> _Looks:
        """From the samples' features, shape [N, F]."""
        spread = found.std(0, correction=0)
        spread = torch.where(spread > SAME, spread, 1.0)  # what all samples agree in tells nothing
        features = Features(middle=tuple(found.mean(0).tolist()), spread=tuple(spread.tolist()), slopes=())
        return cls(features, standardised(found, features))
