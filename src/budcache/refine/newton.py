"""Alignment without gradients (F14): one damped Gauss-Newton step on all weights of a fitted policy at once.

A fit goes from stretch to stretch and never looks back. Here each weight is moved a little, the calls behind it are
made again, and the change of the final latents is a column of the Jacobian. Forward runs only, at the memory of
inference: so it works for compiled, quantised, offloaded and video models, for which Algorithm 3 is too costly.

What is made small is the samples' mean error in decibels: each sample counts by the inverse of its error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from budcache.calibration.asking import Asked
from budcache.calibration.calibration import Calibration
from budcache.errors import SearchError
from budcache.numerics.memory import park, unpark
from budcache.numerics.rollout import State, compute, ended, levels_of, reuse
from budcache.numerics.shelf import Kept, part_of
from budcache.numerics.solvers import Solver, first_order
from budcache.plan import Plan, Stretch
from budcache.policy import Policy
from budcache.records.gram import CHUNK
from budcache.refine.equations import Equations

__all__ = ["STEPS", "GaussNewton"]

STEPS = (1.0, 0.5, 0.25)  # lengths of a step that are tried, on true losses
DAMPING = 1e-3  # of the squared size of a column
# How far a weight is moved for its column: so far that the sample moves by this share of its stretch. Measured on
# tiny-flux; half precision rounds smaller moves away (benchmarks/README.md).
MOVE, COARSE_MOVE = 0.02, 0.2


@dataclass(frozen=True)
class Place:
    """One weight of a policy: of which computed step, and the number in its row (outputs, branch, noise)."""

    step: int
    number: int


class GaussNewton:
    """The normal equations of all weights of a policy together, run by run, and the step that they lead to.

    Args:
        policy: a fitted one.
        calibration: the samples to align on, with their teachers.
        move: see `MOVE`; None chooses by the number format of the runs.
    """

    def __init__(self, policy: Policy, calibration: Asked, move: float | None = None) -> None:
        if not policy.is_blended:
            raise SearchError(
                f"the policy of {policy.budget} calls repeats outputs as they are, so it has no weights to align. Fit "
                "it first."
            )
        calibration.check(policy.mask)
        self.policy, self.calibration = policy, calibration
        self.move = move or (COARSE_MOVE if calibration.facts[0].coarse else MOVE)
        self._plan = Plan.of(policy, (), guided=calibration.is_guided)
        self.question = Columns(self._plan, policy.sigmas, self.move)

    @property
    def places(self) -> list[Place]:
        """All weights, in the order of the equations."""
        return _places(self._plan)

    def equations(self, number: int) -> Equations:
        """What one run says: how each weight moves its final latents, and what these miss of the teacher's."""
        ((_, found, _),) = self.calibration.each(self.question, [number])
        return found

    def stepped(self, equations: Sequence[Equations], length: float = 1.0) -> Policy:
        """The policy after a step of some length towards the least error."""
        together = Equations.join(equations)
        changes = together.step(DAMPING)
        stretches = list(self._plan)
        for place, change in zip(self.places, changes, strict=True):
            stretch = stretches[place.step]
            stretches[place.step] = _changed(stretch, place.number, length * change)
        return self._policy(stretches)

    def _policy(self, stretches: Sequence[Stretch]) -> Policy:
        if stretches[0].noise is None:
            update: dict[str, object] = {"weights": tuple(stretch.blend for stretch in stretches)}
        else:
            name = "guided" if self.policy.guided is not None and self.calibration.is_guided else "rows"
            update = {name: tuple(stretch.row for stretch in stretches)}
        return self.policy.model_copy(update=update | {"quality": None})


