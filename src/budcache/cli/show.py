"""`budcache show`: what a file holds."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from budcache.cli.common import Json, check_writable, command, err, first_line, out, say
from budcache.errors import PipelineError
from budcache.policy import Ladder, Policy, load
from budcache.search import Evaluated, read_history


@command
def show(
    file: Annotated[Path, typer.Argument(help="A policy or ladder file, or the .ledger.jsonl of a search.")],
    plot: Annotated[Path | None, typer.Option(help="Also draw it: masks, or the search's convergence, as PNG.")] = None,
    as_json: Json = False,
) -> None:
    """Show what a policy, a ladder or the history of a search holds."""
    if file.suffix == ".jsonl":
        _show_history(file, plot, as_json)
        return
    found = load(file)
    if plot is not None:
        _draw(plot, "masks", {f"{policy.budget} calls": policy.mask for policy in _policies(found)})
    if as_json:
        print(json.dumps(_summary(found)))
        return
    from budcache.report.text import describe

    out.print(describe(found))


def _show_history(file: Path, plot: Path | None, as_json: bool) -> None:
    history = read_history(file)
    if plot is not None:
        _draw(plot, "convergence", history)
    if as_json:
        print(json.dumps([{**asdict(step), "mask": str(step.mask)} for step in history]))
        return
    from budcache.report.text import strip

    best: dict[int, Evaluated] = {}
    for step in history:
        if step.mask.budget not in best or step.loss < best[step.mask.budget].loss:
            best[step.mask.budget] = step
    out.print(f"[bold]search of {len(history)} masks[/bold], {history[-1].calls if history else 0} sample-calls")
    for budget, step in sorted(best.items()):
        out.print(f"{budget:5d} calls  {strip(step.mask)}  loss {step.loss:.4g}  ({step.phase})")


def _draw(path: Path, panel: str, subject: Any) -> None:
    from budcache.report import plots

    check_writable(path)
    try:
        plots.save(path, lambda axes: getattr(plots, panel)(axes, subject))
    except (OSError, ValueError) as error:
        raise PipelineError(f"{path} cannot be drawn: {first_line(error)}. Choose a name that ends in .png.") from None
    say(f"drawn to {path}", err)


def _policies(found: Policy | Ladder) -> tuple[Policy, ...]:
    return found.rungs if isinstance(found, Ladder) else (found,)


def _summary(found: Policy | Ladder) -> dict[str, Any]:
    """The file's own content, and the numbers that follow from it."""
    data = found.model_dump(mode="json", exclude_none=True)
    for rung, policy in zip(data.get("rungs", [data]), _policies(found), strict=True):
        rung |= {"steps": policy.steps, "budget": policy.budget, "computed": policy.mask.computed}
    return data
