"""What a search keeps small: the loss of final latents against the teacher's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from budcache.calibration.fingerprint import Unnameable, fingerprint
from budcache.errors import SearchError
from budcache.numerics.memory import park, unpark
from budcache.numerics.model import Model
from budcache.numerics.shelf import Shelf
from budcache.numerics.solvers import Solver

__all__ = ["Objective", "ObjectiveLike", "PixelError", "Run", "latent_mse", "name_of", "objective", "squared_errors"]


class Run(Model, Protocol):
    """A model together with the run that is to be imitated: a `PipelineModel`, or anything like it."""

    noise: Tensor  # where the run begins, shape [N, ...]
    sigmas: Tensor  # its noise levels, shape [K + 1]
    calls: int  # how often the model was evaluated, for all N samples at once

    def solver(self, sigmas: Tensor | None = None) -> Solver:
        """The solver of the run, as a pure function."""


Objective: TypeAlias = Callable[[Tensor, Tensor, Any], "float | Tensor"]  # one loss for the run, or one per sample
ObjectiveLike: TypeAlias = "Literal['latent', 'pixel'] | Objective"


def squared_errors(student: Tensor, teacher: Tensor) -> Tensor:
    """Each sample's mean squared error, shape [N]."""
    return (student.cpu().double() - teacher.cpu().double()).flatten(1).square().mean(1)


def latent_mse(student: Tensor, teacher: Tensor, run: Run) -> Tensor:
    """Mean squared error of the final latents, the paper's objective, sample by sample."""
    return squared_errors(student, teacher)


class PixelError:
    """Mean squared error of decoded pictures of values from -1 to 1, as in the authors' search on Wan.

    Args:
        shelf: where the teacher's pictures wait; None is main memory.
    """

    def __init__(self, shelf: Shelf | None = None) -> None:
        self._teachers: dict[int, list[Tensor]] = {}  # parked
        self._shelf = shelf

    def __call__(self, student: Tensor, teacher: Tensor, run: Any) -> Tensor:
        """The error of each sample; the teacher's pictures are decoded once per run."""
        if id(run) not in self._teachers:
            self._teachers[id(run)] = [park(torch.from_numpy(each), self._shelf) for each in run.decode(teacher)]
        pairs = zip(run.decode(student), self._teachers[id(run)], strict=True)
        return torch.tensor([4 * float(((a - unpark(b).numpy()) ** 2).mean()) for a, b in pairs], dtype=torch.float64)


def objective(given: ObjectiveLike, shelf: Shelf | None = None) -> Objective:
    """The objective of that name, or the function itself."""
    if callable(given):
        return given
    if given not in ("latent", "pixel"):
        raise SearchError(f"there is no objective {given!r}. Use 'latent', 'pixel' or a function.")
    return latent_mse if given == "latent" else PixelError(shelf)


def name_of(given: ObjectiveLike) -> str:
    """A name under which a ledger keeps an objective's scores: the same for the same computation, in every process.

    Functions are told apart by their code and all that it refers to, objects by their class and state.
    """
    if isinstance(given, str):
        return given
    name = getattr(given, "__name__", None) or type(given).__name__
    try:
        return f"{name} {fingerprint(given)}"
    except Unnameable as error:
        raise SearchError(
            f"the objective {name} holds {error}, which has no lasting name, so a ledger cannot tell its scores from "
            "those of another objective. Make it of plain numbers and functions, or search without a ledger."
        ) from None
