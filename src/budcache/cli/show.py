"""`budcache show`: what a file holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from budcache.cli.common import Json, app, out
from budcache.policy import Ladder, Policy, load


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="A policy or ladder file.")],
    as_json: Json = False,
) -> None:
    """Show what a policy or ladder file holds."""
    found = load(file)
    if as_json:
        print(json.dumps(_summary(found)))
        return
    from budcache.report.text import describe

    out.print(describe(found))


def _summary(found: Policy | Ladder) -> dict[str, Any]:
    """The file's own content, and the numbers that follow from it."""
    data = found.model_dump(mode="json", exclude_none=True)
    for rung, policy in zip(data.get("rungs", [data]), found if isinstance(found, Ladder) else [found], strict=True):
        rung |= {"steps": policy.steps, "budget": policy.budget, "computed": policy.mask.computed}
    return data
