"""`budcache show`: what a file holds."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from budcache.chosen import load
from budcache.cli.common import Json, command, draw, out, say
from budcache.events import Scored
from budcache.policy import Ladder, Policy
from budcache.strategies import read_history


@command
def show(
    file: Annotated[
        Path,
        typer.Argument(
            help="A policy, a ladder (also owner/name on the hub), a .record of runs, or the .ledger.jsonl of a search."
        ),
    ],
    plot: Annotated[
        Path | None, typer.Option(help="Also draw it, as PNG: masks, weights and sigmas, or the convergence.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what a policy, a ladder, a record or the history of a search holds."""
    if file.suffix == ".jsonl":
        _show_history(file, plot, as_json)
        return
    if file.suffix == ".record" or _looks_like_a_record(file):
        _show_record(file, as_json)
        return
    found = load(file)
    if plot is not None:
        from budcache.report import plots

        rungs = {f"{policy.budget} calls": policy for policy in _policies(found)}
        panels = [lambda axes: plots.masks(axes, {name: policy.mask for name, policy in rungs.items()})]
        if any(policy.is_blended for policy in rungs.values()):
            panels.append(lambda axes: plots.weights(axes, rungs))
        levels = {name: policy.sigmas for name, policy in rungs.items() if policy.sigmas is not None}
        if levels:
            panels.append(lambda axes: plots.sigmas(axes, None, levels))
        draw(plot, *panels)
    if as_json:
        print(json.dumps(_summary(found)))
        return
    from budcache.report.text import describe

    out.print(describe(found))


def _looks_like_a_record(file: Path) -> bool:
    """Whether a file begins as safetensors do: with the length of a JSON header, then the header."""
    try:
        with file.open("rb") as stream:
            return stream.read(9)[5:] == b"\0\0\0{"
    except OSError:
        return False  # whoever reads it says why


def _show_record(file: Path, as_json: bool) -> None:
    from budcache.records.record import Record

    record = Record.load(file)
    if as_json:
        settings = [(runs, runs.origin.model_dump(mode="json", exclude_none=True)) for runs in record]
        print(json.dumps([{"steps": runs.steps, "runs": runs.samples, **known} for runs, known in settings]))
        return
    out.print(f"[bold]record[/bold] of {record.summary}, {file.stat().st_size / 1000:.0f} kB")
    for number, runs in enumerate(record, 1):
        say(f"{number:3d}  {runs}")


def _show_history(file: Path, plot: Path | None, as_json: bool) -> None:
    history = read_history(file)
    if plot is not None:
        from budcache.report import plots

        draw(plot, lambda axes: plots.convergence(axes, history))
    if as_json:
        print(json.dumps([{**asdict(step), "mask": str(step.mask), "calls": step.sample_calls} for step in history]))
        return
    from budcache.report.text import strip

    best: dict[int, Scored] = {}
    for step in history:
        if step.mask.budget not in best or step.loss < best[step.mask.budget].loss:
            best[step.mask.budget] = step
    out.print(f"[bold]search of {len(history)} masks[/bold], {history[-1].sample_calls if history else 0} sample-calls")
    for budget, step in sorted(best.items()):
        out.print(f"{budget:5d} calls  {strip(step.mask)}  loss {step.loss:.4g}  ({step.phase})")


def _policies(found: Policy | Ladder) -> tuple[Policy, ...]:
    return found.rungs if isinstance(found, Ladder) else (found,)


def _summary(found: Policy | Ladder) -> dict[str, Any]:
    """The file's own content, and the numbers that follow from it."""
    data = found.model_dump(mode="json", exclude_none=True)
    for rung, policy in zip(data.get("rungs", [data]), _policies(found), strict=True):
        rung |= {"steps": policy.steps, "budget": policy.budget, "computed": policy.mask.computed}
    return data
