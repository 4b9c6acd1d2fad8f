"""The command line: the only place that prints."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from budcache import __version__
from budcache.cli import demo, generate, search, show  # noqa: F401  (each adds its command)
from budcache.cli.common import app, err, out
from budcache.errors import BudcacheError

__all__ = ["main"]


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        out.print(f"budcache {__version__}")
        raise typer.Exit


def main() -> None:
    """Run a command; a user's mistake earns a sentence and exit code 2, not a traceback."""
    try:
        app()
    except BudcacheError as error:
        err.print(f"budcache: {error}", markup=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        err.print("budcache: stopped.", markup=False)
        sys.exit(130)
