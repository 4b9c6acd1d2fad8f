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

from budcache.calibration.asking import Asked, Scope, Thought, finite, together
from budcache.calibration.calibration import Calibration
from budcache.calibration.prefixes import Prefixes
from budcache.calibration.rolling import by_sample
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
        calibration: Asked,
        form: Form | None = None,
        *,
        target: Target = "next",
        balance: float = 1.0,
        memory: int = 0,
        pictures: type[Pictures] | None = None,
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

    def scoring(self, mask: Mask) -> Thought[Score]:
        """Roll a mask with fitted reuse on all samples and compare with the teacher; see `Scorer`."""
        if not self.arrivals:
            return (yield from self._fit(mask, self.pictures))
        after, steps = mask.computed[-1] + 1, self.calibration.steps
        before = yield from self._before_last(mask)
        measured = yield from self._measured(before, range(after, steps + 1))
        found = [self._solve(equations, measured.every[-1], measured) for equations in measured.every]
        errors = [tuple(each.errors(weights).tolist()) for each, weights in zip(measured.every, found, strict=True)]
        last = self._made(after - 1, steps, found[-1], measured)
        return (yield from self._scored(mask, (*before, last), (*[None] * after, *errors), self.pictures))

    def fit(self, mask: Mask) -> Score:
        """What is fitted for a mask, and each sample's loss with it; without the arrivals, which cost time."""
        self.calibration.check(mask)
        return next(together(self.calibration, [self._fit(mask, None)]))

    def _fit(self, mask: Mask, pictures: type[Pictures] | None) -> Thought[Score]:
        before = yield from self._before_last(mask)
        last = yield from self._stretch(before, mask.computed[-1], self.calibration.steps)
        return (yield from self._scored(mask, (*before, last), (), pictures))

    def _scored(
        self,
        mask: Mask,
        fitted: tuple[Stretch, ...],
        arrivals: tuple[tuple[float, ...] | None, ...],
        pictures: type[Pictures] | None,
    ) -> Thought[Score]:
        """What the final latents of a mask come to, and the stretches that were fitted for it."""
        rolled = yield from self._to_end(fitted, pictures=pictures)
        losses = finite(mask, by_sample([each.losses for each in rolled]))
        ratios = by_sample([each.ratios for each in rolled]) if pictures else None
        if not self.form.noise:
            return Score(losses, arrivals, weights=tuple(tuple(each.blend or ()) for each in fitted), ratios=ratios)
        return Score(losses, arrivals, rows=tuple(each.row for each in fitted), ratios=ratios)

    def _before_last(self, mask: Mask) -> Thought[tuple[Stretch, ...]]:
        """The fitted stretches of a mask, without the last."""
        found: tuple[Stretch, ...] = ()
        for step, end in mask.segments[:-1]:
            if (found, end) not in self._fitted:
                self._fitted[found, end] = yield from self._stretch(found, step, end)
            found = (*found, self._fitted[found, end])
        return found

    def _stretch(self, before: tuple[Stretch, ...], step: int, end: int) -> Thought[Stretch]:
        """The stretch from where the runs are to a step, with the best blend."""
        ends = [end] if self.target == "next" or end == self.calibration.steps else [end, self.calibration.steps]
        measured = yield from self._measured(before, ends)
        weights = self._solve(measured.every[0], measured.every[-1], measured)
        return self._made(step, end, weights, measured)

    def _measured(self, before: tuple[Stretch, ...], ends: Sequence[int]) -> Thought[_Measured]:
        """What all runs say of the stretches from where they are to some steps."""
        said: list[Said] = yield Measure(self.scope, before, tuple(ends), self.form)
        joined = [Equations.join(each) for each in zip(*(each.equations for each in said), strict=True)]
        if said[0].features is None:
            return _Measured(said[0].kinds, joined, None)
        looks = _Looks.of(torch.cat([each.features for each in said if each.features is not None]))
        return _Measured(said[0].kinds, [equations.looking_at(looks.known) for equations in joined], looks)

    def _solve(self, equations: Equations, to_end: Equations, measured: _Measured) -> tuple[float, ...]:
        aimed_at = equations if self.target == "next" else to_end
        kinds = [kind for kind in measured.kinds if kind]
        return aimed_at.solve(self.form.ridge, self.balance, kinds, 1 + self.form.apart, self.form.slopes)

    def _made(self, step: int, end: int, weights: tuple[float, ...], measured: _Measured) -> Stretch:
        """The stretch that goes by the weights that were found."""
        if not self.form.noise:
            return Stretch(step, end, weights)
        outputs, terms = measured.kinds[0], sum(measured.kinds)
        found = torch.tensor(weights, dtype=torch.float64).reshape(-1, terms)  # the weights, then slope by slope
        if self.form.apart:  # from weights of v - c and c to weights of v and c
            found[:, outputs : 2 * outputs] -= found[:, :outputs]
        own, slopes, looks = found[0].tolist(), found[1:].T.tolist(), measured.looks
        features = None if looks is None else looks.features.model_copy(update={"slopes": slopes})
        return Stretch.of(
            step,
            end,
            Row(outputs=tuple(own[:outputs]), branch=tuple(own[outputs:-1]), noise=own[-1], features=features),
        )


