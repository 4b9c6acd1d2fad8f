"""What is remembered of runs: the prefix tree, and states that wait in main memory while others are at work."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

__all__ = ["Tree", "park", "unpark"]

T = TypeVar("T")


@dataclass
class Tree(Generic[T]):
    """What is known after computed prefixes, least recently used out: masks that agree so far share it (F4)."""

    bound: int
    known: OrderedDict[Hashable, T] = field(default_factory=OrderedDict)
    size: int = 0

    def get(self, prefix: Hashable) -> T | None:
        """What was put there, if it is still remembered."""
        value = self.known.get(prefix)
        if value is not None:
            self.known.move_to_end(prefix)
        return value

    def put(self, prefix: Hashable, value: T) -> None:
        """Remember it, and forget what was not asked for longest until all fits the bound."""
        if self.bound <= 0 or prefix in self.known:
            return
        self.known[prefix] = value
        self.size += _bytes(value)
        while self.size > self.bound and self.known:
            _, dropped = self.known.popitem(last=False)
            self.size -= _bytes(dropped)


@dataclass(frozen=True)
class _Parked:
    tensor: Tensor
    home: torch.device


def park(value: T) -> T:
    """The same with all that lies on an accelerator moved to main memory, to wait there.

    A search goes through many samples and needs the state of one at a time; the accelerator's memory is for the model.
    """

    def move(leaf: Tensor) -> Tensor | _Parked:
        return leaf if leaf.device.type == "cpu" else _Parked(leaf.cpu(), leaf.device)

    waiting: T = _each(value, move, Tensor)
    return waiting


def unpark(value: T) -> T:
    """What was parked, back where it came from."""
    back: T = _each(value, lambda leaf: leaf.tensor.to(leaf.home), _Parked)
    return back


def _each(value: Any, change: Callable[[Any], Any], leaf: type) -> Any:
    """The same value with its leaves changed, whatever they are nested in; the very same one if none is."""
    if isinstance(value, leaf):
        return change(value)
    parts = _parts(value)
    new = {key: _each(part, change, leaf) for key, part in parts.items()}
    if all(new[key] is part for key, part in parts.items()):
        return value
    if isinstance(value, dict):
        return new
    if isinstance(value, list | tuple):
        return type(value)(new.values())
    twin = copy.copy(value)
    vars(twin).update(new)
    return twin


def _bytes(value: Any) -> int:
    """The size of the tensors in a state, whatever they are nested in."""
    if isinstance(value, Tensor):
        return value.element_size() * value.nelement()
    return sum(map(_bytes, _parts(value).values()))


def _parts(value: Any) -> dict[Any, Any]:
    if isinstance(value, dict):
        return value
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    return {} if isinstance(value, type | Tensor) else getattr(value, "__dict__", {})
