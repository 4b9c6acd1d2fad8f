"""The parts of a pipeline that a policy is about."""

from __future__ import annotations

from typing import Any

from torch import nn

__all__ = ["adapters", "bare", "denoisers"]


def denoisers(pipe: Any) -> dict[str, nn.Module]:
    """The networks that a pipeline calls at every step: its transformer, UNet or experts, by name."""
    found = {name: getattr(pipe, name, None) for name in ("transformer", "transformer_2", "unet")}
    return {name: module for name, module in found.items() if isinstance(module, nn.Module)}


def bare(module: nn.Module) -> nn.Module:
    """The module itself, without `torch.compile`'s wrapper around it."""
    inner = getattr(module, "_orig_mod", module)
    assert isinstance(inner, nn.Module)
    return inner


def adapters(pipe: Any) -> tuple[str, ...]:
    """The names of the LoRA adapters that are active in the denoisers."""
    names: set[str] = set()
    for module in map(bare, denoisers(pipe).values()):
        if getattr(module, "peft_config", None):
            names.update(module.active_adapters())  # type: ignore[operator]
    return tuple(sorted(names))
