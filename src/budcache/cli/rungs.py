"""The file at --out: new rungs go into the ladder that is there, for `search`, `fit` and `align` alike."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from budcache.cli.common import check_writable, say
from budcache.errors import BudcacheError, PolicyError
from budcache.policy import Ladder, Policy

__all__ = ["Force", "Output", "say_what_was_there"]

Force = Annotated[bool, typer.Option("--force", help="Replace a ladder of another model or settings at --out.")]


class Output:
    """A file that rungs are written into; what is refused is refused before the work.

    Args:
        path: the file.
        force: whether to replace what is there, whatever it is.
    """

    def __init__(self, path: Path, force: bool) -> None:
        check_writable(path)
        self.path = path
        self.there = None if force else _there(path)

    def check(self, ours: Ladder, job: str) -> None:
        """Refuse rungs that do not belong to the ladder that is there."""
        differs = self.there.difference(ours) if self.there is not None else None
        if differs is not None:
            raise PolicyError(
                f"{self.path} holds a ladder that this {job} does not belong to: {differs}. "
                "Choose another --out, or replace it with --force."
            )

    def write(self, found: Ladder, *, single: bool = False) -> Ladder:
        """Save what was found, with the rungs that were there; a policy alone is written as one if that is wanted."""
        written = found if self.there is None else self.there.merged(found)
        file: Ladder | Policy = written.rungs[0] if single and len(written) == 1 else written
        file.save(self.path)
        return written


def _there(path: Path) -> Ladder | None:
    """The ladder that is at --out already, if one is."""
    try:
        return Ladder.load(path) if path.exists() else None
    except BudcacheError as error:
        raise PolicyError(f"{error} Choose another --out, or replace it with --force.") from None


def say_what_was_there(found: Ladder, written: Ladder) -> None:
    """Tell of the rungs that a file has beside the new ones."""
    if written.budgets != found.budgets:
        say(f"with the rungs that were there it has {written.budgets_text} calls")
