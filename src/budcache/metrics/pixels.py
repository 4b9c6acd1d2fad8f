"""PSNR and SSIM: how near two pictures are, pixel by pixel and window by window; of videos the worst frame, too."""

from __future__ import annotations

import math

import numpy as np

from budcache.errors import BudcacheError
from budcache.metrics.base import Frame, Metric

__all__ = ["Psnr", "Ssim", "Steadiness", "WorstFrame", "psnr"]

EQUAL = 100.0  # dB, at most: equal pictures are infinitely near, but infinity has no mean and no place in JSON
WINDOW = 11  # pixels, of SSIM's usual Gaussian


class Psnr(Metric):
    """Peak signal-to-noise ratio of values from 0 to 1; 100 dB and above all count as 100."""

    name, title, unit, digits = "psnr", "PSNR", "dB", 2

    def frame(self, picture: Frame, reference: Frame, prompt: str) -> float:
        """Measure one frame."""
        error = float(np.mean((np.asarray(picture, np.float64) - np.asarray(reference, np.float64)) ** 2))
        return EQUAL if error == 0 else min(-10 * math.log10(error), EQUAL)


def psnr(sample: Frame, reference: Frame) -> float:
    """PSNR in dB of a picture [H, W, 3]; of a video [F, H, W, 3] the mean over its frames.

    This is the one definition: comparisons and the quality noted in a policy use it.
    """
    return Psnr()(sample, reference)


class WorstFrame(Psnr):
    """PSNR of a video's worst frame: a mean over frames hides one that is broken."""

    name, title, moving = "worst-frame", "Worst frame", True

    def clip(self, frames: Frame, reference: Frame, prompt: str) -> float:
        """The least of the frames."""
        return min(self.frame(one, other, prompt) for one, other in zip(frames, reference, strict=True))


class Steadiness(Psnr):
    """PSNR of the changes from frame to frame, against the full run's changes: flicker shows, an even offset does not.

    As with frames, it is taken of each change and then averaged.
    """

    name, title, moving = "steadiness", "Steadiness", True

    def clip(self, frames: Frame, reference: Frame, prompt: str) -> float:
        """The mean over pairs of neighbouring frames."""
        mine, other = (np.diff(np.asarray(video, np.float64), axis=0) for video in (frames, reference))
        return super().clip(mine, other, prompt)


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
