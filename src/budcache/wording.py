"""Values and counts as they stand in sentences."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["nearest", "quote", "several"]


def quote(value: object) -> str:
    """A value as it may stand in an error sentence: quoted, on one line, and cut where it is long."""
    try:
        text = " ".join(repr(value).split())  # arrays print themselves over several lines
    except (RecursionError, ValueError):  # nested too deep, or an integer of too many digits
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 40 else text[:37] + "..."


def several(count: int | None, what: str) -> str:
    """A number of things: `1 call`, `3 calls`."""
    return f"{count or 'unknown'} {what}{'' if count == 1 else 's'}"


def nearest(name: str, known: Iterable[str]) -> str:
    """What to say after an unknown name: the known one that is spelled most alike, or all of them."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"Did you mean {close[0]}?" if close else f"Choose one of {', '.join(known)}."
