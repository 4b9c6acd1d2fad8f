"""`budcache recipe`: the search to start with, for models that people use."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.table import Table

from budcache.cli.common import Json, command, out, say
from budcache.jobs.recipes import RECIPES, written
from budcache.jobs.recipes import recipe as look_up


@command
def recipe(
    name: Annotated[str | None, typer.Argument(help=f"One of {', '.join(RECIPES)}.", show_default="list them")] = None,
    seconds: Annotated[
        float | None, typer.Option(min=0, help="Of one step of your pipeline, for an estimate of your own.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print a search with sensible settings for a model, about what it will take, and what to do with the result."""
    if name is None:
        _list(as_json)
        return
    found, file = look_up(name), f"{name}.ladder.json"
    each = found.seconds if seconds is None else seconds
    minutes = found.planned.sample_calls * each / 60
    if as_json:
        facts = {"model": found.model, "search": found.search(file), "sample_calls": found.planned.sample_calls}
        print(json.dumps(facts | {"seconds_per_call": each, "minutes": minutes, "then": found.then(file)}))
        return
    say(written(found.search(file)))
    if found.note:
        say(f"\n{found.note}")
    where = "with your seconds" if seconds is not None else f"on one {found.gpu} (from {found.known_from})"
    cost = f"{found.planned.sample_calls:,} sample-calls of {each:g} s"
    say(
        f"\nAn estimate: {cost}, so about {_spoken(minutes)} {where}. "
        f"{found.count} prompts of the set `{found.prompts}`; your own, in a file, are better: --prompts FILE."
    )
    for title, words in found.then(file).items():
        say(f"\nThen {title}:\n{written(words)}")


def _list(as_json: bool) -> None:
    if as_json:
        print(json.dumps({name: found.model for name, found in RECIPES.items()}))
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("recipe", "model", "steps", "about"):
        table.add_column(title, no_wrap=True)
    for name, found in RECIPES.items():
        about = f"{_spoken(found.minutes).replace('minutes', 'min')}, {found.gpu}"
        table.add_row(name, found.model, str(found.steps), about)
    out.print(table)
    say("\nbudcache recipe NAME prints the command. Times are estimates; --dry-run and --seconds make them yours.")


def _spoken(minutes: float) -> str:
    return f"{minutes / 60:.1f} hours" if minutes >= 100 else f"{max(1, round(minutes))} minutes"
