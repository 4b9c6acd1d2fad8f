"""`budcache fit` and `budcache align`: make more of masks that were found."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from budcache.chosen import load
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
    check_model,
    command,
    draw,
    opened_pipeline,
    out,
    pipeline_refusals,
    samples_for,
    say,
    several_guidances,
    workers_for,
)
from budcache.cli.rungs import Force, Output, say_what_was_there
from budcache.errors import PolicyError, SearchError
from budcache.events import Event, Planned, Updated
from budcache.jobs.align import align as align_policies
from budcache.jobs.config import AlignConfig, AlignMethod, FitConfig
from budcache.jobs.estimate import align_phases, fit_phases, put_aside
from budcache.jobs.fit import fit as fit_policies
from budcache.jobs.refining import origin_after
from budcache.jobs.setup import about_of
from budcache.options import bytes_of, parse_budgets
from budcache.policy import Ladder, Origin, Policy
from budcache.rows import MAX_BLEND
from budcache.samples.samples import runs_of, split, take_samples
from budcache.wording import quote

LadderArgument = Annotated[Path, typer.Argument(help="A policy or ladder: a file, or owner/name on the hub.")]
Model = Annotated[str | None, typer.Option(help="An embedded name, a folder or a hub id; default: the file's own.")]
LoraScale = Annotated[float | None, typer.Option(help="How strongly it works.", show_default="1")]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "-o",
        help="Default: beside it, ending in .fit.json or .align.json. A ladder that is there gets the new rungs.",
    ),
]
Budgets = Annotated[str | None, typer.Option("--budgets", "--budget", "-b", help="Only these rungs: 8, or 5,6.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the first sample.")]
Selection = Annotated[int | None, typer.Option(min=1, help="Samples kept for choosing.")]
Teacher = Annotated[int | None, typer.Option(min=1, help="Steps of the teacher; default: those of the file.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what it will cost, and stop.")]
Plot = Annotated[Path | None, typer.Option(help="Also draw what was learned, as PNG.")]
PAPER_PROMPTS, NEWTON_PROMPTS = 100, 24
RATES, MEANS = "1e-3 as in the paper; 1e-2 with blend weights", "arithmetic as in the paper; geometric with weights"
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

    work = _Work(ladder, model, lora, lora_scale, out_path, budgets, "fit", force, as_json)
    guidances = several_guidances(guidance)
    texts = calibration_prompts(work.model, prompt or [], prompts, count)
    # What can be refused without the model is refused before it is loaded.
    split(texts, selection)
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
        opened_pipeline(work.model, device, dtype, *work.lora, workers=hands, most=most, watch=bar) as pipe,
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
            state_memory=bytes_of(state_memory),
            across=across,
            progress=False,
            watch=bar,
        )
    work.done(found)
    if plot is not None:
        draw(plot, lambda axes: plots.weights(axes, {f"{rung.budget} calls": rung for rung in found}))


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

    work = _Work(ladder, model, lora, lora_scale, out_path, budgets, "align", force, as_json)
    guidances = several_guidances(guidance)
    config = AlignConfig(
        *(work.ladder, epochs, rate, mean, every, objective, autocast, teacher_steps, seed, selection, method, batch)
    )
    most = PAPER_PROMPTS if config.way == "gradient" else NEWTON_PROMPTS
    texts = calibration_prompts(work.model, prompt or [], prompts, count, most)
    split(texts, put_aside(len(texts), selection))
    if dry_run:
        tell_cost(Planned("align", align_phases(config, len(texts))), as_json)
        return
    wanted = {"height": height, "width": width, "num_frames": frames, "negative_prompt": negative}
    losses: dict[str, list[Updated]] = {}
    hands, most = workers_for(workers, worker_count, cpus_per_worker, gpus_per_worker), runs_of(texts, batch)
    with (
        Bar(quiet=as_json) as bar,
        opened_pipeline(work.model, device, dtype, *work.lora, workers=hands, most=most, watch=bar) as pipe,
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
            state_memory=bytes_of(state_memory),
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


class _Work:
    """What both commands do before and after: the file to refine, and the file that comes of it."""

    def __init__(
        self,
        file: Path,
        model: str | None,
        lora: str | None,
        lora_scale: float | None,
        out_path: Path | None,
        budgets: str | None,
        verb: str,
        force: bool,
        as_json: bool,
    ) -> None:
        self.single = isinstance(load(file), Policy)
        whole = Ladder.load(file)
        self.ladder = whole if budgets is None else Ladder.of([whole[budget] for budget in parse_budgets(budgets)])
        origin = self.ladder.rungs[0].origin
        found = model or (origin and origin.model)
        if not found:
            raise PolicyError(f"{file} does not say what model it is for. Name it with --model.")
        self.model: str = found
        self.lora = _lora(file, self.model, origin, lora, lora_scale)
        if self.lora != (None, 1.0):
            check_model(self.model, *self.lora)
        self.verb, self.as_json, self.begin = verb, as_json, time.perf_counter()
        beside = file.with_suffix(f".{verb}.json")  # or here, if it is the hub's
        self.out = out_path or (beside if file.exists() else Path(beside.name))
        self.into = Output(self.out, force)

    def check(self, pipe: Any, samples: list[dict[str, Any]], teacher_steps: int | None) -> None:
        """Refuse, before the work, to write into a ladder that the new rungs do not belong to."""
        here = about_of(pipe).origin
        origins = {rung.budget: origin_after(here, rung, samples, teacher_steps) for rung in self.ladder}
        rungs = [rung.model_copy(update={"origin": origins[rung.budget]}) for rung in self.ladder]
        self.into.check(Ladder.of(rungs), {"align": "alignment"}.get(self.verb, self.verb))

    def done(self, found: Ladder) -> None:
        """Save, and tell."""
        from budcache.report.text import describe

        written = self.into.write(found, single=self.single)
        seconds = time.perf_counter() - self.begin
        if self.as_json:
            gains = {rung.budget: rung.refined[-1].gain for rung in found}
            facts = {"ladder": str(self.out), "seconds": seconds, "gain": gains, "all_budgets": written.budgets}
            print(json.dumps(facts))
            return
        out.print(describe(found.rungs[0] if self.single else found))
        say(f"\n{self.out}  {seconds:.1f} s")
        say_what_was_there(found, written)


def _lora(
    file: Path, model: str, origin: Origin | None, lora: str | None, scale: float | None
) -> tuple[str | None, float]:
    """The LoRA that was asked for; else the one that a file was made with, where it comes with the model."""
    from budcache.models.loras import embedded

    made_with = origin.adapters if origin is not None else ()
    if lora is not None or not made_with:
        return lora, 1.0 if scale is None else scale
    name, _, rest = made_with[0].partition(" (")
    if len(made_with) > 1 or name not in embedded(model) or " to " in rest:
        raise PolicyError(f"{file} was made with adapters: {', '.join(made_with)}. Name the LoRA with --lora.")
    return name, float(rest.partition(" at ")[2] or 1.0) if scale is None else scale


def _outputs(text: str) -> int:
    """A number of outputs; `all` is as many as a policy may have."""
    return MAX_BLEND if text.strip() == "all" else int(text)


def _numbers(text: str, option: str, kind: Callable[[str], N]) -> list[N]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise SearchError(f"{option} {quote(text)} cannot be read. Write numbers with commas between them.") from None
