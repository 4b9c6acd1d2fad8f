"""`budcache check`: the promises of a policy, tried here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from budcache.chosen import choose
from budcache.cli.common import (
    Device,
    Frames,
    Guidance,
    Height,
    Json,
    LoraOption,
    LoraScale,
    ModelArgument,
    Negative,
    Numbers,
    Width,
    check_model,
    command,
    open_pipeline,
    pipeline_refusals,
    say,
    settings_for,
    tell,
)


@command
def check(
    model: ModelArgument,
    policy: Annotated[Path, typer.Option(help="A policy or ladder file.")],
    budget: Annotated[int | None, typer.Option("--budget", "-b", help="Which rung of a ladder, in calls.")] = None,
    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", "-p", help="What to draw; two of ours if none is given.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of the first sample.")] = 20_000,
    timed: Annotated[bool, typer.Option("--timed/--not-timed", help="Whether to measure the speed as well.")] = True,
    height: Height = None,
    width: Width = None,
    frames: Frames = None,
    guidance: Guidance = None,
    negative: Negative = None,
    lora: LoraOption = None,
    lora_scale: LoraScale = 1.0,
    device: Device = None,
    dtype: Numbers = None,
    as_json: Json = False,
) -> None:
    """Try on this machine what a policy promises: exact calls, the plan, removal, quality and speed.

    Ends with 0 if no promise was broken, 1 if one was, 2 if something was wrong with the question.
    """
    from budcache import models
    from budcache.jobs.check import check as tried
    from budcache.samples.prompts import TRIED

    check_model(model, lora, lora_scale)
    chosen = choose(policy, budget)
    pipe = open_pipeline(model, device, dtype, lora, lora_scale)
    pipe.set_progress_bar_config(disable=True)
    settings = settings_for(
        pipe, height=height, width=width, num_frames=frames, guidance_scale=guidance, negative_prompt=negative
    )
    own = models.prompts(model, "evaluation")[:2] if model in models.EMBEDDED else TRIED
    if not as_json:
        tell(f"trying {chosen.budget} of {chosen.steps} calls on {len(prompt or own)} prompts.")
    with pipeline_refusals(pipe):
        found = tried(
            *(pipe, chosen),
            prompts=prompt or own,
            call=settings,
            seed=seed,
            timed=timed,
            tell=None if as_json else tell,
        )
    if as_json:
        print(json.dumps({"model": model, **found.as_dict()}))
    else:
        say(str(found))
    if not found.kept:
        raise typer.Exit(1)
