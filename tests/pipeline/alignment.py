"""Where weights lie in memory, which decides the last bits of what a model computes.

Matrix kernels take another path where a weight's address is not a multiple of 64 bytes, as it is where weights are
mapped from a file. So outputs are bit for bit the same only with weights in the same memory, or with weights that were
`aligned` on both sides. `BUDCACHE_TEST_MISALIGNED=1` shifts the weights of every pipeline that is built or loaded, by
other amounts, while copies are aligned as always: that brings to light what depends on it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

MISALIGNED = bool(os.environ.get("BUDCACHE_TEST_MISALIGNED"))
BUILT, LOADED = 4, 8  # bytes behind an aligned address


def aligned(pipe: Any) -> Any:
    """The same pipeline with its weights in fresh memory, which torch aligns to 64 bytes."""
    return _moved(pipe, torch.clone)


def placed(pipe: Any, offset: int) -> Any:
    """A pipeline just built or loaded: as it is, or with its weights shifted if that is asked for."""
    return _moved(pipe, lambda weight: _shifted(weight, offset)) if MISALIGNED else pipe


def _moved(pipe: Any, move: Callable[[Tensor], Tensor]) -> Any:
    """A pipeline, or a single module, with all its weights moved."""
    parts = pipe.components.values() if hasattr(pipe, "components") else [pipe]
    with torch.no_grad():
        for module in (part for part in parts if isinstance(part, torch.nn.Module)):
            for parameter in module.parameters():  # one that is shared comes once, and is moved for all
                parameter.data = move(parameter.data)
            for child in module.modules():
                for name, buffer in child.named_buffers(recurse=False):
                    setattr(child, name, move(buffer))
    return pipe


def _shifted(weight: Tensor, offset: int) -> Tensor:
    size = weight.element_size()
    if offset % size or not weight.is_contiguous():
        return weight
    start = offset // size
    return torch.empty(start + weight.numel(), dtype=weight.dtype)[start:].view(weight.shape).copy_(weight)