@dataclass(frozen=True)
class Columns:
    """What a run says of all weights of a plan: how each moves its final latents, and what these miss."""

    plan: Plan
    sigmas: tuple[float, ...] | None
    move: float

    def answer(self, known: Calibration, number: int) -> Equations:
        """See `Question`."""
        final, columns = self.of(known, number)
        kept = [park(column, known.shelf) for column in columns]
        missing = (known.trajectory(number)[-1].double() - final.double()).flatten(1)
        return Equations.summed(_by_parts(kept, missing))

    def of(self, known: Calibration, number: int) -> tuple[Tensor, Iterator[Tensor]]:
        """The final latents of a run, and how they change with each weight; the states on the way are shared."""
        walk = _Walk.of(known, number, self.plan, self.sigmas)
        states = walk.states()
        final = walk.end(states[-1], walk.stretches[-1])

        def columns() -> Iterator[Tensor]:
            for place in _places(self.plan):
                stretch, state = walk.stretches[place.step], states[place.step]
                here = walk.end(state, stretch)
                by = self._by(walk, unpark(state), stretch, place.number, here)
                moved = walk.run(state, _changed(stretch, place.number, by), place.step)
                yield ((moved.double() - final.double()) / by).flatten(1).float()

        return final, columns()

    def _by(self, walk: _Walk, state: State, stretch: Stretch, number: int, here: Tensor) -> float:
        """How far to move a weight so that the sample moves by a share of its stretch."""
        moved = walk.end(state, _changed(stretch, number, 1.0))
        size = float((moved.double() - here.double()).norm())
        whole = float((here.double() - state.x.cpu().double()).norm())
        return self.move * whole / size if size > 0 and whole > 0 else self.move


def _places(plan: Plan) -> list[Place]:
    return [Place(place, number) for place, stretch in enumerate(plan) for number in range(len(_weights(stretch)))]


def _by_parts(columns: Sequence[Tensor | Kept], missing: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Columns and what is missing, some numbers of the latent at a time."""
    for begin in range(0, missing.shape[1], CHUNK):
        end = begin + CHUNK
        yield torch.stack([part_of(each, begin, end) for each in columns], 1).double(), missing[:, begin:end]


@dataclass(frozen=True)
class _Walk:
    """One run under a policy, that can be left and taken up again at any of its computed steps."""

    calibration: Calibration
    number: int
    stretches: tuple[Stretch, ...]
    levels: Tensor
    solver: Solver
    outputs: int

    @classmethod
    def of(cls, calibration: Calibration, number: int, plan: Plan, sigmas: tuple[float, ...] | None) -> _Walk:
        run = calibration.runs[number]
        own = sigmas is not None
        levels = torch.tensor(sigmas, dtype=run.sigmas.dtype) if own else run.sigmas
        solver = run.solver(levels) if own else calibration.solver(number)
        plan = replace(plan, levels=levels)
        stretches = plan.stretches
        if plan.is_linear:
            moves = first_order(solver, levels_of(plan), run.noise.device) if own else calibration.moves(number)
            stretches = tuple(stretch.on(moves) for stretch in stretches)
        return cls(calibration, number, stretches, levels, solver, plan.outputs)

    def states(self) -> list[State]:
        """The state at each computed step, the model computed there; parked."""
        run = self.calibration.runs[self.number]
        states, shelf = list[State](), self.calibration.shelf
        states.append(park(compute(run, State(run.noise, start=run.noise), self.levels, self.outputs), shelf))
        for stretch in self.stretches[:-1]:
            states.append(park(compute(run, self._beyond(states[-1], stretch), self.levels, self.outputs), shelf))
        return states

    def end(self, state: State, stretch: Stretch) -> Tensor:
        """Where a stretch ends; no call is made."""
        return self._beyond(state, stretch).x.cpu()

    def run(self, state: State, stretch: Stretch, place: int) -> Tensor:
        """The final latents from a computed step on, along another stretch than usual there."""
        run = self.calibration.runs[self.number]
        for following in self.stretches[place + 1 :]:
            state = compute(run, self._beyond(state, stretch), self.levels, self.outputs)
            stretch = following
        return self.end(state, stretch)

    def _beyond(self, state: State, stretch: Stretch) -> State:
        run = self.calibration.runs[self.number]
        return ended(reuse(run, unpark(state), stretch, self.levels, self.solver))


def _weights(stretch: Stretch) -> tuple[float, ...]:
    assert stretch.blend is not None
    return tuple(stretch.blend) if stretch.noise is None else (*stretch.blend, *stretch.branch, stretch.noise)


def _changed(stretch: Stretch, number: int, by: float) -> Stretch:
    """A stretch with one of its weights moved; that of an output with a branch moves what guidance adds to it."""
    weights = list(_weights(stretch))
    weights[number] += by
    if stretch.noise is None:
        return replace(stretch, blend=tuple(weights))
    outputs = len(stretch.blend or ())
    if number < len(stretch.branch):
        weights[outputs + number] -= by
    return replace(stretch, blend=tuple(weights[:outputs]), branch=tuple(weights[outputs:-1]), noise=weights[-1])
