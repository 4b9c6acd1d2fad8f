"""What the outputs at hand say of a sample (F11): three numbers, read off the newest three outputs.

They tell how fast and how evenly the velocity turns, which differs from sample to sample and with the guidance scale. A
row whose weights depend on them fits samples of several settings at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from budcache.rows import Features

__all__ = ["MOST", "features_of", "sample_weights", "standardised"]

MOST = 3.0  # deviations from the middle: beyond, a feature says no more than this
SMALL = 1e-12


def features_of(outputs: Sequence[Tensor]) -> Tensor:
    """The features of each sample, shape [N, 3], each sample by itself.

    With v the outputs, newest first: `log |v0 - v1| / |v0|`, `log |v0| / |v1|`, `cos(v0 - v1, v1 - v2)`. What needs
    more outputs than there are is 0.
    """
    exact = torch.promote_types(outputs[0].dtype, torch.float32)
    # One sample after the other: a sum over a batch may be made in another order than a sum over one, and what a sample
    # becomes must not depend on its neighbours, not even in the last bit.
    return torch.stack([_of_one([v[i].flatten().to(exact) for v in outputs[:3]]) for i in range(len(outputs[0]))])


def _of_one(newest: list[Tensor]) -> Tensor:
    found = newest[0].new_zeros(3)
    if len(newest) < 2:
        return found
    sizes, turn = [_norm(v) for v in newest], newest[0] - newest[1]
    found[0] = (_norm(turn) / sizes[0]).log()
    found[1] = (sizes[0] / sizes[1]).log()
    if len(newest) > 2:
        before = newest[1] - newest[2]
        found[2] = (turn * before).sum() / (_norm(turn) * _norm(before))
    return found


def standardised(found: Tensor, features: Features) -> Tensor:
    """Features as a row's slopes take them: by deviations from the middle, clipped."""
    middle, spread = found.new_tensor(features.middle), found.new_tensor(features.spread)
    known: Tensor = (found - middle) / spread
    return known.clamp(-MOST, MOST)


def sample_weights(weights: Sequence[float], features: Features, outputs: Sequence[Tensor]) -> Tensor:
    """Each sample's own weights of a row, shape [N, terms]."""
    known = standardised(features_of(outputs), features)
    slopes = (known[:, None, :] * known.new_tensor(features.slopes)).sum(-1)
    return known.new_tensor(weights) + slopes


def _norm(v: Tensor) -> Tensor:
    size: Tensor = torch.linalg.vector_norm(v)
    return size.clamp(min=SMALL)
