"""`budcache generate`: draw, under a policy or in full."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from budcache.chosen import choose
from budcache.cli.common import (
    Device,
    Frames,
    Guidance,
    Height,
    Json,
    ModelArgument,
    Negative,
    Numbers,
    Width,
    check_writable,
    command,
    err,
    open_pipeline,
    pipeline_refusals,
    say,
    settings_for,
)
from budcache.errors import PipelineError
from budcache.policy import Policy


@command
def generate(
    model: ModelArgument,
    prompt: Annotated[list[str], typer.Option("--prompt", "-p", help="What to draw; may be given several times.")],
    policy: Annotated[
        Path | None, typer.Option(help="A policy or ladder: a file, or owner/name on the hub; without it the full run.")
    ] = None,
    budget: Annotated[int | None, typer.Option("--budget", "-b", help="Which rung of a ladder, in calls.")] = None,
    out_path: Annotated[
        Path | None, typer.Option("--out", "-o", help="A file, or a folder for several; default: out.png or out.mp4.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of the full run; default: the model's.")] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**63 - 1, help="Seed of the first sample; the next ones count up.")
    ] = 0,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Samples per prompt.")] = 1,
    height: Height = None,
    width: Width = None,
    frames: Frames = None,
    fps: Annotated[int, typer.Option(min=1, help="Frames per second of a video.")] = 16,
    guidance: Guidance = None,
    negative: Negative = None,
    image: Annotated[Path | None, typer.Option(help="A picture to start from, for pipelines that want one.")] = None,
    strength: Annotated[float | None, typer.Option(min=0, max=1, help="How far to leave that picture.")] = None,
    device: Device = None,
    dtype: Numbers = None,
    as_json: Json = False,
) -> None:
    """Draw pictures or videos, under a policy or in full."""
    from budcache.storage import media

    chosen = _choose(policy, budget)
    if chosen is not None and steps not in (None, chosen.steps):
        raise PipelineError(
            f"the policy has {chosen.steps} steps, but --steps is {steps}. Leave --steps out, or search again."
        )
    pipe = open_pipeline(model, device, dtype)
    settings = settings_for(
        pipe,
        num_inference_steps=chosen.steps if chosen is not None else steps,
        height=height,
        width=width,
        num_frames=frames,
        guidance_scale=guidance,
        negative_prompt=negative,
        image=media.read(image) if image is not None else None,
        strength=strength,
    )
    jobs = [(text, seed + i) for text in prompt for i in range(count)]
    video = _makes_video(pipe)
    paths = _paths(out_path or Path("out").with_suffix(media.ending(video)), len(jobs))
    for path in paths:  # before the work, not after it
        media.check_format(path, video)
        check_writable(path)
    written: list[dict[str, Any]] = []
    for (text, number), path in zip(jobs, paths, strict=True):
        if not as_json:
            say(f"{text!r}, seed {number}", err)
        pipe.set_progress_bar_config(disable=as_json or not err.is_terminal, leave=False)
        begin = time.perf_counter()
        output, calls = _draw(pipe, chosen, {**settings, "prompt": text}, number)
        seconds = time.perf_counter() - begin
        target = media.save(media.pictures(output)[0], path, fps)
        written.append({"file": str(target), "prompt": text, "seed": number, "calls": calls, "seconds": seconds})
        if not as_json:
            cost = f"{calls} of {chosen.steps} calls" if chosen is not None else f"{calls} calls"
            say(f"{target}  {cost}, {seconds:.2f} s")
    if as_json:
        print(json.dumps({"model": model, "samples": written}))


def _choose(path: Path | None, budget: int | None) -> Policy | None:
    if path is None:
        if budget is not None:
            raise PipelineError("--budget names a rung of a ladder, but there is no --policy. Give the ladder's file.")
        return None
    return choose(path, budget)


def _makes_video(pipe: Any) -> bool:
    """Known before it has run: pipelines that make videos let one choose the number of frames."""
    from budcache.pipeline.arguments import arguments

    return not {"num_frames", "frames", "video_length"}.isdisjoint(arguments(pipe))


def _draw(pipe: Any, policy: Policy | None, call: dict[str, Any], seed: int) -> tuple[Any, int]:
    """One sample, and the number of model calls that it took."""
    import torch

    from budcache.pipeline import applied

    call |= {"generator": torch.Generator("cpu").manual_seed(seed)}
    with pipeline_refusals(pipe):
        if policy is None:
            return pipe(**call), int(getattr(pipe, "num_timesteps", 0))
        with applied(pipe, policy) as handle:
            output = pipe(**call)
        return output, handle.stats().last_run_calls


def _paths(target: Path, count: int) -> list[Path]:
    if target.is_dir() or not target.suffix:
        return [target / f"{i:03d}" for i in range(count)]
    if count == 1:
        return [target]
    return [target.with_name(f"{target.stem}-{i:03d}{target.suffix}") for i in range(count)]
