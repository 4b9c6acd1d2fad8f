"""Noise levels for tests that have no pipeline to ask."""

from __future__ import annotations

import torch
from torch import Tensor


def plain(steps: int) -> Tensor:
    """Evenly spaced levels 1, 1 - 1/K, ..., 1/K, 0, shape [K + 1]."""
    return torch.cat([torch.linspace(1.0, 1.0 / steps, steps), torch.zeros(1)])


def static_shift(sigmas: Tensor, shift: float) -> Tensor:
    """Levels moved towards noise; 0 and 1 stay to the last bit, for a level above 1 has no logarithm of its signal."""
    noise = shift * sigmas
    return noise / (noise + (1 - sigmas))
