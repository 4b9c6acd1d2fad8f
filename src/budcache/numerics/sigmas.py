"""Noise levels that can be learned: K + 1 falling numbers from the first step's to the one after the last."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["monotone"]


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
