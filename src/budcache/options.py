"""Options of public functions: which there are, and what they may be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import wraps
from operator import index
from typing import ParamSpec, SupportsIndex, TypeVar, get_args

from budcache.aggregate import Care
from budcache.errors import BudcacheError, PipelineError, SearchError
from budcache.mask import MAX_STEPS
from budcache.wording import nearest, quote

__all__ = [
    *("bytes_of", "check_budgets", "check_care", "known_options", "known_options_of_serving"),
    *("one_or_several", "parse_budgets", "several_names", "whole"),
]

P = ParamSpec("P")
R = TypeVar("R")


def known_options(function: Callable[P, R]) -> Callable[P, R]:
    """Refuse an option that a job does not have, with the name that was probably meant."""
    return _checked(function, SearchError, " Arguments of the pipeline itself go into call={{{!r}: ...}}.")


def known_options_of_serving(function: Callable[P, R]) -> Callable[P, R]:
    """The same for what is done to a pipeline."""
    return _checked(function, PipelineError)


def _checked(function: Callable[P, R], kind: type[BudcacheError], more: str = "") -> Callable[P, R]:
    known = [name for name in function.__annotations__ if name != "return"]

    @wraps(function)
    def checked(*args: P.args, **options: P.kwargs) -> R:
        for name in options:
            if name not in known:
                call = more.format(name) if "call" in known else ""
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


def check_care(care: Care) -> Care:
    """A care that there is."""
    if care not in get_args(Care):
        raise SearchError(f"there is no care {quote(care)}. Use 'typical' or 'worst'.")
    return care


def one_or_several(budgets: int | Iterable[int]) -> tuple[int, ...]:
    """Budgets, rising, each once."""
    several: tuple[object, ...] = (budgets,)
    if not isinstance(budgets, str):  # which would be taken character by character
        with suppress(TypeError):  # it is one
            several = tuple(budgets)  # type: ignore[arg-type]
    instead = "Give one, such as 8, or several, such as range(4, 13)."
    return tuple(sorted({whole("budgets", each, instead) for each in several}))


def check_budgets(budgets: tuple[int, ...], steps: int) -> None:
    """Refuse budgets that no mask of so many steps can have."""
    if not budgets:
        raise SearchError("there is no budget to search for. Give budgets=, in model calls per sample.")
    if not 1 <= whole("steps", steps) <= MAX_STEPS:
        raise SearchError(f"a run of {steps} steps is not possible. Use 1 to {MAX_STEPS} steps.")
    for budget in budgets:
        if not 1 <= whole("budgets", budget) <= steps:
            raise SearchError(f"a budget of {budget} does not fit {steps} steps. Choose budgets from 1 to {steps}.")


def parse_budgets(text: str) -> list[int]:
    """`8`, `5,6,8` or `4-12`, or a mixture."""
    budgets: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        ends = [end for end in (low, high if dash else low) if end.isdecimal() and len(end) < 10]
        if len(ends) < 2 or int(ends[1]) < int(ends[0]):
            raise SearchError(f"budgets {quote(text)} cannot be read. Write them as 8, as 5,6,8 or as 4-12.")
        # One beyond what is possible is enough to be refused.
        budgets.update(range(int(ends[0]), min(int(ends[1]), max(int(ends[0]), MAX_STEPS + 1)) + 1))
    return sorted(budgets)


def bytes_of(value: int | str) -> int:
    """A number of bytes, or text such as `500M` or `2GB`."""
    if not isinstance(value, str):
        return whole("state_memory", value)
    number, unit = value.strip().upper().removesuffix("B"), 1
    if number and number[-1] in "KMG":
        unit = {"K": 10**3, "M": 10**6, "G": 10**9}[number[-1]]
        number = number[:-1]
    try:
        found = int(float(number) * unit)
    except (ValueError, OverflowError):
        found = -1
    if found < 0:
        raise SearchError(f"a memory of {quote(value)} cannot be read. Write it as 500M or 2G.")
    return found


def several_names(names: Sequence[str]) -> tuple[str, ...]:
    """Names as they are given; a single one may come by itself."""
    return (names,) if isinstance(names, str) else tuple(names)
