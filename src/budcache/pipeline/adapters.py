"""LoRA adapters of a pipeline's denoisers: which are at work, how strongly, and what is in them.

A policy's quality belongs to the weights that the model really runs with. So an adapter is known by what is in it and
by its scale, not by its name alone: diffusers calls every nameless one `default_0`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from budcache.pipeline.parts import bare, denoisers

__all__ = ["adapters", "are_fused", "at_work"]

PROBED_VALUES = 8


def adapters(pipe: Any) -> tuple[str, ...]:
    """The adapters at work, as a policy's origin keeps them: `turbo (3fa2c1b0)`, `turbo (3fa2c1b0) at 0.5`."""
    found: dict[str, _Adapter] = {}
    for place, layer in _layers(pipe):
        for name in _active(layer):
            found.setdefault(name, _Adapter()).add(place, layer, name)
    return tuple(f"{name} ({found[name].contents}){found[name].strength}" for name in sorted(found))


def at_work(pipe: Any) -> tuple[Any, ...]:
    """What tells cheaply, without looking at a weight, that adapters have come, gone or changed since last time."""
    layers = [
        (place, name, layer.scaling.get(name), tuple(map(id, _weights(layer, name).values())))
        for place, layer in _layers(pipe)
        for name in _active(layer)
    ]
    # What was fused stays in the weights, even after its adapter was unloaded; diffusers remembers the names.
    return (*layers, *sorted(getattr(pipe, "fused_loras", ())))


def are_fused(pipe: Any) -> bool:
    """Whether an adapter that is still there was added into the weights, which are then not the model's own."""
    return any(layer.merged_adapters for _, layer in _layers(pipe))


class _Adapter:
    """What one adapter does, gathered layer by layer."""

    def __init__(self) -> None:
        self._hash, self._scales = hashlib.sha256(), dict[str, float]()

    def add(self, place: str, layer: Any, name: str) -> None:
        for kind, weight in _weights(layer, name).items():
            self._hash.update(f"{place}.{kind}".encode())
            if not weight.is_meta:  # one that was offloaded to disk is known by its name alone
                values = weight.detach().flatten()[:PROBED_VALUES].to("cpu", torch.bfloat16)
                self._hash.update(bytes(values.view(torch.uint8).tolist()))
        self._scales[place] = round(_scale(layer, name), 6)

    @property
    def contents(self) -> str:
        if self._is_even:
            return self._hash.hexdigest()[:8]
        return hashlib.sha256(f"{self._hash.hexdigest()} {self._scales}".encode()).hexdigest()[:8]

    @property
    def strength(self) -> str:
        first = next(iter(self._scales.values()))
        if not self._is_even:
            return f" at {min(self._scales.values()):g} to {max(self._scales.values()):g}"
        return "" if first == 1 else f" at {first:g}"

    @property
    def _is_even(self) -> bool:
        return len(set(self._scales.values())) == 1


def _layers(pipe: Any) -> Iterator[tuple[str, Any]]:
    """The layers that an adapter has been put into, by their places."""
    for part, module in denoisers(pipe).items():
        if getattr(bare(module), "peft_config", None):
            for place, layer in bare(module).named_modules():
                if hasattr(layer, "adapter_layer_names") and hasattr(layer, "scaling"):
                    yield f"{part}.{place}", layer


def _active(layer: Any) -> list[str]:
    """The adapters that change what a layer gives; a fused one does so even while others are active."""
    if layer.disable_adapters:
        return []
    names = layer.merged_adapters or layer.active_adapters
    return [name for name in names if name in layer.scaling and layer.scaling[name] != 0]


def _weights(layer: Any, name: str) -> dict[str, nn.Parameter]:
    """The weights of an adapter in a layer, by their kinds: lora_A, lora_B."""
    kinds = {kind: getattr(layer, kind, {}) for kind in layer.adapter_layer_names}
    parts = {kind: parts[name] for kind, parts in kinds.items() if name in parts}
    return {kind: getattr(part, "weight", part) for kind, part in parts.items()}


def _scale(layer: Any, name: str) -> float:
    """How strongly an adapter was asked to work: its factor over the one that it was trained with."""
    rank = layer.r[name]
    trained = layer.lora_alpha[name] / (math.sqrt(rank) if layer.use_rslora.get(name) else rank)
    return float(layer.scaling[name] / trained) if trained else 0.0
