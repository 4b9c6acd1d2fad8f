"""Measuring pictures: how near they are to the full run's, and how good by themselves.

A metric is one class with one method. It takes pictures as arrays of shape [H, W, 3] with values from 0 to 1, or
videos of shape [F, H, W, 3], which are measured frame by frame. What needs weights loads them when first used.
"""

from __future__ import annotations

from budcache.errors import BudcacheError
from budcache.metrics.base import Metric, Summary, summary
from budcache.metrics.clip import ClipB, ClipL
from budcache.metrics.lpips import Lpips
from budcache.metrics.pixels import Psnr, Ssim, psnr
from budcache.metrics.rewards import Hpsv2, ImageReward

__all__ = ["METRICS", "Metric", "Summary", "metric", "psnr", "summary"]

METRICS: dict[str, type[Metric]] = {kind.name: kind for kind in (Psnr, Ssim, Lpips, ImageReward, ClipB, ClipL, Hpsv2)}


def metric(name: str, device: str = "cpu") -> Metric:
    """The metric of that name; one with a network of its own runs it on `device`."""
    if name not in METRICS:
        raise BudcacheError(f"there is no metric {name!r}. Choose from {', '.join(METRICS)}.")
    return METRICS[name](device)
