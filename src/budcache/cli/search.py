"""`budcache search`: find the policies of one or several budgets."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from budcache.aggregate import Care
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
    LoraScale,
    ModelArgument,
    Negative,
    Numbers,
    Prompt,
    PromptFile,
    StateMemory,
    Width,
    WorkerCount,
    WorkersOption,
    as_typed,
    calibration_prompts,
    check_model,
    command,
    err,
    opened_pipeline,
    out,
    pipeline_refusals,
    samples_for,
    say,
    several_guidances,
    workers_for,
)
from budcache.cli.rungs import Force, Output, say_what_was_there
from budcache.errors import SearchError
from budcache.events import Planned
from budcache.jobs.config import POLISH, ROUNDS, Refine, SearchConfig, taken_strategy
from budcache.jobs.estimate import affordable, all_masks, search_phases
from budcache.jobs.search import search as find
from budcache.jobs.searching import check_record
from budcache.mask import Mask
from budcache.options import bytes_of, parse_budgets
from budcache.policy import Ladder, Policy, Reuse
from budcache.samples.samples import runs_of
from budcache.strategies import STRATEGIES, LadderSearch, Limits, Strategy, begun_with
from budcache.wording import quote

if TYPE_CHECKING:
    from budcache.records.record import Record


@command
def search(
    model: ModelArgument,
    budgets: Annotated[str, typer.Option("--budgets", "--budget", "-b", help="Model calls: 8, or 5,6,8, or 4-12.")],
    steps: Annotated[int, typer.Option(min=1, help="Steps of the full run.")] = 28,
    out_path: Annotated[
        Path, typer.Option("--out", "-o", help="Where to write the ladder; one that is there gets the new rungs.")
    ] = Path("ladder.json"),
    lora: LoraOption = None,
    lora_scale: LoraScale = 1.0,
    prompt: Prompt = None,
    prompts: PromptFile = None,
    count: Count = None,
    strategy_name: Annotated[
        str | None,
        typer.Option(
            "--strategy",
            help=f"One of {', '.join(STRATEGIES)}; or anneal-r3-sa50, and so on.",
            show_default="exhaustive where masks are few; else paths, or ladder with residual reuse",
        ),
    ] = None,
    beam: Annotated[int, typer.Option(min=1, help="Ladder: arrivals kept per step.")] = 1,
    polish: Annotated[int, typer.Option(min=0, help="Climb from each rung by moves this far; 0: no climb.")] = POLISH,
    rounds: Annotated[
        str, typer.Option(help="Moves of that climb at most; 0: none, all: until nothing improves.")
    ] = str(ROUNDS),
    refine: Annotated[
        Refine | None,
        typer.Option(
            help="none: repeat outputs; fit: blend them in closed form; full: align all weights together, too.",
            show_default="fit; none with residual reuse",
        ),
    ] = None,
    features: Annotated[
        bool | None,
        typer.Option(help="Let weights look at the sample.", show_default="where settings differ among samples"),
    ] = None,
    teacher_steps: Annotated[
        int | None, typer.Option(min=1, help="Steps of a teacher finer than the full run.")
    ] = None,
    reuse: Annotated[Reuse, typer.Option(help="What reused steps repeat.")] = "output",
    objective: Annotated[Literal["latent", "pixel"], typer.Option(help="What to keep small.")] = "latent",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search and of the first sample.")] = 0,
    selection: Annotated[int | None, typer.Option(min=0, help="Samples kept for judging finalists.")] = None,
    care: Annotated[
        Care, typer.Option(help="What counts most: typical errors, or those of the worst samples.")
    ] = "typical",
    batch: Annotated[int, typer.Option(min=1, help="Samples to run at once.")] = 1,
    height: Height = None,
    width: Width = None,
    frames: Frames = None,
    guidance: Guidances = None,
    negative: Negative = None,
    max_calls: Annotated[int | None, typer.Option(min=1, help="Stop searching after so many sample-calls.")] = None,
    max_seconds: Annotated[float | None, typer.Option(min=0, help="Stop searching after so many seconds.")] = None,
    max_evaluations: Annotated[int | None, typer.Option(min=1, help="Stop searching after so many masks.")] = None,
    state_memory: StateMemory = "2G",
    across: Across = False,
    ledger: Annotated[Path | None, typer.Option(help="Default: beside --out, ending in .ledger.jsonl.")] = None,
    record: Annotated[
        Path | None, typer.Option(help="Full runs recorded before; paths are found from these, too.")
    ] = None,
    force: Force = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it will cost, and stop.")] = False,
    device: Device = None,
    dtype: Numbers = None,
    workers: WorkersOption = None,
    worker_count: WorkerCount = None,
    cpus_per_worker: CpusPerWorker = None,
    gpus_per_worker: GpusPerWorker = None,
    as_json: Json = False,
) -> None:
    """Find the policies of one or several budgets from a few prompts; killed, the same command goes on."""
    # What can be refused without the model is refused before it is loaded.
    check_model(model, lora, lora_scale)
    guidances, wanted_budgets = several_guidances(guidance), tuple(parse_budgets(budgets))
    features = True if features is None and len(guidances) > 1 and refine != "none" else features
    limits = Limits(max_calls, max_seconds, max_evaluations)
    every = wanted_budgets if limits == Limits() and record is None else ()  # with neither, every mask may be tried
    kept = ledger or out_path.parent / f"{out_path.stem}.ledger.jsonl"  # a folder is refused below
    config = SearchConfig(
        steps,
        wanted_budgets,
        _strategy(strategy_name, reuse, beam, steps, every, begun_with(kept)),
        reuse,
        refine,
        polish,
        parse_rounds(rounds),
        teacher_steps,
        seed,
        selection,
        batch,
        objective,
        limits,
        bytes_of(state_memory),
        care,
        features,
    )
    runs, hands = _record(record, config), workers_for(workers, worker_count, cpus_per_worker, gpus_per_worker)
    texts = calibration_prompts(model, prompt or [], prompts, count)
    if count is None and config.as_served:
        texts = _paid_for(texts, config)
    config.searched_on(len(texts))
    if dry_run:
        _tell_cost(config, len(texts), as_json)
        return
    into, begin = Output(out_path, force), time.perf_counter()
    wanted = {"height": height, "width": width, "num_frames": frames, "negative_prompt": negative}
    most = runs_of(texts, batch)
    with (
        Bar(quiet=as_json) as bar,
        opened_pipeline(
            model, device, dtype, lora, lora_scale, workers=hands, most=most, watch=bar, job="search"
        ) as pipe,
        pipeline_refusals(pipe),
    ):
        samples, settings = samples_for(pipe, texts, guidances, **wanted)
        into.check(_rungs_like(pipe, config, [{**settings, **sample} for sample in samples]), "search")
        ladder = find(
            pipe,
            steps=steps,
            budgets=config.budgets,
            samples=samples,
            call=settings,
            strategy=config.strategy,
            reuse=reuse,
            refine=refine,
            features=features,
            polish=polish,
            rounds=config.rounds,
            teacher_steps=teacher_steps,
            objective=objective,
            seed=seed,
            selection=selection,
            care=care,
            batch=batch,
            limits=config.limits,
            ledger=kept,
            record=runs,
            state_memory=config.state_memory,
            across=across,
            progress=False,
            watch=bar,
        )
    drawn = f"{model}{as_typed(lora, lora_scale)}"
    _tell(drawn, ladder, into.write(ladder), out_path, kept, time.perf_counter() - begin, as_json)


def _tell_cost(config: SearchConfig, samples: int, as_json: bool) -> None:
    """What the search will cost. The model is not loaded, so what guidance by two branches would add is said apart."""
    planned = Planned("search", search_phases(config, samples), all_masks(config))
    guided = Planned("search", search_phases(replace(config, guided=True), samples)).sample_calls
    more = guided - planned.sample_calls
    said = f"guidance by two branches (Wan, SD3, SDXL, Qwen-Image; not FLUX) adds about {more}" if more else ""
    note = "; ".join(filter(None, [planned.note, said]))
    tell_cost(replace(planned, note=note), as_json, sample_calls_with_two_branches=guided)


def _rungs_like(pipe: Any, config: SearchConfig, samples: list[dict[str, Any]]) -> Ladder:
    """A ladder that says of itself what those of this search will say."""
    from budcache.jobs.setup import Setup

    origin = Setup(pipe, config.steps, teacher_steps=config.teacher_steps).origin(samples)
    return Ladder.of([Policy(mask=Mask.full(config.steps), reuse=config.reuse, origin=origin)])


def _tell(
    model: str, ladder: Ladder, written: Ladder, out_path: Path, kept: Path, seconds: float, as_json: bool
) -> None:
    from budcache.report.text import describe

    searched = ladder.searched
    assert searched is not None
    if as_json:
        facts: dict[str, Any] = {"ladder": str(out_path), "ledger": str(kept), "calls": searched.calls}
        facts |= {"seconds": seconds, "stopped": searched.stopped, "budgets": ladder.budgets}
        print(json.dumps(facts | {"all_budgets": written.budgets}))
        return
    out.print(describe(ladder))
    if searched.stopped is not None:
        say(f"stopped early at the {searched.stopped}")
    before = f" ({searched.earlier} of them in runs before this one)" if searched.earlier else ""
    say(f"\n{out_path}  {searched.calls} sample-calls{before}, {seconds:.1f} s; history in {kept}")
    say_what_was_there(ladder, written)
    say(f"  budcache generate {model} --policy {out_path} --budget {ladder.budgets[-1]} --prompt ...")


def parse_rounds(text: str) -> int | None:
    """`3`, or `all` for no limit."""
    if text.strip() == "all":
        return None
    if not text.strip().isdecimal() or len(text.strip()) > 9:
        raise SearchError(f"--rounds {quote(text)} cannot be read. Write a number, or all.")
    return int(text)


def _paid_for(texts: list[str], config: SearchConfig) -> list[str]:
    """As many of the prompts as --max-calls pays for, where nobody said how many."""
    count = affordable(config, len(texts))
    if count < len(texts):
        say(f"{count} of {len(texts)} prompts, which is what --max-calls pays for; --count takes another number", err)
    return texts[:count]


def _record(path: Path | None, config: SearchConfig) -> Record | None:
    """The record that a search starts from, if there is to be one."""
    if path is None:
        return None
    from budcache.records.record import Record

    found = Record.load(path)
    check_record(found, config)
    return found


def _strategy(name: str | None, reuse: Reuse, beam: int, steps: int, budgets: tuple[int, ...], begun: str) -> Strategy:
    if name is None and beam != 1 and reuse == "residual":
        name = "ladder"  # which is what a beam is for
    found = taken_strategy(name, reuse, steps, budgets, begun)
    if isinstance(found, LadderSearch):
        return replace(found, beam=beam)
    if beam != 1:
        raise SearchError(f"--beam belongs to the ladder, not to {name or 'the default strategy'}. Leave it out.")
    return found
