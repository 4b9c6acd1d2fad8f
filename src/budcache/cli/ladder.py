"""`budcache ladder`: policies from recorded runs alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from budcache.cli.common import Json, command, out, say
from budcache.cli.rungs import Force, Output, say_what_was_there
from budcache.errors import PolicyError, RecordError
from budcache.options import parse_budgets
from budcache.policy import Ladder
from budcache.wording import several

if TYPE_CHECKING:
    from budcache.records.record import Record, Runs


@command
def ladder(
    record: Annotated[Path, typer.Argument(help="Full runs, recorded with `budcache.recording`.")],
    budgets: Annotated[str, typer.Option("--budgets", "--budget", "-b", help="Model calls: 8, or 5,6,8, or 4-12.")],
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps of the full run; other than recorded, they are interpolated.")
    ] = None,
    kind: Annotated[
        int | None, typer.Option(min=1, help="Which runs, as `budcache show` numbers them; default: the most.")
    ] = None,
    out_path: Annotated[
        Path, typer.Option("--out", "-o", help="Where to write the ladder; one that is there gets the new rungs.")
    ] = Path("ladder.json"),
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Make policies from recorded full runs, without a model and without a single call."""
    from budcache.records.record import Record

    into, runs = Output(out_path, force), Record.load(record)
    if kind is not None:
        if kind > len(runs.groups):
            raise RecordError(f"{record} has no kind {kind} of runs: it has {len(runs.groups)}. See budcache show.")
        runs = Record([runs.groups[kind - 1]])
    found = runs.ladder(parse_budgets(budgets), steps=steps)
    into.check(found, "record")
    _keep_what_was_tried(into, found)
    written = into.write(found)
    if as_json:
        facts = {"ladder": str(out_path), "budgets": found.budgets, "all_budgets": written.budgets}
        print(json.dumps(facts | {"steps": found.steps}))
        return
    _tell(record, runs, runs.source(steps), found, out_path)
    say_what_was_there(found, written)
    say(f"  budcache fit {out_path} --prompts ...   fits them on their own runs")


def _keep_what_was_tried(into: Output, found: Ladder) -> None:
    """Refuse to put policies that were never tried on the model in the place of some that were."""
    tried = [rung.budget for rung in into.there or () if rung.quality and rung.quality.psnr is not None]
    lost = [budget for budget in tried if budget in found.budgets]
    if lost:
        raise PolicyError(
            f"{into.path} has policies of {', '.join(map(str, lost))} calls that were tried on the model, which those "
            "of a record are not. Choose another --out, or replace the file with --force."
        )


def _tell(record: Path, runs: Record, used: Runs, found: Ladder, path: Path) -> None:
    """The ladder, and what it came from."""
    from budcache.report.text import describe

    out.print(describe(found))
    say(f"\n{path}  from {used}")
    others = len(runs) - used.samples
    if others:
        say(f"{several(others, 'run')} of another kind left out: budcache show {record} lists them, --kind takes one")
    if used.steps != found.steps:
        model, budgets = used.origin.model or "MODEL", ",".join(map(str, found.budgets))
        say(f"carried over from {used.steps} to {found.steps} steps; a search there was 2 to 5 dB better on tiny-flux:")
        say(f"  budcache search {model} --steps {found.steps} --budgets {budgets} --prompts ...")
