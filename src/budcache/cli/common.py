"""What the commands have in common: the application, the consoles, loading and failing."""

from __future__ import annotations

import functools
import math
import os
import shlex
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from budcache.errors import BudcacheError, FileError, PipelineError, SearchError
from budcache.events import JobName, Watch
from budcache.jobs.setup import taken_of
from budcache.samples.prompts import read_prompts
from budcache.wording import quote

if TYPE_CHECKING:
    from budcache.workers import Workers


def application() -> typer.Typer:
    """The command line without commands."""
    return typer.Typer(
        help="Diffusion pipelines at a number of model calls that you fix in advance.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


app = application()
out, err = Console(highlight=False, emoji=False), Console(stderr=True, highlight=False, emoji=False)


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Make a function a command; an interrupt ends it with a sentence."""

    @functools.wraps(function)
    def run(**options: Any) -> None:
        _check_finite(options)
        try:
            function(**options)
        except KeyboardInterrupt:
            tell("stopped. What was finished is kept; the same command goes on from there.")
            raise typer.Exit(130) from None

    return app.command()(run)


def _check_finite(options: dict[str, Any]) -> None:
    """Refuse `nan` and `inf`, which are numbers to Python but settings to nobody, in every option of every command."""
    for name, value in options.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise SearchError(f"--{name.replace('_', '-')} is {value}. Give a finite number.")


def tell(text: str) -> None:
    """A sentence to the user, beside what goes to the standard output."""
    err.print(f"budcache: {text}", markup=False, soft_wrap=True)


Dtype = Literal["float32", "float16", "bfloat16"]
ModelArgument = Annotated[str, typer.Argument(help="An embedded name (tiny-flux), a local folder, or a hub id.")]
LoraOption = Annotated[
    str | None, typer.Option("--lora", help="A LoRA: an embedded name (turbo), a file, a folder, or a hub id.")
]
LoraScale = Annotated[float, typer.Option("--lora-scale", help="How strongly it works; 1 is as it was trained.")]
Height = Annotated[int | None, typer.Option(min=1, help="Pixels; default: the model's.")]
Width = Annotated[int | None, typer.Option(min=1, help="Pixels; default: the model's.")]
Frames = Annotated[int | None, typer.Option(min=1, help="Frames of a video.")]
Fps = Annotated[int, typer.Option(min=1, help="Frames a second of a video.")]
StateMemory = Annotated[str, typer.Option(help="Main memory for states, the others wait on disk: 500M, 2G, 0.")]
Across = Annotated[bool, typer.Option("--across", help="Wan 2.2: let rows look back on the other expert's outputs.")]
Guidance = Annotated[float | None, typer.Option(help="Guidance scale; default: the model's.")]
Guidances = Annotated[
    str | None,
    typer.Option(
        "--guidance", help="Guidance scale, or several to calibrate on in turn: 1.5,3.5,7.", show_default="the model's"
    ),
]
Negative = Annotated[str | None, typer.Option("--negative", "--negative-prompt", help="A negative prompt.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, mps; default: the best there is.")]
Numbers = Annotated[Dtype | None, typer.Option("--dtype", help="Default: bfloat16 on a GPU, else float32.")]
WorkersOption = Annotated[
    str | None,
    typer.Option(
        "--workers",
        help="Let workers hold the runs, on a Ray cluster: ray starts one here; auto, HOST:PORT or ray://HOST:PORT "
        "finds a running one.",
    ),
]
WorkerCount = Annotated[
    int | None, typer.Option("--worker-count", min=1, help="How many workers.", show_default="as many as there is room")
]
CpusPerWorker = Annotated[
    float | None, typer.Option("--cpus-per-worker", help="CPUs, and threads, of each worker.", show_default="1")
]
GpusPerWorker = Annotated[
    float | None,
    typer.Option("--gpus-per-worker", help="GPUs of each worker; 0.5 shares one.", show_default="1 where there are"),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of text for people.")]

Prompt = Annotated[list[str] | None, typer.Option("--prompt", "-p", help="What to calibrate on.")]
PromptFile = Annotated[
    Path | None,
    typer.Option("--prompts", help="Or a file: text, JSONL (prompt) or CSV (caption); or our sets images, videos."),
]
Count = Annotated[int | None, typer.Option("--count", "-n", min=1, help="How many of these prompts to use.")]

CALIBRATION_PROMPTS = 32
MANY_PROMPTS = 256  # more than a search gains from; a data set's captions, perhaps


def check_model(model: str, lora: str | None = None, lora_scale: float = 1.0) -> None:
    """Refuse a name that can be no model, and a LoRA that is not there."""
    from budcache import models

    models.check(model, lora, lora_scale)


def open_pipeline(
    model: str, device: str | None, dtype: Dtype | None, lora: str | None = None, lora_scale: float = 1.0
) -> Any:
    """Load a pipeline onto the best device there is."""
    import torch

    from budcache import models
    from budcache.pipeline.placing import realigned

    if device is None:
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    numbers = dtype or ("float32" if device == "cpu" else "bfloat16")
    _quiet()
    pipe = realigned(models.load(model, dtype=getattr(torch, numbers), lora=lora, lora_scale=lora_scale))
    if model in models.EMBEDDED and device == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        # Threads wait for each other by spinning. A tiny model gains little by a second one, and where another program
        # wants the core it loses ten times as much.
        torch.set_num_threads(1)
    try:
        return pipe.to(device)
    except (RuntimeError, AssertionError, ValueError) as error:
        raise PipelineError(
            f"{model} cannot run on {device!r}: {first_line(error)}. Choose another --device."
        ) from None


def workers_for(where: str | None, count: int | None, cpus: float | None, gpus: float | None) -> Workers | None:
    """The workers that were asked for, if any were."""
    from budcache.workers import Workers
    from budcache.workers.cluster import engine

    if where is None:
        for name, value in (("worker-count", count), ("cpus-per-worker", cpus), ("gpus-per-worker", gpus)):
            if value is not None:
                raise SearchError(f"--{name} is {value:g}, but there are no workers. Add --workers ray.")
        return None
    if where not in ("ray", "auto") and ":" not in where:
        raise SearchError(
            f"--workers {quote(where)} is no cluster. Write ray to start one here, or auto, HOST:PORT or "
            "ray://HOST:PORT for a running one."
        )
    found = Workers(count, None if where == "ray" else where, 1 if cpus is None else cpus, gpus)
    # Ray tells of workers and machines that died on the standard output, where only results belong. And it tries an
    # address that does not want us twenty times, with a warning each. It reads both when it is imported.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    if where != "ray":
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")
    engine()
    return found


@contextmanager
def opened_pipeline(
    model: str,
    device: str | None,
    dtype: Dtype | None,
    lora: str | None = None,
    lora_scale: float = 1.0,
    *,
    workers: Workers | None,
    most: int,
    watch: Watch,
    job: JobName,
) -> Iterator[Any]:
    """The pipeline in this process, or with workers, each of whom loads it in the same way."""
    if workers is None:
        yield open_pipeline(model, device, dtype, lora, lora_scale)
        return
    with workers.started(loader(model, device, dtype, lora, lora_scale), most=most, watch=watch, job=job) as team:
        yield team


def loader(
    model: str, device: str | None, dtype: Dtype | None, lora: str | None, lora_scale: float
) -> Callable[[], Any]:
    """What loads the same pipeline in another process, which may be in another folder."""
    from budcache.models import located
    from budcache.models.loras import embedded

    lora = None if lora is None else located(lora, embedded(model))
    return functools.partial(open_pipeline, located(model), device, dtype, lora, lora_scale)


def _quiet() -> None:
    """Silence what the libraries below say to their own developers."""
    import diffusers
    import transformers

    diffusers.utils.logging.set_verbosity_error()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    diffusers.utils.logging.disable_progress_bar()
    warnings.filterwarnings("ignore", category=FutureWarning)


def several_guidances(text: str | None) -> list[float]:
    """`3.5`, or `1.5,3.5,7`."""
    found: list[float] = []
    for part in text.split(",") if text is not None else ():
        try:
            found.append(float(part))
        except ValueError:
            raise SearchError(
                f"--guidance {quote(text)} cannot be read. Write one number, or several as 1.5,3.5,7."
            ) from None
        if not math.isfinite(found[-1]):
            raise SearchError(f"--guidance is {found[-1]}. Give a finite number.")
    return found


def samples_for(
    pipe: Any, texts: Sequence[str], guidances: Sequence[float], **wanted: Any
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Calibration samples of prompts: several guidance scales take turns. And the settings that all share."""
    shared = settings_for(pipe, **wanted, guidance_scale=guidances[0] if len(guidances) == 1 else None)
    if len(guidances) < 2:
        return [{"prompt": text} for text in texts], shared
    settings_for(pipe, guidance_scale=guidances[0])  # which is refused where there is no such argument
    return [{"prompt": text, "guidance_scale": guidances[i % len(guidances)]} for i, text in enumerate(texts)], shared


def settings_for(pipe: Any, **wanted: Any) -> dict[str, Any]:
    """The given settings, refused where the pipeline has no such argument."""
    known = taken_of(pipe)
    given = {name: value for name, value in wanted.items() if value is not None}
    for name in given:
        if name not in known.names:
            raise PipelineError(f"{known.kind} takes no {name}. Leave that option out.")
    return given


@contextmanager
def pipeline_refusals(pipe: Any) -> Iterator[None]:
    """What the pipeline itself refuses, as a sentence; budcache's own sentences stay as they are."""
    try:
        yield
    except BudcacheError:
        raise
    except (ValueError, TypeError, RuntimeError) as error:
        raise PipelineError(f"{taken_of(pipe).kind} failed: {first_line(error)}.") from error


def check_writable(path: Path) -> None:
    """Fail before the work, not after it."""
    if path.is_dir():
        raise FileError(f"{path} is a folder. Name a file in it with --out.")
    if path.exists() and not path.is_file():
        raise FileError(f"{path} is a device, not a file. Choose another --out.")
    if path.parent.exists() and not path.parent.is_dir():
        raise FileError(f"{path} cannot be written: {path.parent} is a file, not a folder. Choose another --out.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        probe = path.parent / f".{path.name}.probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise FileError(f"{path} cannot be written: {error.strerror or error}. Choose another --out.") from None


def say(text: str, console: Console = out) -> None:
    """Print what users wrote as they wrote it: no markup in it, and no line broken within a path."""
    console.print(text, markup=False, soft_wrap=True)


def as_typed(lora: str | None, lora_scale: float) -> str:
    """The options of a LoRA, for a command that is shown to be copied."""
    scale = "" if lora_scale == 1 else f" --lora-scale {lora_scale:g}"
    return "" if lora is None else f" --lora {shlex.quote(lora)}{scale}"


def first_line(error: BaseException) -> str:
    """What an error of another library says first."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def first_prompts(found: list[str], count: int | None, source: Path | str) -> list[str]:
    """As many prompts as were asked for; all of them if none were."""
    if count is not None and 0 < len(found) < count:
        raise SearchError(f"--count is {count}, but {source} has {len(found)} prompts. Lower it, or write more.")
    return found[:count]


def calibration_prompts(
    model: str, given: list[str], file: Path | None, count: int | None, usual: int = CALIBRATION_PROMPTS
) -> list[str]:
    """The prompts that were given, or the first of those that come with an embedded model."""
    from budcache import models

    if given and file is not None:
        raise SearchError("--prompt and --prompts were both given. Use one of them.")
    if file is not None:
        found = read_prompts(file)
        if count is None and len(found) > MANY_PROMPTS:
            tell(f"calibrating on all {len(found)} prompts of {file}; --count {usual} takes the first {usual}.")
        return first_prompts(found, count, file)
    if not given and model in models.EMBEDDED:
        found = models.prompts(model, "calibration")
        return found[:usual] if count is None else first_prompts(found, count, model)
    if not given:
        raise SearchError("there are no prompts to calibrate on. Give --prompt a few times, or a file with --prompts.")
    return first_prompts(given, count, "--prompt")


def draw(path: Path, *panels: Callable[[Any], None]) -> None:
    """Draw panels beside each other into a file."""
    from budcache.report import plots

    check_writable(path)
    try:
        plots.save(path, *panels)
    except ValueError as error:
        raise PipelineError(f"{path} cannot be drawn: {first_line(error)}. Choose a name that ends in .png.") from None
    say(f"drawn to {path}", err)
