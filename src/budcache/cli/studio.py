"""`budcache studio`: look, find, compare and take away, in a browser."""

from __future__ import annotations

import importlib.util
import os
import signal
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from budcache.cli.common import (
    Device,
    Fps,
    Frames,
    Guidance,
    Height,
    LoraOption,
    LoraScale,
    Negative,
    Numbers,
    Width,
    check_model,
    command,
    loader,
    say,
    tell,
)
from budcache.errors import PipelineError


@command
def studio(
    model: Annotated[str, typer.Argument(help="An embedded name, a local folder, or a hub id.")] = "tiny-flux",
    policy: Annotated[
        Path | None, typer.Option(help="A ladder to begin with: a file, or owner/name on the hub.")
    ] = None,
    project: Annotated[
        Path | None,
        typer.Option(help="The folder that keeps everything.", show_default="studio/ and the model's name"),
    ] = None,
    host: Annotated[str, typer.Option(help="Where to listen; any but this machine wants a password.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 7860,
    password: Annotated[
        str | None,
        typer.Option(envvar="BUDCACHE_STUDIO_PASSWORD", help="What browsers are asked for."),
    ] = None,
    browse: Annotated[bool, typer.Option("--open/--no-open", help="Open it in the browser.")] = True,
    lora: LoraOption = None,
    lora_scale: LoraScale = 1.0,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps of the full run.", show_default="the ladder's, or the model's")
    ] = None,
    height: Height = None,
    width: Width = None,
    frames: Frames = None,
    fps: Fps = 16,
    guidance: Guidance = None,
    negative: Negative = None,
    device: Device = None,
    dtype: Numbers = None,
) -> None:
    """Look, find, compare and take away in a browser; on this machine only, and without a network."""
    check_model(model, lora, lora_scale)
    _check_installed()
    from budcache.policy import Ladder
    from budcache.studio.project import safe
    from budcache.studio.server import Server, check_host
    from budcache.studio.studio import Studio

    check_host(host, password)
    given = None if policy is None else (policy.stem, Ladder.load(policy))
    wanted = {
        "height": height,
        "width": width,
        "num_frames": frames,
        "guidance_scale": guidance,
        "negative_prompt": negative,
    }
    behind = Studio(
        model,
        loader(model, device, dtype, lora, lora_scale),
        project or Path("studio") / safe(model),
        call={name: value for name, value in wanted.items() if value is not None},
        steps=steps,
        policy=given,
        lora=lora,
        lora_scale=lora_scale,
        fps=fps,
    )
    if given is not None and behind.policy != safe(given[0]):
        tell(f"the project has another ladder {safe(given[0])}. {policy} is kept beside it, as {behind.policy}.")

    def ready(address: str) -> None:
        say(f"budcache studio on {address}  (Ctrl-C ends it; {behind.project.path} keeps everything)")
        if browse:
            webbrowser.open(address)

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whatever ends it, jobs end cleanly and can be resumed
    Server(behind, host, port, password).run(ready)


def _check_installed() -> None:
    # Said before Gradio and FastAPI are imported, which would read it: nothing is told to anybody.
    os.environ |= {"GRADIO_ANALYTICS_ENABLED": "False", "FASTAPI_OTEL_AUTO_CONFIGURE": "false"}
    if importlib.util.find_spec("gradio") is None:
        raise PipelineError("the studio needs Gradio, which is not installed. Install budcache[studio].")
