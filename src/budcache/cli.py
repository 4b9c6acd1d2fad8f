"""The command line: the only place that prints."""

from __future__ import annotations

import json
import sys
import time
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from budcache import __version__
from budcache.errors import BudcacheError, PipelineError
from budcache.policy import Ladder, Policy, load

__all__ = ["main"]

app = typer.Typer(
    help="Diffusion pipelines at a number of model calls that you fix in advance.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
out, err = Console(highlight=False), Console(stderr=True, highlight=False)


class Dtype(str, Enum):
    """Number formats that a model can run in."""

    float32 = "float32"
    float16 = "float16"
    bfloat16 = "bfloat16"


ModelArgument = Annotated[str, typer.Argument(help="An embedded name (tiny-flux), a local folder, or a hub id.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of text for people.")]


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        out.print(f"budcache {__version__}")
        raise typer.Exit


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


@app.command()
def generate(
    model: ModelArgument,
    prompt: Annotated[list[str], typer.Option("--prompt", "-p", help="What to draw; may be given several times.")],
    policy: Annotated[Path | None, typer.Option(help="A policy or ladder file; without it the full run.")] = None,
    budget: Annotated[int | None, typer.Option("--budget", "-b", help="Which rung of a ladder, in calls.")] = None,
    out_path: Annotated[Path, typer.Option("--out", "-o", help="A file, or a folder for several.")] = Path("out.png"),
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of the full run; default: the model's.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the first sample; the next ones count up.")] = 0,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Samples per prompt.")] = 1,
    height: Annotated[int | None, typer.Option(min=1)] = None,
    width: Annotated[int | None, typer.Option(min=1)] = None,
    frames: Annotated[int | None, typer.Option(min=1, help="Frames of a video.")] = None,
    fps: Annotated[int, typer.Option(min=1, help="Frames per second of a video.")] = 16,
    guidance: Annotated[float | None, typer.Option(help="Guidance scale; default: the model's.")] = None,
    negative: Annotated[str | None, typer.Option("--negative", help="A negative prompt.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, mps; default: the best there is.")] = None,
    dtype: Annotated[
        Dtype | None, typer.Option(help="Number format; default: bfloat16 on a GPU, else float32.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Draw pictures or videos, under a policy or in full."""
    from budcache import media

    chosen = _choose(policy, budget)
    if chosen is not None and steps not in (None, chosen.steps):
        raise PipelineError(
            f"the policy has {chosen.steps} steps, but --steps is {steps}. Leave --steps out, or search again."
        )
    pipe = _open(model, device, dtype)
    settings = _settings(
        pipe,
        num_inference_steps=chosen.steps if chosen is not None else steps,
        height=height,
        width=width,
        num_frames=frames,
        guidance_scale=guidance,
        negative_prompt=negative,
    )
    jobs = [(text, seed + i) for text in prompt for i in range(count)]
    paths = _paths(out_path, len(jobs))
    for path in paths:  # before the work, not after it
        _check_writable(path)
    written: list[dict[str, Any]] = []
    for (text, number), path in zip(jobs, paths, strict=True):
        if not as_json:
            err.print(f"[dim]{text!r}, seed {number}[/dim]", markup=True)
        pipe.set_progress_bar_config(disable=as_json or not err.is_terminal, leave=False)
        begin = time.perf_counter()
        output, calls = _draw(pipe, chosen, {**settings, "prompt": text}, number)
        seconds = time.perf_counter() - begin
        target = media.save(media.pictures(output)[0], path, fps)
        written.append({"file": str(target), "prompt": text, "seed": number, "calls": calls, "seconds": seconds})
        if not as_json:
            cost = f"{calls} of {chosen.steps} calls" if chosen is not None else f"{calls} calls"
            out.print(f"{target}  {cost}, {seconds:.2f} s")
    if as_json:
        print(json.dumps({"model": model, "samples": written}))


def _choose(path: Path | None, budget: int | None) -> Policy | None:
    if path is None:
        if budget is not None:
            raise PipelineError("--budget names a rung of a ladder, but there is no --policy. Give the ladder's file.")
        return None
    from budcache.pipeline.serving import choose

    return choose(path, budget)


def _open(model: str, device: str | None, dtype: Dtype | None) -> Any:
    """Load a pipeline onto the best device there is."""
    import torch

    from budcache import models

    if device is None:
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    numbers = dtype.value if dtype is not None else "float32" if device == "cpu" else "bfloat16"
    _quiet()
    pipe = models.load(model, dtype=getattr(torch, numbers))
    try:
        return pipe.to(device)
    except (RuntimeError, AssertionError, ValueError) as error:
        raise PipelineError(
            f"{model} cannot run on {device!r}: {_first_line(error)}. Choose another --device."
        ) from None


def _quiet() -> None:
    """Silence what the libraries below say to their own developers."""
    import warnings

    import diffusers
    import transformers

    diffusers.utils.logging.set_verbosity_error()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    diffusers.utils.logging.disable_progress_bar()
    warnings.filterwarnings("ignore", category=FutureWarning)


def _settings(pipe: Any, **wanted: Any) -> dict[str, Any]:
    """The given settings, refused where the pipeline has no such argument."""
    import inspect

    known = inspect.signature(type(pipe).__call__).parameters
    given = {name: value for name, value in wanted.items() if value is not None}
    for name in given:
        if name not in known:
            raise PipelineError(f"{type(pipe).__name__} takes no {name}. Leave that option out.")
    return given


def _draw(pipe: Any, policy: Policy | None, call: dict[str, Any], seed: int) -> tuple[Any, int]:
    """One sample, and the number of model calls that it took."""
    import torch

    from budcache.pipeline import applied

    call |= {"generator": torch.Generator("cpu").manual_seed(seed)}
    try:
        if policy is None:
            return pipe(**call), pipe.num_timesteps
        with applied(pipe, policy) as handle:
            output = pipe(**call)
        return output, handle.stats().last_run_calls
    except (ValueError, TypeError, RuntimeError) as error:
        raise PipelineError(f"{type(pipe).__name__} failed: {_first_line(error)}.") from error


def _paths(target: Path, count: int) -> list[Path]:
    if target.is_dir() or not target.suffix:
        return [target / f"{i:03d}" for i in range(count)]
    if count == 1:
        return [target]
    return [target.with_name(f"{target.stem}-{i:03d}{target.suffix}") for i in range(count)]


def _check_writable(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        probe = path.parent / f".{path.name}.probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise PipelineError(f"{path} cannot be written: {error.strerror or error}. Choose another --out.") from None


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def main() -> None:
    """Run a command; a user's mistake earns a sentence and exit code 2, not a traceback."""
    try:
        app()
    except BudcacheError as error:
        err.print(f"budcache: {error}", markup=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        err.print("budcache: stopped.", markup=False)
        sys.exit(130)
