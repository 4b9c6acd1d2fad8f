"""`budcache search`: find the policies of one or several budgets."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal

import typer
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from budcache.cli.common import (
    Count,
    Device,
    Frames,
    Guidance,
    Height,
    Json,
    ModelArgument,
    Negative,
    Numbers,
    Prompt,
    PromptFile,
    Width,
    calibration_prompts,
    check_writable,
    command,
    err,
    open_pipeline,
    out,
    pipeline_refusals,
    say,
    settings_for,
)
from budcache.errors import SearchError
from budcache.jobs import check_budgets, search_in_full
from budcache.jobs.job import check_teacher, split
from budcache.jobs.search import CHOOSING, POLISH, ROUNDS, TEACHING
from budcache.mask import MAX_STEPS
from budcache.policy import Reuse
from budcache.strategies import (
    STRATEGIES,
    Evaluated,
    LadderSearch,
    Limits,
    Strategy,
    strategy,
)
from budcache.wording import quote, several


@command
def search(
    model: ModelArgument,
    budgets: Annotated[str, typer.Option("--budgets", "--budget", "-b", help="Model calls: 8, or 5,6,8, or 4-12.")],
    steps: Annotated[int, typer.Option(min=1, help="Steps of the full run.")] = 28,
    out_path: Annotated[Path, typer.Option("--out", "-o", help="Where to write the ladder.")] = Path("ladder.json"),
    prompt: Prompt = None,
    prompts: PromptFile = None,
    count: Count = None,
    strategy_name: Annotated[
        str, typer.Option("--strategy", help=f"One of {', '.join(STRATEGIES)}; or anneal-r3-sa50, and so on.")
    ] = "ladder",
    beam: Annotated[int, typer.Option(min=1, help="Ladder: arrivals kept per step.")] = 1,
    polish: Annotated[int | None, typer.Option(min=0, help="Climb from each rung by moves this far.")] = None,
    rounds: Annotated[
        int, typer.Option(min=0, help="Moves of that climb at most; 0: until nothing improves.")
    ] = ROUNDS,
    fit: Annotated[bool | None, typer.Option("--fit/--plain", help="Fit the reuse in closed form, or not.")] = None,
    teacher_steps: Annotated[
        int | None, typer.Option(min=1, help="Steps of a teacher finer than the full run.")
    ] = None,
    reuse: Annotated[Reuse, typer.Option(help="What reused steps repeat.")] = "output",
    objective: Annotated[Literal["latent", "pixel"], typer.Option(help="What to keep small.")] = "latent",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search and of the first sample.")] = 0,
    selection: Annotated[int | None, typer.Option(min=0, help="Samples kept for judging finalists.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Samples to run at once.")] = 1,
    height: Height = None,
    width: Width = None,
    frames: Frames = None,
    guidance: Guidance = None,
    negative: Negative = None,
    max_calls: Annotated[int | None, typer.Option(min=1, help="Stop searching after so many sample-calls.")] = None,
    max_seconds: Annotated[float | None, typer.Option(min=0, help="Stop searching after so many seconds.")] = None,
    max_evaluations: Annotated[int | None, typer.Option(min=1, help="Stop searching after so many masks.")] = None,
    state_memory: Annotated[str, typer.Option(help="For remembered states: 500M, 2G, 0.")] = "2G",
    ledger: Annotated[Path | None, typer.Option(help="Default: beside --out, ending in .ledger.jsonl.")] = None,
    device: Device = None,
    dtype: Numbers = None,
    as_json: Json = False,
) -> None:
    """Find the policies of one or several budgets from a few prompts; killed, the same command goes on."""
    fit = reuse == "output" if fit is None else fit
    wanted, plan = parse_budgets(budgets), _plan(strategy_name, beam)
    check_budgets(wanted, steps)
    texts = calibration_prompts(model, prompt or [], prompts, count)
    # What can be refused without the model is refused before it is loaded.
    split(texts, selection)
    check_teacher(steps, teacher_steps)
    next(plan.propose(steps, tuple(wanted), Random(seed)), None)
    memory = parse_bytes(state_memory)
    check_writable(out_path)
    kept = ledger or out_path.with_suffix(".ledger.jsonl")
    pipe = open_pipeline(model, device, dtype)
    settings = settings_for(
        pipe, height=height, width=width, num_frames=frames, guidance_scale=guidance, negative_prompt=negative
    )
    begin = time.perf_counter()
    shown = Bar(masks_of(plan, steps, wanted, fit), as_json or not err.is_terminal, len(wanted))
    with shown as bar, pipeline_refusals(pipe):
        result = search_in_full(
            pipe,
            steps=steps,
            budgets=wanted,
            prompts=texts,
            strategy=plan,
            reuse=reuse,
            fit=fit,
            polish=POLISH if polish is None else polish,
            rounds=rounds or None,
            teacher_steps=teacher_steps,
            objective=objective,
            seed=seed,
            selection=selection,
            batch=batch,
            limits=Limits(max_calls, max_seconds, max_evaluations),
            ledger=kept,
            state_memory=memory,
            watch=bar.advance,
            **settings,
        )
    seconds = time.perf_counter() - begin
    stopped = result.found.stopped or (result.fitted.stopped if result.fitted else None)
    result.ladder.save(out_path)
    if as_json:
        facts: dict[str, Any] = {
            "ladder": str(out_path),
            "ledger": str(kept),
            "calls": result.calls,
            "seconds": seconds,
        }
        print(json.dumps(facts | {"stopped": stopped, "budgets": result.ladder.budgets}))
        return
    from budcache.report.text import describe

    out.print(describe(result.ladder))
    if stopped is not None:
        out.print(f"stopped early at the {stopped}")
    before = f" ({result.earlier} of them in runs before this one)" if result.earlier else ""
    say(f"\n{out_path}  {result.calls} sample-calls{before}, {seconds:.1f} s; history in {kept}")
    say(f"  budcache generate {model} --policy {out_path} --budget {result.ladder.budgets[-1]} --prompt ...")


class Bar:
    """A live bar: phase, best loss so far, calls spent, time left."""

    def __init__(self, total: int | None, disable: bool, budgets: int | None = None) -> None:
        texts = [TextColumn(text) for text in ("{task.description}", "{task.fields[note]}", "left")]
        columns = (SpinnerColumn(), texts[0], BarColumn(), texts[1], TimeRemainingColumn(), texts[2])
        self.progress = Progress(*columns, console=err, transient=True, disable=disable)
        self.total, self.budgets, self.chosen, self.scored = total, budgets, 0, 0
        self.best: dict[int, float] = {}

    def __enter__(self) -> Bar:
        self.progress.start()
        self.task = self.progress.add_task("full runs", total=self.total, note="")
        return self

    def __exit__(self, *exception: object) -> None:
        self.progress.stop()

    def advance(self, step: Evaluated) -> None:
        """Show one evaluation; choosing, for which masks are fitted and judged anew, has a bar of its own."""
        budget = step.mask.budget
        if step.phase == TEACHING:
            self.progress.update(self.task, note=f"{step.calls} sample-calls")
            return
        if step.phase == CHOOSING:
            if self.chosen == 0:
                self.progress.reset(self.task, total=self.budgets)
            note = f"{several(budget, 'call')}, {step.calls} sample-calls"
            self.progress.update(self.task, description=step.phase, note=note, completed=self.chosen)
            self.chosen += 1
            return
        self.best[budget] = min(step.loss, self.best.get(budget, step.loss))
        self.scored += step.new
        if self.total is not None and self.scored >= self.total:  # a climb takes longer than was thought
            self.total = self.scored + max(1, self.scored // 10)
            self.progress.update(self.task, total=self.total)
        note = f"{several(budget, 'call')}: best loss {self.best[budget]:.3g}, {step.calls} sample-calls"
        self.progress.update(self.task, description=step.phase, note=note, advance=int(step.new))


def parse_budgets(text: str) -> list[int]:
    """`8`, `5,6,8` or `4-12`, or a mixture."""
    budgets: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        ends = [end for end in (low, high if dash else low) if end.isdecimal() and len(end) < 10]
        if len(ends) < 2 or int(ends[1]) < int(ends[0]):
            raise SearchError(f"budgets {quote(text)} cannot be read. Write them as 8, as 5,6,8 or as 4-12.")
        # One beyond what is possible is enough to be refused.
        budgets.update(range(int(ends[0]), min(int(ends[1]), max(int(ends[0]), MAX_STEPS + 1)) + 1))
    return sorted(budgets)


def parse_bytes(text: str) -> int:
    """`500M` or `2G` in bytes."""
    number, unit = text.strip().upper().removesuffix("B"), 1
    if number and number[-1] in "KMG":
        unit = {"K": 10**3, "M": 10**6, "G": 10**9}[number[-1]]
        number = number[:-1]
    try:
        found = int(float(number) * unit)
    except (ValueError, OverflowError):
        found = -1
    if found < 0:
        raise SearchError(f"a memory of {quote(text)} cannot be read. Write it as 500M or 2G.")
    return found


def masks_of(plan: Strategy, steps: int, budgets: Sequence[int], fit: bool) -> int | None:
    """About how many masks a search will score, for the time that is left."""
    known = plan.expected(steps, tuple(budgets))
    if known is not None and fit:  # a ladder is climbed once more with fitted stretches, and the best are fitted
        known = (2 if isinstance(plan, LadderSearch) else 1) * known + len(budgets)
    return known


def _plan(name: str, beam: int) -> Strategy:
    plan = strategy(name)
    if isinstance(plan, LadderSearch):
        plan = replace(plan, beam=beam)
    elif beam != 1:
        raise SearchError(f"--beam belongs to the ladder, not to {name}. Leave it out.")
    return plan
