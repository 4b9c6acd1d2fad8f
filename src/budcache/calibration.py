"""Calibration: samples with their noise and teacher frozen together, and the score of any mask on them."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from budcache.errors import SearchError
from budcache.mask import Mask
from budcache.model import Model
from budcache.rollout import State, advance
from budcache.score import Score
from budcache.solvers import Solver

__all__ = ["Calibration", "Objective", "Run", "latent_mse"]


class Run(Model, Protocol):
    """A model together with the run that is to be imitated: a `PipelineModel`, or anything like it."""

    noise: Tensor  # where the run begins, shape [N, ...]
    sigmas: Tensor  # its noise levels, shape [K + 1]
    calls: int  # how often the model was evaluated, for all N samples at once

    def solver(self, sigmas: Tensor | None = None) -> Solver:
        """The solver of the run, as a pure function."""


Objective = Callable[[Tensor, Tensor, Run], float]


def latent_mse(student: Tensor, teacher: Tensor, run: Run) -> float:
    """Mean squared error of the final latents: the paper's objective."""
    return float((student.double() - teacher.double()).square().mean())


@dataclass
class _Tree:
    """States after computed prefixes, least recently used out: masks that agree so far share them (F4)."""

    bound: int
    states: OrderedDict[tuple[int, tuple[int, ...]], State] = field(default_factory=OrderedDict)
    size: int = 0

    def get(self, run: int, computed: tuple[int, ...]) -> State | None:
        state = self.states.get((run, computed))
        if state is not None:
            self.states.move_to_end((run, computed))
        return state

    def put(self, run: int, computed: tuple[int, ...], state: State) -> None:
        if self.bound <= 0 or (run, computed) in self.states:
            return
        self.states[run, computed] = state
        self.size += _bytes(state)
        while self.size > self.bound and self.states:
            _, dropped = self.states.popitem(last=False)
            self.size -= _bytes(dropped)


class Calibration:
    """Runs to imitate, and how well a mask imitates them.

    Args:
        runs: one per sample, or per batch of samples; each is run in full once, for its teacher.
        objective: the loss of one run's final latents against the teacher's.
        state_memory: bytes that may be spent on remembered states; 0 remembers none. The losses are the same.

    Attributes:
        calls: sample-calls so far: model evaluations times samples, the teacher's included.
    """

    def __init__(
        self, runs: Sequence[Run], *, objective: Objective = latent_mse, state_memory: int = 2_000_000_000
    ) -> None:
        if not runs:
            raise SearchError("there is nothing to calibrate on. Give at least one prompt.")
        self.runs, self.objective = list(runs), objective
        self.steps = len(runs[0].sigmas) - 1
        self._solvers = [run.solver() for run in runs]
        self._tree = _Tree(state_memory)
        self._teachers = [self._teach(run, solver) for run, solver in zip(self.runs, self._solvers, strict=True)]

    @property
    def calls(self) -> int:
        """Model evaluations times samples; an objective that needs some of its own says how many in `calls`."""
        return sum(run.calls * len(run.noise) for run in self.runs) + int(getattr(self.objective, "calls", 0))

    @property
    def samples(self) -> int:
        """How many samples there are."""
        return sum(len(run.noise) for run in self.runs)

    def teacher(self, run: int) -> Tensor:
        """The final latents of the full run."""
        return self._teachers[run][-1]

    def trajectory(self, run: int) -> list[Tensor]:
        """The full run's latents at every step, and at the end."""
        return self._teachers[run]

    def solver(self, run: int) -> Solver:
        """The run's solver."""
        return self._solvers[run]

    def student(self, mask: Mask, run: int) -> Tensor:
        """The final latents under a mask."""
        return self._roll(run, mask)[-1]

    def students(self, mask: Mask) -> list[Tensor]:
        """The final latents of every run under a mask."""
        return [self.student(mask, run) for run in range(len(self.runs))]

    def loss(self, finals: Sequence[Tensor]) -> float:
        """The mean loss of final latents, one for each run, however they came about."""
        shares = [len(run.noise) / self.samples for run in self.runs]
        losses = [self.objective(x, self.teacher(i), self.runs[i]) for i, x in enumerate(finals)]
        return sum(share * loss for share, loss in zip(shares, losses, strict=True))

    def score(self, mask: Mask) -> Score:
        """Roll a mask on all samples and compare with the teacher."""
        if len(mask) != self.steps:
            raise SearchError(f"the mask has {len(mask)} steps, but the runs have {self.steps}.")
        last = mask.computed[-1]
        loss, arrivals, samples = 0.0, [0.0] * (self.steps + 1), self.samples
        for number, run in enumerate(self.runs):
            states, teacher = self._roll(number, mask), self._teachers[number]
            share = len(run.noise) / samples
            value = self.objective(states[-1], teacher[-1], run)
            if not math.isfinite(value):
                raise SearchError(
                    f"the loss of mask {mask} on run {number} is {value}. Check that the model's output is finite in "
                    "its number format (float16 overflows where bfloat16 does not)."
                )
            loss += share * value
            for j in range(last + 1, self.steps + 1):
                arrivals[j] += share * latent_mse(states[j - last - 1], teacher[j], run)
        return Score(loss, (*[None] * (last + 1), *arrivals[last + 1 :]))

    def _teach(self, run: Run, solver: Solver) -> list[Tensor]:
        """The states of the full run at every step, and at the end."""
        state, states = State(run.noise), [run.noise]
        for _ in range(self.steps):
            state = advance(run, state, run.sigmas, True, solver)
            states.append(state.x)
        if not torch.isfinite(states[-1]).all():
            raise SearchError(
                "the full run itself ends in numbers that are not finite. Check the model and its number format."
            )
        return states

    def _roll(self, number: int, mask: Mask) -> list[Tensor]:
        """The states after the last computed step and after each reused one behind it, down to the end."""
        run, solver, computed = self.runs[number], self._solvers[number], mask.computed
        known = len(computed)
        while known and (state := self._tree.get(number, computed[:known])) is None:
            known -= 1
        if not known:
            state = State(run.noise)
        assert state is not None
        for place in range(known, len(computed)):
            while state.step < computed[place]:
                state = advance(run, state, run.sigmas, False, solver)
            state = advance(run, state, run.sigmas, True, solver)
            self._tree.put(number, computed[: place + 1], state)
        states = [state.x]
        while state.step < self.steps:
            state = advance(run, state, run.sigmas, False, solver)
            states.append(state.x)
        return states


def _bytes(value: Any) -> int:
    """The size of the tensors in a state, whatever they are nested in."""
    if isinstance(value, Tensor):
        return value.element_size() * value.nelement()
    if isinstance(value, dict):
        return sum(map(_bytes, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_bytes, value))
    if hasattr(value, "__dict__"):
        return sum(map(_bytes, vars(value).values()))
    return 0
