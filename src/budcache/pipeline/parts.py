"""The parts of a pipeline that a policy is about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from budcache.errors import PipelineError

__all__ = ["bare", "check_pipeline", "denoisers", "device_of", "frozen", "is_compiled", "without_bars"]


def denoisers(pipe: Any) -> dict[str, nn.Module]:
    """The networks that a pipeline calls at every step: its transformer, UNet or experts, by name."""
    found = {name: getattr(pipe, name, None) for name in ("transformer", "transformer_2", "unet")}
    return {name: module for name, module in found.items() if isinstance(module, nn.Module)}


def device_of(pipe: Any) -> torch.device:
    """Where a pipeline's networks run: of an offloaded one that is not where it says to be, the CPU."""
    return torch.device(getattr(pipe, "_execution_device", pipe.device))


def check_pipeline(pipe: Any) -> None:
    """Refuse what has no scheduler and no network to denoise with."""
    if getattr(pipe, "scheduler", None) is None or not denoisers(pipe):
        raise PipelineError(
            f"{type(pipe).__name__} is not a diffusers pipeline with a scheduler and a transformer or UNet. "
            "Pass the pipeline itself, not one of its parts."
        )


def bare(module: nn.Module) -> nn.Module:
    """The module itself, without `torch.compile`'s wrapper around it."""
    inner = getattr(module, "_orig_mod", module)
    assert isinstance(inner, nn.Module)
    return inner


def is_compiled(module: nn.Module) -> bool:
    """Whether a module was compiled, in place or with a wrapper around it."""
    return getattr(module, "_compiled_call_impl", None) is not None or hasattr(module, "_orig_mod")


@contextmanager
def frozen(pipe: Any) -> Iterator[None]:
    """Keep a pipeline's own parameters out of gradients, which would cost memory and time for nothing."""
    modules = [part for part in pipe.components.values() if isinstance(part, nn.Module)]
    learning = [parameter for module in modules for parameter in module.parameters() if parameter.requires_grad]
    for parameter in learning:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)


@contextmanager
def without_bars(pipe: Any) -> Iterator[None]:
    """A pipeline without a bar of its own for every run, for the length of a `with` block."""
    if not hasattr(pipe, "set_progress_bar_config"):
        yield
        return
    own = getattr(pipe, "_progress_bar_config", None)  # diffusers lets it be set, and not asked for
    pipe.set_progress_bar_config(**{**(own or {}), "disable": True})
    try:
        yield
    finally:
        pipe.set_progress_bar_config(**(own or {}))
