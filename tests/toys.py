"""Small curved flows to calibrate, to fit and to align on, in double precision."""

from __future__ import annotations

from collections.abc import Callable

import torch
from levels import plain, static_shift
from torch import Tensor

from budcache import OutputReuse
from budcache.calibration.calibration import Calibration
from budcache.numerics.solvers import Solver, dpmpp2m, euler, ipndm2

STEPS = 12
SOLVERS = {"euler": euler, "ipndm2": ipndm2, "dpmpp2m": dpmpp2m}
TURN = torch.randn(6, 6, generator=torch.Generator().manual_seed(7), dtype=torch.float64) * 0.6


def velocity(x: Tensor, sigma: Tensor) -> Tensor:
    """A field that bends in x and sigma, so that reusing it is never right by accident."""
    return torch.tanh(x @ TURN * (1 + 2 * sigma)) - x * sigma


class Toy(OutputReuse):
    """A model with its run, one sample or several."""

    def __init__(
        self,
        seed: int,
        samples: int = 1,
        solver: Solver = euler,
        steps: int = STEPS,
        field: Callable[[Tensor, Tensor], Tensor] = velocity,
    ) -> None:
        super().__init__(field)
        generator = torch.Generator().manual_seed(seed)
        self.noise = torch.randn(samples, 6, generator=generator, dtype=torch.float64)
        self.sigmas = static_shift(plain(steps), 2.0).double()
        self._solver = solver

    def solver(self, sigmas: Tensor | None = None) -> Solver:
        return self._solver


class Residual(Toy):
    """Reuses a part of itself, so that every level counts; `live` lets gradients through what is reused."""

    live = False

    def compute(self, x: Tensor, sigma: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        self.calls += 1
        trunk = torch.tanh(x @ TURN * (1 + 2 * sigma))
        return trunk - x * sigma, {"trunk": trunk if self.live else trunk.detach()}

    def reuse(self, x: Tensor, sigma: Tensor, memo: dict[str, Tensor]) -> Tensor:
        return memo["trunk"] - x * sigma


class Live(Residual):
    live = True


def calibration(seeds: range, solver: Solver = euler, **options: object) -> Calibration:
    return Calibration([Toy(seed, solver=solver) for seed in seeds], **options)
