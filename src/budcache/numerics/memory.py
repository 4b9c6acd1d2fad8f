"""States that wait in main memory while others are at work, how large they are, and running out of memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from budcache.errors import SearchError
from budcache.numerics.shelf import Kept, Shelf

__all__ = ["is_out_of_memory", "leaves", "out_of_memory_as_error", "park", "size_of", "unpark"]

T = TypeVar("T")
LEAST = 1024  # bytes: what is smaller is not worth a place on a shelf


@dataclass(frozen=True)
class _Parked:
    tensor: Tensor
    home: torch.device


def park(value: T, shelf: Shelf | None = None) -> T:
    """The same with all that lies on an accelerator moved to main memory, to wait there; with a shelf, onto that.

    A search goes through many samples and needs the state of one at a time; the accelerator's memory is for the model.
    """

    def move(leaf: Tensor) -> Tensor | _Parked | Kept:
        if shelf is not None and leaf.ndim and size_of(leaf) >= LEAST:
            return shelf.keep(leaf)
        return leaf if leaf.device.type == "cpu" else _Parked(leaf.cpu(), leaf.device)

    waiting: T = _each(value, move, Tensor)
    return waiting


def unpark(value: T) -> T:
    """What was parked, back where it came from."""
    back: T = _each(value, _back, (_Parked, Kept))
    return back


def _back(leaf: _Parked | Kept) -> Tensor:
    return leaf.back() if isinstance(leaf, Kept) else leaf.tensor.to(leaf.home)


def leaves(value: Any) -> Iterator[Tensor | Kept]:
    """All tensors in a state, whatever they are nested in."""
    if isinstance(value, Tensor | Kept):
        yield value
    else:
        for part in _parts(value).values():
            yield from leaves(part)


def _each(value: Any, change: Callable[[Any], Any], leaf: type | tuple[type, ...]) -> Any:
    """The same value with its leaves changed, whatever they are nested in; the very same one if none is."""
    if isinstance(value, leaf):
        return change(value)
    parts = _parts(value)
    new = {key: _each(part, change, leaf) for key, part in parts.items()}
    if all(new[key] is part for key, part in parts.items()):
        return value
    if type(value) is dict:
        return new
    if type(value) in (list, tuple):
        return type(value)(new.values())
    twin = copy.copy(value)
    if isinstance(value, dict):  # the named outputs of models are such
        for key, part in new.items():
            twin[key] = part
    elif isinstance(value, tuple):  # a named one
        twin = type(value)(*new.values())
    else:
        vars(twin).update(new)
    return twin


def size_of(value: Any) -> int:
    """The size of the tensors in a state, whatever they are nested in."""
    if isinstance(value, Kept):
        return value.size
    if isinstance(value, Tensor):
        return value.element_size() * value.nelement()
    return sum(map(size_of, leaves(value)))


def _parts(value: Any) -> dict[Any, Any]:
    if isinstance(value, dict):
        return value
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    return {} if isinstance(value, type | Tensor) else getattr(value, "__dict__", {})


@contextmanager
def out_of_memory_as_error() -> Iterator[None]:
    """An out-of-memory error as a sentence."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise SearchError("the model ran out of memory. Use a smaller batch or size, or offloading.") from error


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error says that there was not enough memory."""
    sure = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return sure or (isinstance(error, RuntimeError) and "memory" in str(error))  # how torch says it of a CPU
