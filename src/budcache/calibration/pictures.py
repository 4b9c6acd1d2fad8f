"""How near decoded pictures come to those of the full runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from budcache.calibration.calibration import Calibration
from budcache.metrics import psnr
from budcache.numerics.memory import park, unpark

__all__ = ["Pictures"]

MOST = 100.0  # decibels: a perfect picture is infinitely near, but JSON knows no infinity


class Pictures:
    """The pictures of the full runs, and how near others come to them; to decode costs no model call.

    Args:
        calibration: the samples, with their teachers. Its runs can decode.
    """

    def __init__(self, calibration: Calibration) -> None:
        self.calibration = calibration
        self._full: list[list[Tensor]] = []  # parked

    def ratios(self, finals: Sequence[Tensor]) -> tuple[float, ...]:
        """The PSNR of each sample's picture to the full run's, from the final latents of every run."""
        if not self._full:
            runs = range(len(self.calibration.runs))
            shelf = self.calibration.shelf  # of long videos they are large
            self._full = [
                [
                    park(torch.from_numpy(picture), shelf)
                    for picture in self._decoded(run, self.calibration.teacher(run))
                ]
                for run in runs
            ]
        return tuple(
            min(psnr(picture, unpark(reference).numpy()), MOST)
            for run, x in enumerate(finals)
            for picture, reference in zip(self._decoded(run, x), self._full[run], strict=True)
        )

    def _decoded(self, run: int, x: Tensor) -> list[Any]:
        pictures: list[Any] = self.calibration.runs[run].decode(x)  # type: ignore[attr-defined]
        return pictures
