"""Calibration: samples with their noise and teacher frozen together, and the score of any mask on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from budcache.calibration.score import Score
from budcache.errors import SearchError
from budcache.mask import Mask
from budcache.numerics.memory import Tree, park, unpark
from budcache.numerics.model import Model
from budcache.numerics.rollout import State, Weights, advance, rollout
from budcache.numerics.solvers import Solver

__all__ = ["Calibration", "Objective", "Run", "arrival", "geometric_mean", "latent_mse"]


# How arrivals weigh their samples: 1 would be the mean, infinity the worst one alone. A sample that has strayed far on
# its way ends as another picture, and calling the model later does not bring it back; so the worst ones count most.
WORST = 4
TINY = 1e-20  # a loss below this is none


def arrival(errors: Tensor) -> float:
    """One number for the samples' mean squared errors on arriving at a step: their power mean, near to the worst."""
    scale = errors.max().clamp(min=1e-300)
    return float(scale * (errors / scale).pow(WORST).mean().pow(1 / WORST))


def geometric_mean(losses: Tensor) -> float:
    """Not a number if one of them is none."""
    return float(losses.double().clamp(min=TINY).log().mean().exp())


def _errors(student: Tensor, teacher: Tensor) -> Tensor:
    """Each sample's mean squared error, shape [N]."""
    return (student.cpu().double() - teacher.cpu().double()).flatten(1).square().mean(1)


class Run(Model, Protocol):
    """A model together with the run that is to be imitated: a `PipelineModel`, or anything like it."""

    noise: Tensor  # where the run begins, shape [N, ...]
    sigmas: Tensor  # its noise levels, shape [K + 1]
    calls: int  # how often the model was evaluated, for all N samples at once

    def solver(self, sigmas: Tensor | None = None) -> Solver:
        """The solver of the run, as a pure function."""


Objective = Callable[[Tensor, Tensor, Run], "float | Tensor"]  # one loss for the run, or one for each of its samples


def latent_mse(student: Tensor, teacher: Tensor, run: Run) -> Tensor:
    """Mean squared error of the final latents, the paper's objective, sample by sample."""
    return _errors(student, teacher)


