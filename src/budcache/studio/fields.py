"""What people type into fields, as values. What cannot be meant is refused, each at its own field."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from budcache.errors import BudcacheError, SearchError
from budcache.options import check_budgets, parse_budgets
from budcache.samples.prompts import SETS, prompts, read_prompts
from budcache.wording import quote

__all__ = ["OWN", "TEXT", "UPLOAD", "Refusals", "budgets_of", "lines", "minutes_of", "prompt_sources", "prompts_of"]

T = TypeVar("T")
TEXT, UPLOAD, OWN = "the text below", "a file", "the model's own"


class Refusals(dict[str, str]):
    """Why fields were refused, by the field's name."""

    def take(self, field: str, read: Callable[[], T]) -> T | None:
        """What a field holds; None where it is refused."""
        try:
            return read()
        except BudcacheError as error:
            self.setdefault(field, str(error))
            return None


def lines(text: str | None) -> list[str]:
    """One prompt a line; empty lines count for nothing."""
    return [line.strip() for line in (text or "").splitlines() if line.strip()]


def prompt_sources(embedded: bool) -> list[str]:
    """Where prompts can come from."""
    return [TEXT, UPLOAD, *([OWN] if embedded else []), *SETS]


def prompts_of(model: str, source: str, text: str | None, file: str | None, count: Any, split: str) -> list[str]:
    """The prompts that are meant, `count` at most: text, an uploaded file, a packaged set, or the model's own."""
    from budcache import models

    if source == UPLOAD:
        found = _uploaded(file)
    elif source == OWN:
        found = models.prompts(model, split)
    elif source in SETS:
        found = prompts(source)
    else:
        found = lines(text)
    if not found:
        raise SearchError("there are no prompts. Write one a line, or choose a file or a set.")
    wanted = whole(count, "how many prompts", least=0) if count not in (None, "") else 0
    return found[:wanted] if wanted else found


def _uploaded(file: str | None) -> list[str]:
    if not file:
        raise SearchError("no file was chosen. Choose one: text, JSONL with prompt, or CSV with caption.")
    path = Path(file)
    try:
        return read_prompts(path)
    except BudcacheError as error:  # where the upload lies on the server says nothing to anybody
        raise SearchError(str(error).replace(str(path), path.name)) from None


def budgets_of(text: str | None, steps: int) -> list[int]:
    """`8`, `5,6,8` or `4-12`."""
    found = parse_budgets(text or "")
    check_budgets(tuple(found), steps)
    return found


def minutes_of(value: Any) -> float | None:
    """Minutes to spend; 0 or nothing is no limit."""
    if value in (None, "", 0):
        return None
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        raise SearchError(f"{quote(value)} minutes cannot be spent. Give a positive number, or 0 for no limit.")
    return float(value)


def whole(value: Any, what: str, least: int = 0, most: int = 2**62) -> int:
    """A whole number from a field."""
    if value in (None, ""):
        raise SearchError(f"{what} is missing. Give a whole number.")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value % 1:
        raise SearchError(f"{what} is {quote(value)}. Give a whole number.")
    if not least <= value <= most:
        raise SearchError(f"{what} is {int(value)}. Give {f'{least} or more' if value < least else f'{most} or less'}.")
    return int(value)
