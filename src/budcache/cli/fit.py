"""`budcache fit`: the reuse of masks that were found, fitted in closed form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, TypeVar

import typer

from budcache.cli.bar import Bar, tell_cost
from budcache.cli.common import (
    Across,
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
from budcache.errors import SearchError
from budcache.events import Planned
from budcache.jobs.config import FitConfig
from budcache.jobs.estimate import fit_phases
from budcache.jobs.fit import fit as fit_policies
from budcache.jobs.fit import fitted_on
from budcache.options import bytes_of
from budcache.rows import MAX_BLEND
from budcache.samples.samples import runs_of, take_samples
from budcache.wording import quote

N = TypeVar("N", int, float)


@command
def fit(
    ladder: LadderArgument,
    model: Model = None,
    lora: LoraOption = None,
    lora_scale: LoraScale = None,
    out_path: Out = None,
    budgets: Budgets = None,
    prompt: Prompt = None,
    prompts: PromptFile = None,
    count: Count = None,
    outputs: Annotated[str, typer.Option(help="How many outputs to blend: the best of these.")] = "all,3",
    ridges: Annotated[str, typer.Option(help="Pull towards plain reuse: the best of these.")] = "1e-3,1e-4,1e-2",
    features: Annotated[
        bool | None,
        typer.Option(help="Let weights look at the sample.", show_default="where settings differ among samples"),
    ] = None,
    target: Annotated[Literal["next", "final"], typer.Option(help="The teacher's latent to come near to.")] = "next",
    teacher_steps: Teacher = None,
    state_memory: StateMemory = "2G",
    across: Across = False,
    seed: Seed = 0,
    selection: Selection = None,
    batch: Annotated[int, typer.Option(min=1, help="Samples to run at once.")] = 1,
    height: Height = None,
    width: Width = None,
    frames: Frames = None,
    guidance: Guidances = None,
    negative: Negative = None,
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
    """Fit the reuse of masks in closed form: blends of past outputs instead of repeats of the last one."""
    from budcache.report import plots

    work = Work(ladder, model, lora, lora_scale, out_path, budgets, "fit", force, as_json)
    guidances = several_guidances(guidance)
    texts = calibration_prompts(work.model, prompt or [], prompts, count)
    # What can be refused without the model is refused before it is loaded.
    fitted_on(texts, selection)
    memory = bytes_of(state_memory)
    blends, pulls = _numbers(outputs, "--outputs", _outputs), _numbers(ridges, "--ridges", float)
    config = FitConfig(
        work.ladder, tuple(blends), tuple(pulls), target, teacher_steps, seed, selection, batch, features
    )
    if dry_run:
        tell_cost(Planned("fit", fit_phases(config, len(texts))), as_json)
        return
    wanted = {"height": height, "width": width, "num_frames": frames, "negative_prompt": negative}
    hands, most = workers_for(workers, worker_count, cpus_per_worker, gpus_per_worker), runs_of(texts, batch)
    with (
        Bar(quiet=as_json) as bar,
        opened_pipeline(work.model, device, dtype, *work.lora, workers=hands, most=most, watch=bar, job="fit") as pipe,
        pipeline_refusals(pipe),
    ):
        samples, settings = samples_for(pipe, texts, guidances, **wanted)
        work.check(pipe, take_samples((), samples, settings), teacher_steps)
        found = fit_policies(
            pipe,
            work.ladder,
            samples=samples,
            call=settings,
            seed=seed,
            selection=selection,
            batch=batch,
            outputs=blends,
            ridges=pulls,
            features=features,
            target=target,
            teacher_steps=teacher_steps,
            state_memory=memory,
            across=across,
            progress=False,
            watch=bar,
        )
    work.done(found)
    if plot is not None:
        draw(plot, lambda axes: plots.weights(axes, {f"{rung.budget} calls": rung for rung in found}))


def _outputs(text: str) -> int:
    """A number of outputs; `all` is as many as a policy may have."""
    return MAX_BLEND if text.strip() == "all" else int(text)


def _numbers(text: str, option: str, kind: Callable[[str], N]) -> list[N]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise SearchError(f"{option} {quote(text)} cannot be read. Write numbers with commas between them.") from None
