"""`budcache align`: all numbers of policies moved together, without gradients or by Algorithm 3."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from budcache.cli.bar import Bar, tell_cost
from budcache.cli.common import (
    Count,
    CpusPerWorker,
    Device,
    Frames,
    GpusPerWorker,
    Guidances,
    Height,
    Json,
    LoraOption,
    Negative,
    Numbers,
    Prompt,
    PromptFile,
    StateMemory,
    Width,
    WorkerCount,
    WorkersOption,
    calibration_prompts,
    command,
    draw,
    opened_pipeline,
    pipeline_refusals,
    samples_for,
    several_guidances,
    workers_for,
)
from budcache.cli.refine import (
    Budgets,
    DryRun,
    LadderArgument,
    LoraScale,
    Model,
    Out,
    Plot,
    Seed,
    Selection,
    Teacher,
    Work,
)
from budcache.cli.rungs import Force
from budcache.events import Event, Planned, Updated
from budcache.jobs.align import align as align_policies
from budcache.jobs.config import AlignConfig, AlignMethod
from budcache.jobs.estimate import align_phases, put_aside
from budcache.options import bytes_of
from budcache.samples.samples import runs_of, split, take_samples

PAPER_PROMPTS, NEWTON_PROMPTS = 100, 24
RATES, MEANS = "1e-3 as in the paper; 1e-2 with blend weights", "arithmetic as in the paper; geometric with weights"


@command
def align(
    ladder: LadderArgument,
    model: Model = None,
    lora: LoraOption = None,
    lora_scale: LoraScale = None,
    out_path: Out = None,
    budgets: Budgets = None,
    prompt: Prompt = None,
    prompts: PromptFile = None,
    count: Count = None,
    method: Annotated[
        AlignMethod | None,
        typer.Option(
            help="gauss-newton moves weights, by forward runs; gradient learns noise levels (Algorithm 3).",
            show_default="gauss-newton for fitted policies",
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Samples to run at once, with gauss-newton.")] = 1,
    epochs: Annotated[int, typer.Option(min=1, help="Gradient: how often to go through the prompts.")] = 1,
    rate: Annotated[
        float | None, typer.Option(help="Gradient: AdamW's learning rate; it falls along a cosine.", show_default=RATES)
    ] = None,
    mean: Annotated[
        Literal["arithmetic", "geometric"] | None,
        typer.Option(help="Gradient: which mean of the prompts' errors is made small.", show_default=MEANS),
    ] = None,
    every: Annotated[int, typer.Option(min=1, help="Gradient: updates between looks at the held-out loss.")] = 10,
    objective: Annotated[Literal["latent", "pixel"], typer.Option(help="What to keep small.")] = "latent",
    autocast: Annotated[Literal["bfloat16"] | None, typer.Option(help="Run the model in this format.")] = None,
    teacher_steps: Teacher = None,
    state_memory: StateMemory = "2G",
    seed: Seed = 0,
    selection: Selection = None,
    height: Height = None,
    width: Width = None,
    frames: Frames = None,
    guidance: Guidances = None,
    negative: Negative = None,
    ledger: Annotated[Path | None, typer.Option(help="Default: beside --out, ending in .ledger.jsonl.")] = None,
    plot: Plot = None,
    force: Force = False,
    dry_run: DryRun = False,
    device: Device = None,
    dtype: Numbers = None,
    workers: WorkersOption = None,
    worker_count: WorkerCount = None,
    cpus_per_worker: CpusPerWorker = None,
    gpus_per_worker: GpusPerWorker = None,
    as_json: Json = False,
) -> None:
    """Move all numbers of policies together, without gradients or by Algorithm 3; killed, the same command goes on."""
    from budcache.report import plots

    work = Work(ladder, model, lora, lora_scale, out_path, budgets, "align", force, as_json)
    guidances = several_guidances(guidance)
    config = AlignConfig(
        *(work.ladder, epochs, rate, mean, every, objective, autocast, teacher_steps, seed, selection, method, batch)
    )
    usual = PAPER_PROMPTS if config.way == "gradient" else NEWTON_PROMPTS
    texts = calibration_prompts(work.model, prompt or [], prompts, count, usual)
    memory = bytes_of(state_memory)
    split(texts, put_aside(len(texts), selection))
    if dry_run:
        tell_cost(Planned("align", align_phases(config, len(texts))), as_json)
        return
    wanted = {"height": height, "width": width, "num_frames": frames, "negative_prompt": negative}
    losses: dict[str, list[Updated]] = {}
    hands, most = workers_for(workers, worker_count, cpus_per_worker, gpus_per_worker), runs_of(texts, batch)
    if hands is not None:
        config.check_workers()
    with (
        Bar(quiet=as_json) as bar,
        opened_pipeline(
            work.model, device, dtype, *work.lora, workers=hands, most=most, watch=bar, job="align"
        ) as pipe,
        pipeline_refusals(pipe),
    ):
        samples, settings = samples_for(pipe, texts, guidances, **wanted)
        work.check(pipe, take_samples((), samples, settings), teacher_steps)

        def watch(event: Event) -> None:
            bar(event)
            if isinstance(event, Updated):
                losses.setdefault(f"{event.budget} calls", []).append(event)

        found = align_policies(
            pipe,
            work.ladder,
            samples=samples,
            call=settings,
            seed=seed,
            selection=selection,
            method=config.way,
            batch=batch,
            epochs=epochs,
            rate=rate,
            mean=mean,
            every=every,
            objective=objective,
            autocast=autocast,
            teacher_steps=teacher_steps,
            state_memory=memory,
            ledger=ledger or work.out.with_suffix(".ledger.jsonl"),
            progress=False,
            watch=watch,
        )
    work.done(found)
    if plot is not None:
        origin = found.rungs[0].origin
        reference = origin.levels or None if origin is not None else None
        schedules = {f"{rung.budget} calls": rung.sigmas for rung in found}
        draw(plot, lambda axes: plots.sigmas(axes, reference, schedules), lambda axes: plots.losses(axes, losses))
