"""PSNR and SSIM: how near two pictures are, pixel by pixel and neighbourhood by neighbourhood."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from budcache.errors import BudcacheError
from budcache.metrics.base import Frame, Metric

__all__ = ["Psnr", "Ssim", "psnr"]

EQUAL = 100.0  # dB, for pictures without any difference: infinity has no mean and no place in JSON
WINDOW = 11  # pixels, of SSIM's usual Gaussian


def psnr(picture: NDArray[np.floating[Any]], reference: NDArray[np.floating[Any]]) -> float:
    """Peak signal-to-noise ratio in dB of values from 0 to 1; infinite where they are equal."""
    error = float(np.mean((np.asarray(picture, np.float64) - np.asarray(reference, np.float64)) ** 2))
    return math.inf if error == 0 else -10 * math.log10(error)


class Psnr(Metric):
    """Peak signal-to-noise ratio; 100 dB and above all count as 100."""

    name, title, unit, digits = "psnr", "PSNR", "dB", 2

    def frame(self, picture: Frame, reference: Frame, prompt: str) -> float:
        """Measure one frame."""
        return min(psnr(picture, reference), EQUAL)


class Ssim(Metric):
    """Structural similarity (Wang et al. 2004), with the usual Gaussian window of 11 pixels."""

    name, title, digits = "ssim", "SSIM", 4

    def frame(self, picture: Frame, reference: Frame, prompt: str) -> float:
        """Measure one frame."""
        import torch
        from torchmetrics.functional.image import structural_similarity_index_measure as similarity

        if min(picture.shape[:2]) < WINDOW:
            raise BudcacheError(
                f"SSIM looks through a window of {WINDOW} pixels. Draw larger pictures, or leave it out."
            )
        first, second = (
            torch.from_numpy(np.ascontiguousarray(frame, np.float32)).permute(2, 0, 1)[None]
            for frame in (picture, reference)
        )
        value = similarity(first, second, data_range=1.0)
        assert isinstance(value, torch.Tensor)  # it would be a pair if the whole map had been asked for
        return float(value)
