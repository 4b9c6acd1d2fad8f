"""`budcache export`: a policy for another runtime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from budcache.cli.common import Dtype, Json, LoraOption, LoraScale, command, err, say
from budcache.errors import PolicyError
from budcache.exports import TARGETS
from budcache.exports.exporting import export as write
from budcache.wording import quote

if TYPE_CHECKING:
    import torch

_RUNTIMES = "; ".join(f"{name}: {', '.join(t.runtimes)}" for name, t in TARGETS.items() if t.runtimes)


@command
def export(
    policy: Annotated[Path, typer.Argument(help="A policy or ladder file.")],
    to: Annotated[str, typer.Option("--to", "-t", help=f"One of {', '.join(TARGETS)}.")],
    out_path: Annotated[Path, typer.Option("--out", "-o", help="The file or folder to write.")],
    budget: Annotated[int | None, typer.Option("--budget", "-b", help="Which rung of a ladder, in calls.")] = None,
    size: Annotated[
        str | None, typer.Option(help="Height x width, such as 768x1024.", show_default="as the policy was made at")
    ] = None,
    approximate: Annotated[
        bool, typer.Option("--approximate", help="Go on even if the target cannot carry all of the policy.")
    ] = False,
    pipeline: Annotated[
        str | None, typer.Option(help="A model: diffusers writes it whole; others take its noise levels.")
    ] = None,
    lora: LoraOption = None,
    lora_scale: LoraScale = 1.0,
    dtype: Annotated[
        Dtype | None, typer.Option(help="Of a whole pipeline: the numbers that it is to be loaded in.")
    ] = None,
    runtime: Annotated[str | None, typer.Option("--for", help=f"Which runtime of a target. {_RUNTIMES}.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a file, or write into a folder that has some.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a policy for another runtime, so that it runs there without budcache.

    \b
    comfyui    a node pack with workflows; plain policies need no custom node
    diffusers  a scheduler folder; with --pipeline a whole pipeline
    cache-dit  a static mask for cache-dit, SGLang or xDiT
    magcache   ratios for the MagCache of diffusers, vLLM-Omni or LightX2V
    sdcpp      options for stable-diffusion.cpp
    mflux      a scheduler class for mflux
    diffsynth  a scheduler class for DiffSynth-Studio
    sigmas     the bare list of noise levels
    """
    made = write(
        policy,
        to,
        out_path,
        budget=budget,
        size=None if size is None else parse_size(size),
        approximate=approximate,
        pipeline=pipeline,
        lora=lora,
        lora_scale=lora_scale,
        dtype=None if dtype is None else _numbers(dtype),
        runtime=runtime,
        force=force,
    )
    if as_json:
        print(json.dumps({"path": str(made.path), "run": made.run, "lost": made.lost}))
        return
    for clause in made.lost:
        say(f"lost: {clause}", err)
    say(str(made.path))
    say(made.run)


def _numbers(name: Dtype) -> torch.dtype:
    import torch

    found: torch.dtype = getattr(torch, name)
    return found


def parse_size(text: str) -> tuple[int, int]:
    """`768x1024` as height and width."""
    height, cross, width = text.lower().replace("×", "x").partition("x")
    if not cross or not all(side.strip().isdecimal() and 0 < int(side) < 10**6 for side in (height, width)):
        raise PolicyError(f"--size {quote(text)} cannot be read. Write height and width, as in 768x1024.")
    return int(height), int(width)
