"""Values and counts as they stand in sentences."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Sequence

__all__ = ["listed", "nearest", "quote", "several"]

MOST = 100_000  # letters and values that are written out before they are cut
_SHORT = reprlib.Repr()  # what is nested is not written out: of a few aliases that would be a book
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxlong, _SHORT.maxother = 3, 200, 200, 200
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = _SHORT.maxset = _SHORT.maxfrozenset = 20


def quote(value: object) -> str:
    """A value as it may stand in an error sentence: quoted, on one line, and cut where it is long."""
    try:
        text = " ".join((repr if _is_small(value) else _SHORT.repr)(value).split())  # arrays print several lines
    except (RecursionError, ValueError, TypeError):  # nested too deep, or an integer of too many digits
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 40 else text[:37] + "..."


def _is_small(value: object) -> bool:
    """Whether to write it out takes no time: a file may hold millions of values, or lists that hold each other."""
    ahead, room = [value], MOST
    while ahead and room > 0:
        found = ahead.pop()
        if isinstance(found, dict):
            found = [*found, *found.values()] if len(found) <= room else ""
            room -= 0 if found else MOST
        if isinstance(found, list | tuple | str | bytes):
            room -= len(found) + 1
            ahead += found if isinstance(found, list | tuple) and room > 0 else ()
        room -= 1
    return room > 0


def several(count: int | None, what: str) -> str:
    """A number of things: `1 call`, `3 calls`."""
    return f"{count or 'unknown'} {what}{'' if count == 1 else 's'}"


def listed(names: Sequence[str]) -> str:
    """Names in a sentence: one, two and three."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def nearest(name: str, known: Iterable[str]) -> str:
    """What to say after an unknown name: the known one that is spelled most alike, or all of them."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"Did you mean {close[0]}?" if close else f"Choose one of {', '.join(known)}."
