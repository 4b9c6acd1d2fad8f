"""`budcache generate`: draw, under a policy or in full."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from budcache.chosen import Opened, check_choice, choose, opened
from budcache.cli.common import (
    Device,
    Fps,
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
    check_writable,
    command,
    err,
    open_pipeline,
    pipeline_refusals,
    say,
    settings_for,
    tell,
)
from budcache.errors import PipelineError

if TYPE_CHECKING:
    from budcache.pipeline import Handle


@command
def generate(
    model: ModelArgument,
    prompt: Annotated[list[str], typer.Option("--prompt", "-p", help="What to draw; may be given several times.")],
    policy: Annotated[
        Path | None, typer.Option(help="A policy or ladder: a file, or owner/name on the hub; without it the full run.")
    ] = None,
    budget: Annotated[int | None, typer.Option("--budget", "-b", help="Which rung of a ladder, in calls.")] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Or the time that a sample may take: the largest rung that fits is chosen.")
    ] = None,
    measure_again: Annotated[
        bool, typer.Option("--measure-again", help="Time the model even if that is kept beside the ladder.")
    ] = False,
    lora: LoraOption = None,
    lora_scale: LoraScale = 1.0,
    out_path: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="A file, or a folder for several; default: out.png, for videos out.mp4, or out.webp without "
            "budcache[video].",
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of the full run; default: the model's.")] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**63 - 1, help="Seed of the first sample; the next ones count up.")
    ] = 0,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Samples per prompt.")] = 1,
    height: Height = None,
    width: Width = None,
    frames: Frames = None,
    fps: Fps = 16,
    guidance: Guidance = None,
    negative: Negative = None,
    image: Annotated[Path | None, typer.Option(help="A picture to start from, for pipelines that want one.")] = None,
    strength: Annotated[float | None, typer.Option(min=0, max=1, help="How far to leave that picture.")] = None,
    device: Device = None,
    dtype: Numbers = None,
    as_json: Json = False,
) -> None:
    """Draw pictures or videos, under a policy or in full."""
    from budcache.pipeline.arguments import makes_videos
    from budcache.storage import media

    check_model(model, lora, lora_scale)
    given = _looked_at(policy, budget, seconds)
    planned = None if given is None else given.value.steps
    if planned is not None and steps not in (None, planned):
        raise PipelineError(
            f"the policy has {planned} steps, but --steps is {steps}. Leave --steps out, or search again."
        )
    pipe = open_pipeline(model, device, dtype, lora, lora_scale)
    settings = settings_for(
        pipe,
        num_inference_steps=steps if planned is None else planned,
        height=height,
        width=width,
        num_frames=frames,
        guidance_scale=guidance,
        negative_prompt=negative,
        image=media.read(image) if image is not None else None,
        strength=strength,
    )
    jobs = [(text, seed + i) for text in prompt for i in range(count)]
    video = makes_videos(pipe)
    paths = _paths(out_path or Path("out").with_suffix(media.ending(video)), len(jobs))
    for path in paths:  # before the work, not after it
        media.check_format(path, video)
        check_writable(path)
    pipe.set_progress_bar_config(disable=as_json or not err.is_terminal, leave=False)
    written: list[dict[str, Any]] = []
    with ExitStack() as stack:
        handle = None
        if given is not None:
            call = {**settings, "prompt": prompt[0]}
            timed = {"seconds": seconds, "call": call, "measure_again": measure_again}
            handle = _served(pipe, given, budget, timed)
            stack.callback(handle.remove)
        if handle is not None and handle.reason is not None:
            tell(handle.reason)
        for (text, number), path in zip(jobs, paths, strict=True):
            if not as_json:
                say(f"{text!r}, seed {number}", err)
            begin = time.perf_counter()
            output, calls = _draw(pipe, handle, {**settings, "prompt": text}, number)
            took = time.perf_counter() - begin
            sample = media.pictures(output)[0]
            target = media.save(sample, path, fps)
            length = {"frames": len(sample), "fps": fps} if isinstance(sample, list) else {}
            facts = {"file": str(target), "prompt": text, "seed": number, "calls": calls, "seconds": took}
            written.append({**facts, **length})
            if not as_json:
                cost = f"{calls} of {planned} calls" if planned is not None else f"{calls} calls"
                say(f"{target}  {media.spoken(**length) + ', ' if length else ''}{cost}, {took:.2f} s")
    if as_json:
        reason = None if handle is None else handle.reason
        print(json.dumps({"model": model, **({"reason": reason} if reason else {}), "samples": written}))


def _looked_at(path: Path | None, budget: int | None, seconds: float | None) -> Opened | None:
    """The policy, which is read once, before anything is loaded; None is the full run."""
    if path is None:
        for name, value in (("--budget", budget), ("--seconds", seconds)):
            if value is not None:
                raise PipelineError(
                    f"{name} chooses a rung of a ladder, but there is no --policy. Give the ladder's file."
                )
        return None
    check_choice(budget, seconds)
    found = opened(path)
    if seconds is None:
        choose(found, budget)
    return found


def _served(pipe: Any, policy: Opened, budget: int | None, timed: dict[str, Any]) -> Handle:
    from budcache.pipeline import apply

    with pipeline_refusals(pipe):
        return apply(pipe, policy, budget=budget, **timed)


def _draw(pipe: Any, handle: Handle | None, call: dict[str, Any], seed: int) -> tuple[Any, int]:
    """One sample, and the number of model calls that it took."""
    import torch

    call |= {"generator": torch.Generator("cpu").manual_seed(seed)}
    with pipeline_refusals(pipe):
        output = pipe(**call)
    return output, int(getattr(pipe, "num_timesteps", 0)) if handle is None else handle.stats().last_run_calls


def _paths(target: Path, count: int) -> list[Path]:
    if target.is_dir() or not target.suffix:
        return [target / f"{i:03d}" for i in range(count)]
    if count == 1:
        return [target]
    return [target.with_name(f"{target.stem}-{i:03d}{target.suffix}") for i in range(count)]
