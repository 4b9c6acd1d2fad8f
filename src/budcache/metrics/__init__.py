"""Measuring pictures: how near they are to the full run's, and how good they are by themselves.

A metric is one class with one method. It takes pictures as arrays of shape [H, W, 3] with values from 0 to 1, or
videos of shape [F, H, W, 3]: a video's value is the mean over its frames. Two metrics are of videos alone: the PSNR of
the worst frame, and how steady a video is in time. Networks are loaded when first used.
"""

from __future__ import annotations

from budcache.errors import BudcacheError
from budcache.metrics.base import Metric, Summary, summary
from budcache.metrics.clip import ClipB, ClipL
from budcache.metrics.lpips import Lpips
from budcache.metrics.pixels import Psnr, Ssim, Steadiness, WorstFrame, psnr
from budcache.metrics.rewards import Hpsv2, ImageReward
from budcache.wording import nearest

__all__ = ["METRICS", "Metric", "Summary", "metric", "psnr", "summary", "usual"]

METRICS: dict[str, type[Metric]] = {
    kind.name: kind for kind in (Psnr, WorstFrame, Steadiness, Ssim, Lpips, ImageReward, ClipB, ClipL, Hpsv2)
}


def usual(video: bool) -> tuple[str, ...]:
    """What is measured where nothing else was asked for."""
    return tuple(name for name in ("psnr", "worst-frame", "steadiness", "ssim") if video or not METRICS[name].moving)


def metric(name: str, device: str = "cpu") -> Metric:
    """The metric of that name; a metric that is a network runs on `device`."""
    if name not in METRICS:
        raise BudcacheError(f"there is no metric {name!r}. {nearest(name, METRICS)}")
    return METRICS[name](device)
