"""`budcache demo`: what it is all about, in a few minutes, offline."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from budcache.cli.bar import Bar
from budcache.cli.common import check_writable, command, err, open_pipeline, out, say
from budcache.cli.compare import Bar as Drawing
from budcache.jobs.search import search
from budcache.policy import Ladder
from budcache.strategies import LadderSearch

MODEL, STEPS, BUDGETS, SHOWN = "tiny-flux", 28, (5, 6, 8, 10), 8
COMPARED = (6, 10)
METHODS = ("fewer-steps", "uniform", "teacache", "magcache", "ertacache", "taylorseer")
CALIBRATION, TUNING = 24, 4  # prompts for ours; for the thresholds of the others


@command
def demo(
    folder: Annotated[Path, typer.Option("--out", "-o", help="Where to write the report.")] = Path("out/demo"),
    prompts: Annotated[int, typer.Option(min=1, max=64, help="How many evaluation prompts to measure on.")] = 8,
) -> None:
    """Search, draw and compare on the embedded model, without a GPU, a network or an account."""
    from budcache import models
    from budcache.comparison import compact, text
    from budcache.report import page
    from budcache.report.text import describe

    check_writable(folder / "report.html")
    begin = time.perf_counter()
    pipe = open_pipeline(MODEL, "cpu", "float32")
    pipe.set_progress_bar_config(disable=True)
    learned_on = models.prompts(MODEL, "calibration")[:CALIBRATION]
    out.print(f"[bold]1. Search and fit[/bold] on {MODEL}: {', '.join(map(str, BUDGETS))} of {STEPS} calls, one search")
    plan = LadderSearch()
    with Bar() as bar:
        result = search(
            pipe,
            steps=STEPS,
            budgets=BUDGETS,
            prompts=learned_on,
            strategy=plan,
            batch=8,
            ledger=folder / "search.ledger.jsonl",
            progress=False,
            watch=bar,
        )
    path = result.save(folder / "tiny-flux.ladder.json")
    out.print(describe(result))

    shown = models.prompts(MODEL, "evaluation")[:prompts]
    out.print(f"\n[bold]2. Compare[/bold] with the other methods on {len(shown)} prompts and seeds not seen before")
    plain = Ladder.of([rung.model_copy(update={"weights": None, "refined": ()}) for rung in result])
    with Drawing(disable=not err.is_terminal) as drawing:
        found = compact(
            pipe,
            result,
            plain,
            prompts=shown,
            calibration=learned_on[:TUNING],
            folder=folder,
            budgets=COMPARED,
            methods=METHODS,
            batch=8,
            watch=drawing.advance,
        )
    found.save(folder / "comparison.json")
    out.print(text(found))
    drawing.tell()
    report = page.write(found, folder, folder / "report.html", ladder=path.name)
    out.print(f"\n[bold]{page.headline(found)}[/bold]")
    say(f"`budcache compare {MODEL} --budgets 5,6,8,10` takes longer and has more of them, DiCache for one.")
    say(f"The report: {report} ({time.perf_counter() - begin:.0f} s in all). On a pipeline of your own:\n")
    say(f'    with budcache.applied(pipe, "{path}", budget={SHOWN}):\n        image = pipe("red apple").images[0]')
