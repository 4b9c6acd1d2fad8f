"""The command line: the only place that prints."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from typing import Annotated

import typer

from budcache import __version__
from budcache.cli.common import app, application, out, tell
from budcache.errors import BudcacheError, BudcacheWarning

__all__ = ["COMMANDS", "main"]

# Every command, in the order in which the help lists them: the module that has it, and its first sentence. Only the
# module of the command that is called is imported, so that help, and mistakes, are answered at once.
COMMANDS = {
    "demo": ("demo", "Search, draw and compare on an embedded model, without a GPU, a network or an account."),
    "recipe": (
        "recipe",
        "Print a search with sensible settings for a model, about what it will take, and what to do with the result.",
    ),
    "search": (
        "search",
        "Find the policies of one or several budgets from a few prompts; killed, the same command goes on.",
    ),
    "fit": (
        "fit",
        "Fit the reuse of masks in closed form: blends of past outputs instead of repeats of the last one.",
    ),
    "align": (
        "align",
        "Move all numbers of policies together, without gradients or by Algorithm 3; killed, the same command goes on.",
    ),
    "ladder": ("ladder", "Make policies from recorded full runs, without a model and without a single call."),
    "policy": ("policy", "Make a policy by hand, or from the authors' checkpoints and cache-dit's masks."),
    "show": ("show", "Show what a policy, a ladder, a record or the history of a search holds."),
    "generate": ("generate", "Draw pictures or videos, under a policy or in full."),
    "check": (
        "check",
        "Try on this machine what a policy promises: exact calls, the plan, removal, quality and speed.",
    ),
    "compare": (
        "compare",
        "Compare methods at the same number of model calls: a table, pictures and a page; killed, it goes on.",
    ),
    "studio": (
        "studio",
        "Look, find, compare and take away in a browser; on this machine only, and without a network.",
    ),
    "export": ("export", "Write a policy for another runtime, so that it runs there without budcache."),
    "push": (
        "hub",
        "Publish a ladder on the hub, with a card. Log in first with `hf auth login`, or set HF_TOKEN.",
    ),
    "find": ("hub", "List what the hub has for a model, the nearest settings first."),
}


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        out.print(f"budcache {__version__}")
        raise typer.Exit


def main() -> None:
    """Run a command; a user's mistake earns a sentence and exit code 2, not a traceback."""
    warnings.showwarning = _warn
    asked = next((word for word in sys.argv[1:] if word != "--"), "")
    try:
        if asked in COMMANDS:
            import_module(f"budcache.cli.{COMMANDS[asked][0]}")  # which adds it to the application
            app(prog_name="budcache")
        _overview()(prog_name="budcache")
    except BudcacheError as error:
        tell(str(error))
        sys.exit(2)


def _overview() -> typer.Typer:
    """The application with all commands and nothing behind them: for what comes before a command, or instead of one."""
    found = application()
    found.callback(invoke_without_command=True)(_version)
    for name, (_, summary) in COMMANDS.items():
        found.command(name, help=summary)(lambda: None)
    return found


def _warn(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    """A warning without the line of code that it came from."""
    if issubclass(category, BudcacheWarning):
        tell(f"warning: {message}")
