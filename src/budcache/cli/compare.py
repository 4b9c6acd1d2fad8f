"""`budcache compare`: methods side by side at the same number of model calls."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from budcache.aggregate import Care
from budcache.cli.bar import Bar, tell_cost
from budcache.cli.common import (
    CpusPerWorker,
    Device,
    Fps,
    Frames,
    GpusPerWorker,
    Guidance,
    Height,
    Json,
    LoraOption,
    LoraScale,
    Negative,
    Numbers,
    Width,
    WorkerCount,
    WorkersOption,
    check_writable,
    command,
    loader,
    open_pipeline,
    out,
    pipeline_refusals,
    say,
    settings_for,
    workers_for,
)
from budcache.cli.prompts import prompts_of
from budcache.errors import SearchError
from budcache.events import EntryDone, Event
from budcache.options import check_budgets, parse_budgets
from budcache.policy import Ladder
from budcache.wording import several

if TYPE_CHECKING:
    from budcache.comparison import Comparison

EMBEDDED_BATCH = 8  # the embedded models are small


@command
def compare(
    model: Annotated[
        str | None,
        typer.Argument(help="An embedded name (tiny-flux), a local folder, or a hub id.", show_default=False),
    ] = None,
    budgets: Annotated[
        str | None, typer.Option("--budgets", "--budget", "-b", help="Model calls: 8, or 5,6,8, or 4-12.")
    ] = None,
    lora: LoraOption = None,
    lora_scale: LoraScale = 1.0,
    methods: Annotated[str | None, typer.Option(help="Names, by commas; default: all but the slow `authors`.")] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="What to measure on: text, JSONL (prompt), CSV (caption), or images, videos.")
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(help="Other prompts, to search and tune on; default: its own, or a third of --prompts."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of the full run.")] = 28,
    folder: Annotated[Path, typer.Option("--out", "-o", help="A folder; the same command goes on in it.")] = Path(
        "comparison"
    ),
    metrics: Annotated[
        str | None,
        typer.Option(
            help="psnr, ssim, lpips, clip-b, clip-l, imagereward, hpsv2; of videos worst-frame and steadiness, too. "
            "Default: psnr,ssim, and for videos these two."
        ),
    ] = None,
    policy: Annotated[
        list[Path] | None, typer.Option(help="A policy or ladder to compare, too: a file, or owner/name.")
    ] = None,
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", min=1, help="How many of the prompts to measure on; 16 of a model's own."),
    ] = None,
    calibration_count: Annotated[
        int | None,
        typer.Option(
            min=2, help="How many prompts to search and tune on; default: all of --calibration, else at most 32."
        ),
    ] = None,
    timed: Annotated[
        str | None, typer.Option(help="Methods to time, by commas, or none; default: all, 20 to 90 pairs of runs each.")
    ] = None,
    care: Annotated[
        Care,
        typer.Option(help="What our search and the choice of others' settings go by: typical errors, or the worst."),
    ] = "typical",
    chosen: Annotated[
        Path | None,
        typer.Option("--settings", help="Other methods' settings, chosen before: a comparison's settings.json."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**62, help="Of the search; samples are drawn from others.")] = 0,
    batch: Annotated[int | None, typer.Option(min=1, help="Samples at once while searching.")] = None,
    height: Height = None,
    width: Width = None,
    frames: Frames = None,
    fps: Fps = 16,
    guidance: Guidance = None,
    negative: Negative = None,
    device: Device = None,
    dtype: Numbers = None,
    workers: WorkersOption = None,
    worker_count: WorkerCount = None,
    cpus_per_worker: CpusPerWorker = None,
    gpus_per_worker: GpusPerWorker = None,
    grow: Annotated[bool, typer.Option("--grow", help="Write the page anew whenever a row is finished.")] = False,
    show_only: Annotated[
        bool, typer.Option("--show-only", help="Only show what is in --out, finished or not; needs no model.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it will cost, and stop.")] = False,
    as_json: Json = False,
) -> None:
    """Compare methods at the same number of model calls: a table, pictures and a page; killed, it goes on."""
    from budcache import models
    from budcache.comparison import show
    from budcache.comparison.config import check_names, check_timed
    from budcache.comparison.methods import usual as usual_methods
    from budcache.comparison.planning import expected
    from budcache.comparison.settings import Settings
    from budcache.jobs.compare import compare as run

    if show_only:
        asked_for: dict[str, object] = {"--budgets": budgets, "--methods": methods, "--metrics": metrics}
        asked_for |= {"--policy": policy, "--timed": timed, "--prompts": prompts, "--count": count}
        asked_for |= {"--calibration": calibration, "--calibration-count": calibration_count, "--dry-run": dry_run}
        asked_for |= {"--batch": batch, "--workers": workers, "--grow": grow, "--care": care != "typical"}
        _check_only_shown(folder, asked_for | {"--settings": chosen})
        _tell(show(folder), folder, as_json)
        return
    if model is None or budgets is None:
        raise SearchError("compare needs a model and --budgets. Name them, or show a folder with --show-only --out.")
    wanted = parse_budgets(budgets)
    check_budgets(tuple(wanted), steps)
    models.check(model, lora, lora_scale)
    embedded = model in models.EMBEDDED
    names = None if methods is None else _names(methods, "--methods")
    ladders = {f"policy:{name}": Ladder.load(file) for name, file in told_apart(policy or []).items()}
    asked = None if metrics is None else _names(metrics, "--metrics")
    paired = None if timed is None else [name for name in _names(timed, "--timed") if name != "none"]
    check_names([*(names or ()), *(paired or ())], asked or (), ladders)
    check_timed(paired or (), [*(usual_methods() if names is None else names), *ladders])
    known = None if chosen is None else Settings.load(chosen)
    learned_on, measured_on = prompts_of(model, prompts, calibration, count, calibration_count, names)
    if dry_run:
        tell_cost(
            expected(
                steps=steps,
                budgets=wanted,
                prompts=measured_on,
                calibration=len(learned_on),
                methods=names,
                policies=ladders,
                timed=paired,
                kind=models.pipeline_class(model),
                seed=seed,
                folder=folder,
                care=care,
                settings=known,
                at={"height": height, "width": width, "frames": frames, "guidance": guidance},
            ),
            as_json,
        )
        return
    check_writable(folder / "comparison.json")
    hands = workers_for(workers, worker_count, cpus_per_worker, gpus_per_worker)
    if hands is not None:
        hands = replace(hands, load=loader(model, device, dtype, lora, lora_scale))
    pipe = open_pipeline(model, device, dtype, lora, lora_scale)
    pipe.set_progress_bar_config(disable=True)
    settings = settings_for(
        pipe, height=height, width=width, num_frames=frames, guidance_scale=guidance, negative_prompt=negative
    )
    begin = time.perf_counter()
    with Bar(quiet=as_json) as bar, pipeline_refusals(pipe):
        watch = KeptRows(bar)
        found = run(
            pipe,
            steps=steps,
            budgets=wanted,
            prompts=measured_on,
            calibration=learned_on,
            folder=folder,
            methods=names,
            metrics=asked,
            policies=ladders,
            seed=seed,
            batch=batch or (EMBEDDED_BATCH if embedded else 1),
            call=settings,
            fps=fps,
            grow=grow,
            workers=hands,
            timed=paired,
            settings=chosen,
            care=care,
            watch=watch,
            progress=False,
        )
    _tell(found, folder, as_json, watch.note)
    if not as_json:
        say(f"{time.perf_counter() - begin:.0f} s in all")


def _check_only_shown(folder: Path, asked_for: Mapping[str, object]) -> None:
    """Refuse options that a folder which is only shown does not look at."""
    if given := [name for name, value in asked_for.items() if value]:
        raise SearchError(
            f"--show-only shows what was last asked for in {folder}, so {given[0]} has no effect. Leave it out, or "
            "compare with it: what is drawn already is not drawn again."
        )


class KeptRows:
    """Watches a comparison together with its bar, and counts the rows that an earlier run had finished."""

    def __init__(self, bar: Bar) -> None:
        self.bar, self.count = bar, 0

    def __call__(self, event: Event) -> None:
        """Look at one event, and pass it on."""
        self.count += isinstance(event, EntryDone) and event.kept
        self.bar(event)

    @property
    def note(self) -> str:
        """What was not measured now."""
        return f"{several(self.count, 'row')} kept from an earlier run." if self.count else ""


def _tell(found: Comparison, folder: Path, as_json: bool, note: str = "") -> None:
    """The table, what was left out, the outcome in one sentence, and where everything is."""
    from budcache.comparison import headline
    from budcache.comparison.numbers import rows
    from budcache.comparison.table import text

    page = folder / "comparison.html"
    if as_json:
        entries = [{name: value for name, value in row.items() if value is not None} for row in rows(found)]
        left_out = [absent.model_dump(mode="json") for absent in found.left_out]
        facts = {"out": str(folder), "page": str(page), "care": found.care, "entries": entries, "left_out": left_out}
        print(json.dumps({**facts, "warnings": found.warnings}))
        return
    out.print(text(found))
    for absent in found.left_out:
        budgets = "" if absent.budgets == found.budgets else f" at {', '.join(map(str, absent.budgets))} calls"
        say(f"left out: {absent.title}{budgets}: {absent.reason}")
    for sentence in (*found.warnings, *filter(None, [note])):
        say(sentence)
    say(f"\n{headline(found)}")
    say(f"{page}; numbers in {folder / 'comparison.json'} and {folder / 'comparison.csv'}")


def told_apart(files: Sequence[Path]) -> dict[str, Path]:
    """A name for each file: its own, with as much of its path before it as no other one of them ends in."""
    given = {file.absolute().parts: file for file in files}
    ends = {parts: [Path(*parts[-count:]) for count in range(1, len(parts) + 1)] for parts in given}
    seen = Counter(end for own in ends.values() for end in own)
    return {next(end for end in ends[parts] if seen[end] == 1).as_posix(): file for parts, file in given.items()}


def _names(text: str, option: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise SearchError(f"{option} names nothing. Write names with commas between them, or leave it out.")
    return names
