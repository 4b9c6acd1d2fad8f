"""Options of public functions: which there are, and what they may be."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from operator import index
from typing import ParamSpec, SupportsIndex, TypeVar

from budcache.errors import BudcacheError, PipelineError, SearchError
from budcache.wording import nearest, quote

__all__ = ["known_options", "known_options_of_serving", "whole"]

P = ParamSpec("P")
R = TypeVar("R")


def known_options(function: Callable[P, R]) -> Callable[P, R]:
    """Refuse an option that a job does not have, with the name that was probably meant."""
    return _checked(function, SearchError)


def known_options_of_serving(function: Callable[P, R]) -> Callable[P, R]:
    """The same for what is done to a pipeline."""
    return _checked(function, PipelineError)


def _checked(function: Callable[P, R], kind: type[BudcacheError]) -> Callable[P, R]:
    known = [name for name in function.__annotations__ if name != "return"]

    @wraps(function)
    def checked(*args: P.args, **options: P.kwargs) -> R:
        for name in options:
            if name not in known:
                call = f" Arguments of the pipeline itself go into call={{{name!r}: ...}}." * ("call" in known)
                raise kind(f"{function.__name__} has no option {name!r}. {nearest(name, known)}{call}")
        return function(*args, **options)

    return checked


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
