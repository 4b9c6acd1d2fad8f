"""Solvers: one step from a noise level to the next, as pure functions with an explicit past.

All take `(x, v, here, there, past)`: the sample, the model's velocity at it, the noise levels before and
after the step, and what the solver itself returned as its past one step earlier (None at the first).
They return the next sample and the new past. The flow is `x = (1 - sigma) data + sigma noise`,
`v = noise - data`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

__all__ = ["Solver", "dpmpp2m", "euler", "first_order", "ipndm2"]

Solver: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor, Any], tuple[Tensor, Any]]


def euler(x: Tensor, v: Tensor, here: Tensor, there: Tensor, past: None = None) -> tuple[Tensor, None]:
    """Equation 1: follow the velocity in a straight line."""
    return x + (there - here) * v, None


def ipndm2(x: Tensor, v: Tensor, here: Tensor, there: Tensor, past: Tensor | None) -> tuple[Tensor, Tensor]:
    """iPNDM(2M): Adams-Bashforth of order two, with the coefficients of equal steps as published."""
    slope = v if past is None else 1.5 * v - 0.5 * past
    return x + (there - here) * slope, v


def dpmpp2m(
    x: Tensor, v: Tensor, here: Tensor, there: Tensor, past: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """DPM-Solver++(2M): exponential integrator on the predicted data, extrapolated from two predictions."""
    data = x - here * v
    guess = data
    # At level 1 the log signal-to-noise ratio is minus infinity and at 0 plus infinity. The ratio of two
    # steps is then 0 or infinite; the step to 0 goes straight to the data, as in every implementation.
    # The branch also keeps infinity out of the gradient of the levels, where it would turn into NaN.
    if past is not None and there > 0 and past[1] < 1:
        before, before_level = past
        ratio = (_log_snr(there) - _log_snr(here)) / (_log_snr(here) - _log_snr(before_level))
        guess = data + 0.5 * ratio * (data - before)
    scale = there / here
    return scale * x + ((1 - there) - scale * (1 - here)) * guess, (data, here)


def first_order(solver: Solver, levels: Tensor, device: torch.device | None = None) -> list[tuple[Any, Any]]:
    """A solver's steps as if it had no past: for each step k the numbers a and b of `x_(k+1) = a x_k + b v`.

    They are read off the solver itself, by a step from (1, 0) with the velocity (0, 1); tensors where the levels have a
    gradient, or else floats. The step is made on the device that the solver is at home on.
    """
    numbers = torch.float64 if device is None or device.type == "cpu" else torch.float32  # not all have the former
    x, v = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]], dtype=numbers, device=device)
    ends = [solver(x, v, levels[k], levels[k + 1], None)[0][0] for k in range(len(levels) - 1)]
    return [(end[0], end[1]) if levels.requires_grad else tuple(end.tolist()) for end in ends]


def _log_snr(sigma: Tensor) -> Tensor:
    return torch.log((1 - sigma) / sigma)
