"""Measuring how near two pictures are."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["psnr"]


def psnr(picture: NDArray[np.floating], reference: NDArray[np.floating]) -> float:
    """Peak signal-to-noise ratio in dB of values from 0 to 1; infinite where they are equal."""
    error = float(np.mean((np.asarray(picture, np.float64) - np.asarray(reference, np.float64)) ** 2))
    return math.inf if error == 0 else -10 * math.log10(error)
