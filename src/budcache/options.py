"""Options of public functions: what they may be."""

from __future__ import annotations

from operator import index
from typing import SupportsIndex

from budcache.errors import SearchError
from budcache.wording import quote

__all__ = ["whole"]


def whole(name: str, value: object, instead: str = "Give a whole number.") -> int:
    """An option as a whole number: numpy's are, too, but neither 4.0 nor True is meant as one.

    Args:
        name: of the option, for the refusal.
        value: what was given for it.
        instead: what to do, for the refusal.
    """
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        try:
            return index(value)
        except TypeError:  # an array that is not a single one
            pass
    raise SearchError(f"{name} must be whole, but {quote(value)} is not a whole number. {instead}")
