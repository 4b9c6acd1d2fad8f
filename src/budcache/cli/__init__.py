"""The command line: the only place that prints."""

from __future__ import annotations

import sys
import warnings
from typing import Annotated

import typer

from budcache import __version__
from budcache.cli import (  # noqa: F401  (each adds its command)
    check,
    compare,
    demo,
    export,
    generate,
    hub,
    ladder,
    policy,
    recipe,
    refine,
    search,
    show,
    studio,
)
from budcache.cli.common import app, out, tell
from budcache.errors import BudcacheError, BudcacheWarning

__all__ = ["main"]


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        out.print(f"budcache {__version__}")
        raise typer.Exit


def main() -> None:
    """Run a command; a user's mistake earns a sentence and exit code 2, not a traceback."""
    warnings.showwarning = _warn
    try:
        app(prog_name="budcache")
    except BudcacheError as error:
        tell(str(error))
        sys.exit(2)


def _warn(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    """A warning without the line of code that it came from."""
    if issubclass(category, BudcacheWarning):
        tell(f"warning: {message}")
