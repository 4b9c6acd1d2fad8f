"""What goes wrong or is worth knowing while the model works, as sentences for people."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from budcache.errors import BudcacheError, BudcacheWarning

__all__ = ["noted", "sentence"]


@contextmanager
def noted(notes: list[str]) -> Iterator[None]:
    """What budcache warns of meanwhile, for people to read."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", BudcacheWarning)  # whoever looks at a second picture wants to know it, too
        shown = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *more: Any, **others: Any) -> None:
            if not issubclass(category, BudcacheWarning):
                shown(message, category, *more, **others)
            elif str(message) not in notes:
                notes.append(str(message))

        warnings.showwarning = show
        yield


def sentence(error: BaseException, pipe: Any = None) -> str:
    """An error as one sentence: ours as it is, those of the model with its name."""
    if isinstance(error, BudcacheError):
        return str(error)
    lines = str(error).strip().splitlines()
    what = lines[0].rstrip(".") if lines else type(error).__name__
    return f"{'the model' if pipe is None else type(pipe).__name__} failed: {what}."
