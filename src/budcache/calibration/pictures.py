"""How near decoded pictures come to those of the full runs."""

from __future__ import annotations

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
        self._full: dict[int, list[Tensor]] = {}  # parked

    def ratios(self, number: int, x: Tensor) -> tuple[float, ...]:
        """The PSNR of each sample's picture to the full run's, from the final latents of one run."""
        if number not in self._full:
            shelf = self.calibration.shelf  # of long videos they are large
            teachers = self._decoded(number, self.calibration.teacher(number))
            self._full[number] = [park(torch.from_numpy(picture), shelf) for picture in teachers]
        pairs = zip(self._decoded(number, x), self._full[number], strict=True)
        return tuple(min(psnr(picture, unpark(reference).numpy()), MOST) for picture, reference in pairs)

    def _decoded(self, number: int, x: Tensor) -> list[Any]:
        pictures: list[Any] = self.calibration.runs[number].decode(x)  # type: ignore[attr-defined]
        return pictures
