"""Noise levels as data: K + 1 falling numbers from the first step's to the one after the last."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["dynamic_shift", "flux", "flux_mu", "monotone", "plain", "static_shift", "with_end"]


def plain(steps: int) -> Tensor:
    """Evenly spaced levels 1, 1 - 1/K, ..., 1/K, 0, shape [K + 1]."""
    return with_end(torch.linspace(1.0, 1.0 / steps, steps))


def with_end(levels: Tensor, end: float = 0.0) -> Tensor:
    """Append the level after the last step: shape [K] becomes [K + 1]."""
    return torch.cat([levels, levels.new_tensor([end])])


def static_shift(sigmas: Tensor, shift: float) -> Tensor:
    """Move levels towards noise by a fixed factor (SD3, Wan, HunyuanVideo); 0 and 1 stay."""
    # Written so that 0 and 1 stay to the last bit: a level above 1 has no logarithm of its signal.
    noise = shift * sigmas
    return noise / (noise + (1 - sigmas))


def dynamic_shift(sigmas: Tensor, mu: float) -> Tensor:
    """Move levels towards noise by e^mu, mu depending on the image's size (FLUX, Qwen-Image); 0 and 1 stay."""
    return static_shift(sigmas, math.exp(mu))


def flux_mu(
    tokens: int, *, base_tokens: int = 256, max_tokens: int = 4096, base_shift: float = 0.5, max_shift: float = 1.15
) -> float:
    """FLUX's mu for an image of `tokens` packed latent tokens: linear between two known sizes."""
    slope = (max_shift - base_shift) / (max_tokens - base_tokens)
    return base_shift + slope * (tokens - base_tokens)


def flux(steps: int, tokens: int) -> Tensor:
    """FLUX.1-dev's schedule for an image of `tokens` packed latent tokens, shape [K + 1]."""
    return dynamic_shift(plain(steps), flux_mu(tokens))


def monotone(reference: Tensor, logits: Tensor) -> Tensor:
    """Levels whose gaps are the reference's, each times the exponential of its logit and all scaled to the same sum.

    They fall whatever the logits are, their ends stay, and at logits of zero they are the reference to the last bit.
    For that no gap grows or shrinks by more than e^5.

    Args:
        reference: falling levels, shape [K + 1].
        logits: one a gap, shape [K].
    """

    def inner(logits: Tensor) -> Tensor:
        shares = torch.softmax((reference[:-1] - reference[1:]).log() + 5 * torch.tanh(logits / 5), 0)
        below = shares.flip(0).cumsum(0).flip(0)  # sums of the gaps still to come
        return (reference[0] - reference[-1]) * below[1:] / below[0]

    # The difference to itself at zero is exactly zero there, where rounding would leave the levels a bit beside.
    moved = reference[1:-1] + (inner(logits) - inner(torch.zeros_like(logits)).detach())
    # The ends are no function of the logits: solvers that take the logarithm of zero there have no gradient for them.
    return torch.cat([reference[:1], moved, reference[-1:]])
