"""Methods of values that are defined elsewhere, in a module which is imported when one is first used."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["Elsewhere"]


class Elsewhere:
    """A function as a method: so a value can be read from the hub without knowing of it.

    Args:
        module, name: where the function is.
        bound: whether it takes the value first; else it is a static method.
    """

    def __init__(self, module: str, name: str, bound: bool = False) -> None:
        self.module, self.name, self.bound = module, name, bound

    def __get__(self, value: object, kind: type) -> Any:
        found = getattr(importlib.import_module(self.module), self.name)
        return found.__get__(value, kind) if self.bound and value is not None else found
