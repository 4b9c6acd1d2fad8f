"""Where weights lie in main memory, which decides the last bits of what a model computes there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["realigned"]

BOUNDARY = 64  # bytes


def realigned(pipe: Any) -> Any:
    """The same pipeline with all weights in main memory on boundaries of 64 bytes; those that are stay where they are.

    Matrix kernels take another path elsewhere, as weights are that are mapped from a file. With all of them on
    boundaries, processes that loaded the same model in different ways compute the same to the last bit.
    """
    parts = getattr(pipe, "components", {}).values()
    with torch.no_grad():
        for module in (part for part in parts if isinstance(part, torch.nn.Module)):
            for parameter in module.parameters():  # one that is shared comes once, and is moved for all
                if _is_off(parameter):
                    parameter.data = parameter.data.clone()
            for child in module.modules():
                for name, buffer in child.named_buffers(recurse=False):
                    if _is_off(buffer):
                        setattr(child, name, buffer.clone())
    return pipe


def _is_off(weight: Tensor) -> bool:
    plain = type(weight) in (Tensor, torch.nn.Parameter)  # a quantised one knows itself where its parts lie
    return plain and weight.device.type == "cpu" and weight.data_ptr() % BOUNDARY != 0
