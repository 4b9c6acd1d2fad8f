"""Calibration: samples with their noise and teacher frozen together, and the loss of any final latents on them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from budcache.calibration.objectives import Objective, Run, latent_mse
from budcache.errors import SearchError
from budcache.mask import Mask
from budcache.numerics.memory import park, unpark
from budcache.numerics.rollout import State, coast, compute, ended, rollout
from budcache.numerics.shelf import Kept, Shelf
from budcache.numerics.solvers import Solver, first_order
from budcache.plan import Moves, Plan
from budcache.policy import Policy
from budcache.records.gram import Array, Grams, gram_of

__all__ = ["Calibration"]


class Calibration:
    """Runs to imitate, and how near final latents come to their teachers.

    Args:
        runs: one per sample, or per batch of samples; each is run in full once, for its teacher.
        objective: the loss of one run's final latents against the teacher's.
        teacher_sigmas: levels of another teacher, finer than the full run (F7); None is the full run itself.
        spent: sample-calls that were needed before, to be counted with the others.
        residual: whether reused steps repeat the trunk's residual instead of the output.
        record: whether the full runs are also kept as inner products (F10).
        taught: called after each full run with the sample-calls that these have taken so far.
        shelf: where the full runs' states wait; None is main memory.
        whole: whether the states on the way are kept; who only judges needs the last ones.
        switch: the step at which another expert takes over, whose fits are not to look back before it; None lets them.

    Attributes:
        calls: sample-calls so far: model evaluations times samples, the teacher's included.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        *,
        objective: Objective = latent_mse,
        teacher_sigmas: Tensor | None = None,
        spent: int = 0,
        residual: bool = False,
        record: bool = False,
        taught: Callable[[int], None] | None = None,
        shelf: Shelf | None = None,
        whole: bool = True,
        switch: int | None = None,
    ) -> None:
        if not runs:
            raise SearchError("there is nothing to calibrate on. Give at least one prompt.")
        if any(run.noise.numel() == 0 for run in runs):
            shape = next(tuple(run.noise.shape) for run in runs if run.noise.numel() == 0)
            raise SearchError(
                f"the latents are empty (shape {shape}): "
                "the pictures are too small for this model. Choose a larger height and width."
            )
        self.runs, self.objective, self.residual, self._spent = list(runs), objective, residual, spent
        self.shelf, self.switch, self._whole = shelf, switch, whole
        self.steps = len(runs[0].sigmas) - 1
        self._solvers = [run.solver() for run in runs]
        self._moves: dict[int, Moves] = {}
        self._teachers: list[Waiting] = []
        self._products: list[Array] | None = [] if record else None
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
    def is_guided(self) -> bool:
        """Whether every run tells the branches of its guidance apart (F12)."""
        return all(getattr(run, "conditional", None) is not None for run in self.runs)

    @property
    def levels(self) -> tuple[float, ...]:
        """The K + 1 noise levels that all runs have; none if they differ, as they do with the size of a picture."""
        first = self.runs[0].sigmas.cpu()
        same = all(torch.equal(run.sigmas.cpu(), first) for run in self.runs)
        # As short as they can be written: a float32 has nine digits, and a float of Python twice as many.
        return tuple(float(str(level)) for level in first.float().numpy()) if same else ()

    @property
    def samples(self) -> int:
        """How many samples there are."""
        return sum(len(run.noise) for run in self.runs)

    def teacher(self, run: int) -> Tensor:
        """The final latents of the full run."""
        final: Tensor = self._teachers[run][-1]
        return final.to(self.runs[run].noise.device)

    def trajectory(self, run: int) -> Sequence[Tensor]:
        """The full run's latents at every step, and at the end; kept on the CPU or on disk, for they are many."""
        return self._teachers[run]

    def solver(self, run: int) -> Solver:
        """The run's solver, on its own noise levels."""
        return self._solvers[run]

    def moves(self, run: int) -> Moves:
        """The steps of the run's solver, to first order."""
        if run not in self._moves:
            self._moves[run] = first_order(self.solver(run), self.runs[run].sigmas, self.runs[run].noise.device)
        return self._moves[run]

    def finals(self, policy: Policy) -> list[Tensor]:
        """The final latents of every run under a policy, as it will be served; kept on the CPU."""
        self.check(policy.mask)
        finals = []
        for number, run in enumerate(self.runs):
            own = policy.sigmas is not None
            levels = torch.tensor(policy.sigmas, dtype=run.sigmas.dtype) if own else run.sigmas
            solver = run.solver(levels) if own else self.solver(number)
            finals.append(rollout(run, run.noise, Plan.of(policy, levels, guided=self.is_guided), solver).cpu())
        return finals

    def losses(self, finals: Sequence[Tensor]) -> tuple[float, ...]:
        """The loss of each sample; that of its whole run where the objective tells no more."""
        parts: list[float] = []
        for number, (run, x) in enumerate(zip(self.runs, finals, strict=True)):
            here = x.to(run.noise.device)
            found = torch.as_tensor(self.objective(here, self.teacher(number), run), dtype=torch.float64).cpu()
            if found.numel() not in (1, len(run.noise)):
                raise SearchError(
                    f"the objective returned {found.numel()} numbers for a run of {len(run.noise)}. "
                    "Return one number, or one for each sample."
                )
            parts += found.reshape(-1).expand(len(run.noise)).tolist()
        return tuple(parts)

    def checked_losses(self, mask: Mask, finals: Sequence[Tensor]) -> tuple[float, ...]:
        """The losses of a mask's final latents; they must be numbers."""
        losses = self.losses(finals)
        for loss in losses:
            if not math.isfinite(loss):
                raise SearchError(
                    f"the loss of mask {mask} is {loss}. Check that the model's output is finite in its number format "
                    "(float16 overflows where bfloat16 does not)."
                )
        return losses

    def check(self, mask: Mask) -> None:
        """Refuse a mask of another length."""
        if len(mask) != self.steps:
            raise SearchError(f"the mask has {len(mask)} steps, but the runs have {self.steps}.")

    def _teach(self, run: Run, finer: Tensor | None) -> Waiting:
        """The teacher's states at every step of the run, and at the end."""
        levels = run.sigmas if finer is None else finer
        if abs(float(levels[0] - run.sigmas[0])) > 1e-3 * float(levels[0]):
            raise SearchError(
                f"a teacher of {len(levels) - 1} steps begins at the noise level {float(levels[0]):g}, the run of "
                f"{self.steps} steps at {float(run.sigmas[0]):g}, so it cannot teach it. Leave teacher_steps out, or "
                'give the scheduler timestep_spacing="trailing".'
            )
        solver = run.solver(finer)
        state, states, outputs = State(run.noise), Waiting(self.shelf), Waiting(self.shelf)
        states.add(run.noise.cpu())
        for k in range(len(levels) - 1):
            state = compute(run, state, levels)
            if self._products is not None:
                outputs.add(state.outputs[0].cpu())
            state = ended(coast(state, state.outputs[0], k + 1, levels, solver))
            states.add(state.x.cpu())
            if not self._whole and finer is None and self._products is None:
                states.only_last()
        if not torch.isfinite(states[-1]).all():
            raise SearchError(
                "the full run itself ends in numbers that are not finite. Check the model and its number format."
            )
        if finer is not None:
            states = states.at(run.sigmas, levels)
            outputs = outputs.at(run.sigmas[:-1], levels[:-1]) if len(outputs) else outputs
        if self._products is not None:
            self._products.append(gram_of(states.parked, outputs.parked))
        if not self._whole:
            states.only_last()
        return states

    @property
    def grams(self) -> Grams:
        """The full runs as inner products, if they were recorded."""
        if not self._products:
            raise SearchError("these full runs were not recorded.")
        return Grams(self.runs[0].sigmas.double().cpu().numpy(), np.concatenate(self._products))