@dataclass(frozen=True)
class _Measured:
    """What all runs together say of some stretches that begin at the same step."""

    kinds: tuple[int, ...]
    every: list[Equations]  # of each end
    looks: _Looks | None


@dataclass(frozen=True)
class Said:
    """What one run says of some stretches that begin at the same step.

    Args:
        kinds: how many weights there are of outputs, of the branch and of the noise.
        equations: how each output moves each sample, for each end.
        features: what is known of the samples, shape [N, F], if the weights look at them.
    """

    kinds: tuple[int, ...]
    equations: tuple[Equations, ...]
    features: Tensor | None


@dataclass(frozen=True)
class Measure:
    """What a run says of the stretches from where it is to some steps.

    Args:
        scope: which states are remembered.
        before: the way to where the runs are.
        ends: the steps, rising.
        form: what the fit may use.
    """

    scope: Scope
    before: tuple[Stretch, ...]
    ends: tuple[int, ...]
    form: Form

    def answer(self, known: Calibration, number: int) -> Said:
        """See `Question`."""
        prefixes, teacher = known.prefixes(self.scope), known.trajectory(number)
        state = unpark(prefixes.at(self.before)[number])
        looks = self.form.features and len(state.outputs) > 1
        reached = (
            self._in_one_go(known, number, state) if self.form.noise else self._by_the_solver(prefixes, number, state)
        )
        equations = [
            Equations.summed(_by_parts(moved, teacher[end].flatten(1)))
            for end, moved in zip(self.ends, reached, strict=True)
        ]
        features = features_of(state.outputs).double().cpu() if looks else None
        return Said(self._kinds(state), tuple(equations), features)

    def _kinds(self, state: State) -> tuple[int, ...]:
        outputs = min(len(state.outputs), self.form.outputs)
        return (outputs, outputs if self.form.apart else 0, 1) if self.form.noise else (outputs,)

    def _by_the_solver(self, prefixes: Prefixes, number: int, state: State) -> Iterator[Moved]:
        """For each end where a sample is if nothing moves it, and how far each output does."""
        still = torch.zeros_like(state.outputs[0])
        walks = [prefixes.pushed(number, state, v, self.ends[-1]) for v in (still, *state.outputs)]
        for states in zip(*walks, strict=True):  # step by step, side by side: all steps together would be many
            if states[0].step in self.ends:
                yield partial(_apart, [each.x.flatten(1) for each in states])

    def _in_one_go(self, known: Calibration, number: int, state: State) -> Iterator[Moved]:
        """The same for a row, which the branch and the noise may move as well (F12, F13)."""
        assert state.start is not None
        outputs, branch, _ = self._kinds(state)
        flat = _Flat(
            state.x.flatten(1),
            [v.flatten(1) for v in state.outputs[:outputs]],
            [c.flatten(1) for c in state.branch[:branch]],
            state.start.flatten(1),
        )
        for end in self.ends:
            yield partial(flat.moved, Stretch(state.step, end).on(known.moves(number)))


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
