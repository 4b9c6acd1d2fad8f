"""Fingerprints: a few characters that are the same for the same content, in every process.

A ledger tells objectives apart by them. So nothing in them may come from where something lies in memory, from the order
of a hash table or from who else holds the same object; only from what would be computed.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import pickle
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["Unnameable", "fingerprint"]

SCALARS = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented))
LIBRARIES = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
OURS = Path(__file__).parents[1]


class Unnameable(Exception):
    """Something without lasting content: an open file, a lock, a generator. The text says what."""


def fingerprint(value: Any) -> str:
    """Twelve characters for anything: data by its content, functions by their code and all that it refers to.

    What belongs to an installed library goes by its name, together with what it was made with.
    """
    return _Reader().digest(value)[:12]


class _Reader:
    """Reads a value through to its numbers and texts."""

    def __init__(self) -> None:
        # With the value itself, which must stay alive: otherwise its address could become another's.
        self._known: dict[int, tuple[Any, str]] = {}
        self._inside: list[int] = []  # of what we are: a value may hold itself

    def digest(self, value: Any) -> str:
        place = id(value)
        if place in self._known:
            return self._known[place][1]
        if place in self._inside:
            return f"the one {len(self._inside) - self._inside.index(place)} around this"
        self._inside.append(place)
        found = hashlib.sha256(repr(self._content(value)).encode()).hexdigest()
        self._inside.pop()
        self._known[place] = value, found
        return found

    def _each(self, values: Iterable[Any]) -> list[str]:
        return [self.digest(value) for value in values]

    def _content(self, value: Any) -> Any:
        """What a value consists of, as texts and lists of texts."""
        kind = type(value)
        if kind in SCALARS:
            return kind.__name__, repr(value)
        if kind in (list, tuple):
            return kind.__name__, self._each(value)
        if kind in (set, frozenset):
            return kind.__name__, sorted(self._each(value))
        if kind is dict:
            return "dict", sorted((self.digest(key), self.digest(part)) for key, part in value.items())
        if isinstance(value, Tensor):
            numbers = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
            return "tensor", str(value.dtype), tuple(value.shape), _hash(numbers.tobytes())
        if kind is np.ndarray and value.dtype != object:
            return "array", value.dtype.str, value.shape, _hash(value.tobytes())
        if isinstance(value, types.ModuleType):
            return "module", value.__name__
        if isinstance(value, type):
            return self._class(value)
        return self._code(value) or self._object(value)

    def _code(self, value: Any) -> Any:
        """What is there to be called; None for anything else."""
        if isinstance(value, types.CodeType):
            return value.co_code, value.co_names, self._each(value.co_consts)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType | types.BuiltinMethodType):
            return value.__qualname__, self.digest(value.__self__), self.digest(getattr(value, "__func__", None))
        if isinstance(value, staticmethod | classmethod):
            return type(value).__name__, self.digest(value.__func__)
        if isinstance(value, property):
            return "property", self._each((value.fget, value.fset, value.fdel))
        if isinstance(value, functools.cached_property):
            return "cached property", self.digest(value.func)
        if hasattr(value, "__wrapped__"):  # a cache around a function, and the like
            return "wrapped", self.digest(value.__wrapped__)
        return None

    def _function(self, function: types.FunctionType) -> Any:
        cells = [_inside_of(cell) for cell in function.__closure__ or ()]
        made_with = self._each((function.__defaults__, function.__kwdefaults__, cells))
        if _of_library(function):
            return "library", function.__module__, function.__qualname__, made_with
        around = function.__globals__
        names = sorted(name for name in _global_names(function.__code__) if name in around)
        return "function", self.digest(function.__code__), made_with, names, self._each(around[name] for name in names)

    def _class(self, found: type) -> Any:
        if _of_library(found):
            return "class", found.__module__, found.__qualname__
        # What Python itself notes down about a class, other than its methods, says nothing of what it does.
        own = {
            name: part
            for name, part in vars(found).items()
            if self._is_method(part) or not (name.startswith(("__", "_abc_")) or isinstance(part, _SLOT))
        }
        return "class", found.__qualname__, self._each((found.__bases__, own))

    @staticmethod
    def _is_method(part: Any) -> bool:
        return isinstance(part, types.FunctionType | staticmethod | classmethod | property)

    def _object(self, value: Any) -> Any:
        """An object as pickle sees it: what makes it, from what, and its state, as `__getstate__` tells it."""
        try:
            made = value.__reduce_ex__(4)
        except (TypeError, pickle.PicklingError, AttributeError, RuntimeError):
            raise Unnameable(f"a value of type {type(value).__name__}") from None
        if isinstance(made, str):
            return "named", type(value).__module__, made
        return "object", self._each(list(part) if isinstance(part, Iterator) else part for part in made)


_SLOT = types.MemberDescriptorType | types.GetSetDescriptorType


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _inside_of(cell: Any) -> Any:
    """What a closure holds; a name that has no value yet is as good as its absence."""
    try:
        return cell.cell_contents
    except ValueError:
        return ...


def _global_names(code: types.CodeType) -> set[str]:
    """The global names that a function looks up, and those of the functions inside it."""
    names = {str(each.argval) for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return names.union(*(_global_names(part) for part in code.co_consts if isinstance(part, types.CodeType)))


def _of_library(thing: Any) -> bool:
    """Whether something is part of Python, of an installed package or of budcache: its name says what it does."""
    module = sys.modules.get(thing.__module__)
    if module is None or module.__name__ == "__main__":
        return False
    file = getattr(module, "__file__", None)
    return file is None or any(Path(file).is_relative_to(place) for place in (*LIBRARIES, OURS))