class Waiting(Sequence[Tensor]):
    """The tensors of one run, one after the other; each comes off the shelf when it is asked for."""

    def __init__(self, shelf: Shelf | None) -> None:
        self.shelf = shelf
        self.parked: list[Tensor | Kept] = []

    def add(self, tensor: Tensor) -> None:
        """Put one behind the others."""
        self.parked.append(park(tensor, self.shelf))

    def only_last(self) -> None:
        """Let go of all but the last."""
        del self.parked[:-1]

    def at(self, sigmas: Tensor, levels: Tensor) -> Waiting:
        """The same run where it passes other levels."""
        found = Waiting(self.shelf)
        for sigma in sigmas:
            found.add(_between(self, levels, sigma))
        return found

    def __getitem__(self, place: Any) -> Any:
        found = self.parked[place]
        return [unpark(each) for each in found] if isinstance(place, slice) else unpark(found)

    def __len__(self) -> int:
        return len(self.parked)


def _between(states: Sequence[Tensor], levels: Tensor, sigma: Tensor) -> Tensor:
    """Where a run passes a level: one of its states, or between two of them on a straight line, as Euler goes."""
    behind = min(int((levels > sigma + 1e-6 * levels[0]).sum()), len(levels) - 1)
    if behind == 0 or abs(float(levels[behind] - sigma)) <= 1e-6 * float(levels[0]):
        return states[behind]
    before = behind - 1
    part = float((sigma - levels[before]) / (levels[behind] - levels[before]))
    return states[before] + part * (states[behind] - states[before])
