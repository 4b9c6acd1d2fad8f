"""`budcache push` and `budcache find`: ladders to the hub, and what is there for a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from budcache.cli.common import (
    Frames,
    Guidance,
    Height,
    Json,
    LoraOption,
    LoraScale,
    ModelArgument,
    Width,
    as_typed,
    check_model,
    command,
    open_pipeline,
    out,
    say,
)
from budcache.hub.finding import Found
from budcache.hub.finding import find as look
from budcache.hub.reading import named
from budcache.policy import Ladder


@command
def push(
    ladder: Annotated[Path, typer.Argument(help="A policy or ladder file.")],
    name: Annotated[str, typer.Argument(help="owner/name on the hub; made if it is not there.")],
    private: Annotated[
        bool | None,
        typer.Option("--private/--public", help="Who may see a new repository.", show_default="the account's"),
    ] = None,
    revision: Annotated[str | None, typer.Option(help="A branch; made if it is not there.")] = None,
    message: Annotated[str | None, typer.Option("--message", "-m", help="What to say of the change.")] = None,
    base_model: Annotated[
        str | None, typer.Option(help="The model's hub id, by which people find it.", show_default="the ladder's own")
    ] = None,
    as_json: Json = False,
) -> None:
    """Publish a ladder on the hub, with a card. Log in first with `hf auth login`, or set HF_TOKEN."""
    found = Ladder.load(ladder)
    url = found.push_to_hub(name, private=private, revision=revision, commit_message=message, base_model=base_model)
    if as_json:
        print(json.dumps({"commit": url, "name": name}))
        return
    say(url)
    say(f"  budcache generate MODEL --policy {name} --budget {found.budgets[-1]} --prompt ...")


@command
def find(
    model: ModelArgument,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps to be near to; default: the model's.")] = None,
    height: Height = None,
    width: Width = None,
    frames: Frames = None,
    guidance: Guidance = None,
    lora: LoraOption = None,
    lora_scale: LoraScale = 1.0,
    as_json: Json = False,
) -> None:
    """List what the hub has for a model, the nearest settings first.

    A folder, an embedded model or one with a LoRA is loaded, and its weights are recognised. Of a hub id alone nothing
    is downloaded: ladders are found by the model's name.
    """
    check_model(model, lora, lora_scale)
    by_name = lora is None and not Path(model).is_dir() and named(model) is not None
    source = model if by_name else open_pipeline(model, "cpu", None, lora, lora_scale)
    found = look(source, steps=steps, height=height, width=width, frames=frames, guidance=guidance)
    if as_json:
        print(json.dumps([each.model_dump(mode="json", exclude_none=True) for each in found]))
        return
    if not found:
        say(f"the hub has no ladder for {model} yet. Make one with `budcache search`, and publish it: `budcache push`.")
        return
    out.print(_table(found))
    rung = f"--policy {found[0].name} --budget {found[0].says.budgets[-1]}"
    say(f"\n  budcache generate {model}{as_typed(lora, lora_scale)} {rung} --prompt ...")


def _table(found: list[Found]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    lora = any(each.says.adapters for each in found)
    for name in ("name", "calls", "steps", "size", "guidance", "PSNR, dB", *(["LoRA"] if lora else []), "weights"):
        table.add_column(name, no_wrap=name == "name")
    for each in found:
        says = each.says
        size = " x ".join(filter(None, (_ends(says.width), _ends(says.height), _ends(says.frames))))
        table.add_row(
            each.name,
            f"{says.budgets[0]} to {says.budgets[-1]}" if len(says.budgets) > 1 else str(says.budgets[0]),
            str(says.steps),
            size or "-",
            _ends(says.guidance) or "-",
            says.quality or "-",
            *([", ".join(says.adapters) or "-"] if lora else []),
            "the same" if each.same_weights else "by name",
        )
    return table


def _ends(ends: tuple[float, float] | None) -> str:
    if ends is None:
        return ""
    return f"{ends[0]:g}" if ends[0] == ends[1] else f"{ends[0]:g} to {ends[1]:g}"
