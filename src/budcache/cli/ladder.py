"""`budcache ladder`: policies from recorded runs alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from budcache.cli.common import Json, command, out, say
from budcache.cli.search import parse_budgets


@command
def ladder(
    record: Annotated[Path, typer.Argument(help="Full runs, recorded with `budcache.recording`.")],
    budgets: Annotated[str, typer.Option("--budgets", "--budget", "-b", help="Model calls: 8, or 5,6,8, or 4-12.")],
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps of the full run; other than recorded, they are interpolated.")
    ] = None,
    out_path: Annotated[Path, typer.Option("--out", "-o", help="Where to write the ladder.")] = Path("ladder.json"),
    as_json: Json = False,
) -> None:
    """Make policies from recorded full runs, without a model and without a single call."""
    from budcache.records.record import Record
    from budcache.report.text import describe

    runs = Record.load(record)
    found = runs.ladder(parse_budgets(budgets), steps=steps)
    found.save(out_path)
    if as_json:
        print(json.dumps({"ladder": str(out_path), "budgets": found.budgets, "steps": found.steps}))
        return
    out.print(describe(found))
    say(f"\n{out_path}  from {runs.summary}, without a model call")
    if found.steps not in {group.steps for group in runs}:
        say(f"No run of {found.steps} steps was recorded, so these are interpolated; a search there may be better.")
    say(f"  budcache fit {out_path} --prompts ...   fits them on their own runs")