class Calibration:
    """Runs to imitate, and how well a mask imitates them.

    Args:
        runs: one per sample, or per batch of samples; each is run in full once, for its teacher.
        objective: the loss of one run's final latents against the teacher's.
        state_memory: bytes that may be spent on remembered states; 0 remembers none. The losses are the same.
        teacher_sigmas: levels of another teacher, finer than the full run (F7); None is the full run itself.
        spent: sample-calls that were needed before, to be counted with the others.
        taught: called after each full run with the sample-calls that these have taken so far.

    Attributes:
        calls: sample-calls so far: model evaluations times samples, the teacher's included.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        *,
        objective: Objective = latent_mse,
        state_memory: int = 2_000_000_000,
        teacher_sigmas: Tensor | None = None,
        spent: int = 0,
        taught: Callable[[int], None] | None = None,
    ) -> None:
        if not runs:
            raise SearchError("there is nothing to calibrate on. Give at least one prompt.")
        if any(run.noise.numel() == 0 for run in runs):
            shape = next(tuple(run.noise.shape) for run in runs if run.noise.numel() == 0)
            raise SearchError(
                f"the latents are empty (shape {shape}): "
                "the pictures are too small for this model. Choose a larger height and width."
            )
        self.runs, self.objective, self._spent = list(runs), objective, spent
        self.steps = len(runs[0].sigmas) - 1
        self._solvers = [run.solver() for run in runs]
        self._tree: Tree[State] = Tree(state_memory)
        self._teachers: list[list[Tensor]] = []
        for run in self.runs:
            self._teachers.append(self._teach(run, teacher_sigmas))
            if taught is not None:
                taught(self.calls)

    @property
    def calls(self) -> int:
        """Model evaluations times samples; an objective that needs some of its own says how many in `calls`."""
        of_objective = int(getattr(self.objective, "calls", 0))
        return self._spent + sum(run.calls * len(run.noise) for run in self.runs) + of_objective

    @property
    def samples(self) -> int:
        """How many samples there are."""
        return sum(len(run.noise) for run in self.runs)

    def teacher(self, run: int) -> Tensor:
        """The final latents of the full run."""
        return self._teachers[run][-1].to(self.runs[run].noise.device)

    def trajectory(self, run: int) -> list[Tensor]:
        """The full run's latents at every step, and at the end; kept on the CPU, for they are many."""
        return self._teachers[run]

    def solver(self, run: int) -> Solver:
        """The run's solver."""
        return self._solvers[run]

    def finals(self, mask: Mask, weights: Weights | None = None, sigmas: Sequence[float] | None = None) -> list[Tensor]:
        """The final latents of every run under a mask with blend weights and noise levels, as it will be served.

        They are kept on the CPU, so that the device holds one run at a time however many there are.
        """
        if weights is None and sigmas is None:
            return [self._roll(number, mask)[-1].cpu() for number in range(len(self.runs))]
        finals = []
        for run in self.runs:
            levels = None if sigmas is None else torch.tensor(sigmas, dtype=run.sigmas.dtype)
            own = run.sigmas if levels is None else levels
            finals.append(rollout(run, run.noise, own, mask, run.solver(levels), weights).cpu())
        return finals

    def loss(self, finals: Sequence[Tensor]) -> float:
        """The mean loss of final latents, one for each run, however they came about."""
        return float(self.losses(finals).mean())

    def typical_loss(self, finals: Sequence[Tensor]) -> float:
        """The geometric mean of the samples' losses, in which each counts relative to its own; it goes with PSNR."""
        return geometric_mean(self.losses(finals))

    def losses(self, finals: Sequence[Tensor]) -> Tensor:
        """The loss of each sample, shape [samples]; that of its whole run where the objective tells no more."""
        parts = []
        for number, (run, x) in enumerate(zip(self.runs, finals, strict=True)):
            here = x.to(run.noise.device)
            found = torch.as_tensor(self.objective(here, self.teacher(number), run), dtype=torch.float64).cpu()
            parts.append(found.reshape(-1).expand(len(run.noise)))
        return torch.cat(parts)

    def forget(self) -> None:
        """Let go of the remembered states."""
        self._tree = Tree(self._tree.bound)

    def checked_loss(self, mask: Mask, finals: Sequence[Tensor]) -> float:
        """The loss of a mask's final latents; it must be a number."""
        loss = self.loss(finals)
        if not math.isfinite(loss):
            raise SearchError(
                f"the loss of mask {mask} is {loss}. Check that the model's output is finite in its number format "
                "(float16 overflows where bfloat16 does not)."
            )
        return loss

    def check(self, mask: Mask) -> None:
        """Refuse a mask of another length."""
        if len(mask) != self.steps:
            raise SearchError(f"the mask has {len(mask)} steps, but the runs have {self.steps}.")

    def score(self, mask: Mask) -> Score:
        """Roll a mask on all samples and compare with the teacher."""
        self.check(mask)
        last = mask.computed[-1]
        rolled = [[x.cpu() for x in self._roll(number, mask)] for number in range(len(self.runs))]
        errors = [
            torch.cat([_errors(states[j], self._teachers[i][last + 1 + j]) for i, states in enumerate(rolled)])
            for j in range(self.steps - last)
        ]
        loss = self.checked_loss(mask, [states[-1] for states in rolled])
        return Score(loss, (*[None] * (last + 1), *map(arrival, errors)))

    def _teach(self, run: Run, finer: Tensor | None) -> list[Tensor]:
        """The teacher's states at every step of the run, and at the end."""
        levels = run.sigmas if finer is None else finer
        if abs(float(levels[0] - run.sigmas[0])) > 1e-3 * float(levels[0]):
            raise SearchError(
                f"a teacher of {len(levels) - 1} steps begins at the noise level {float(levels[0]):g}, the run of "
                f"{self.steps} steps at {float(run.sigmas[0]):g}, so it cannot teach it. Leave teacher_steps out, or "
                'give the scheduler timestep_spacing="trailing".'
            )
        solver = run.solver(finer)
        state, states = State(run.noise), [run.noise.cpu()]
        for _ in range(len(levels) - 1):
            state = advance(run, state, levels, True, solver)
            states.append(state.x.cpu())
        if not torch.isfinite(states[-1]).all():
            raise SearchError(
                "the full run itself ends in numbers that are not finite. Check the model and its number format."
            )
        return states if finer is None else [_between(states, levels, sigma) for sigma in run.sigmas]

    def _roll(self, number: int, mask: Mask) -> list[Tensor]:
        """The states after the last computed step and after each reused one behind it, down to the end."""
        run, solver, computed = self.runs[number], self._solvers[number], mask.computed
        known = len(computed)
        while known and (found := self._tree.get((number, computed[:known]))) is None:
            known -= 1
        state = unpark(found) if known and found else State(run.noise)
        for place in range(known, len(computed)):
            while state.step < computed[place]:
                state = advance(run, state, run.sigmas, False, solver)
            state = advance(run, state, run.sigmas, True, solver)
            self._tree.put((number, computed[: place + 1]), park(state))
        states = [state.x]
        while state.step < self.steps:
            state = advance(run, state, run.sigmas, False, solver)
            states.append(state.x)
        return states


def _between(states: Sequence[Tensor], levels: Tensor, sigma: Tensor) -> Tensor:
    """Where a run passes a level: one of its states, or between two of them on a straight line, as Euler goes."""
    behind = min(int((levels > sigma + 1e-6 * levels[0]).sum()), len(levels) - 1)
    if behind == 0 or abs(float(levels[behind] - sigma)) <= 1e-6 * float(levels[0]):
        return states[behind]
    before = behind - 1
    part = float((sigma - levels[before]) / (levels[behind] - levels[before]))
    return states[before] + part * (states[behind] - states[before])
