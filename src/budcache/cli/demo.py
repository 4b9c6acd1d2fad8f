"""`budcache demo`: what budcache does, in a few minutes, offline."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from budcache.cli.bar import Bar
from budcache.cli.common import check_writable, command, open_pipeline, out, say
from budcache.cli.compare import KeptRows
from budcache.jobs.search import search
from budcache.policy import Ladder

MODEL, STEPS, BUDGETS, SHOWN = "tiny-flux", 28, (5, 6, 8, 10), 8
COMPARED = (6, 10)
PLAIN = ("fewer-steps", "ipndm", "dpmpp", "unipc", "uniform")  # have nothing to choose
TUNED = ("teacache", "magcache", "lemica", "dicache", "ertacache", "taylorseer", "l2p")  # by benchmarks/tune_demo.py
SETTINGS = Path(__file__).with_name("demo.settings.json")
CALIBRATION = 12  # prompts, for ours and for the settings of the others


@command
def demo(
    folder: Annotated[Path, typer.Option("--out", "-o", help="Where to write the report.")] = Path("out/demo"),
    prompts: Annotated[int, typer.Option(min=1, max=64, help="How many evaluation prompts to measure on.")] = 8,
) -> None:
    """Search, draw and compare on the embedded model, without a GPU, a network or an account."""
    from budcache import models
    from budcache.comparison import headline, text
    from budcache.jobs.compare import compare
    from budcache.report.text import describe

    check_writable(folder / "comparison.html")
    begin = time.perf_counter()
    pipe = open_pipeline(MODEL, "cpu", "float32")
    pipe.set_progress_bar_config(disable=True)
    learned_on = models.prompts(MODEL, "calibration")[:CALIBRATION]
    out.print(f"[bold]1. Search and fit[/bold] on {MODEL}: {', '.join(map(str, BUDGETS))} of {STEPS} calls, one search")
    ladder = _searched(pipe, learned_on, folder, fit=True)
    path = ladder.save(folder / "budcache.ladder.json")
    out.print(describe(ladder))
    say("The same search without a fit, to compare with.")
    plain = _searched(pipe, learned_on, folder, fit=False)
    plain.save(folder / "budcache-plain.ladder.json")

    shown = models.prompts(MODEL, "evaluation")[:prompts]
    out.print(f"\n[bold]2. Compare[/bold] with the other methods on {len(shown)} prompts and seeds not seen before")
    with Bar() as bar:
        watch = KeptRows(bar)
        found = compare(
            pipe,
            steps=STEPS,
            prompts=shown,
            calibration=learned_on,
            folder=folder,
            budgets=COMPARED,
            methods=[*PLAIN, *TUNED],
            settings=SETTINGS,
            timed=("budcache",),
            policies={"budcache-plain": plain, "budcache": ladder},
            batch=8,
            watch=watch,
            progress=False,
        )
    out.print(text(found))
    if watch.note:
        say(watch.note)
    out.print(f"\n[bold]{headline(found)}[/bold]")
    say(f"`budcache compare {MODEL} --budgets 5,6,8,10` takes longer: more budgets, prompts and methods, each timed.")
    seconds = time.perf_counter() - begin
    say(f"The report: {folder / 'comparison.html'} ({seconds:.0f} s in all). On your own pipeline:\n")
    say(f'    with budcache.applied(pipe, "{path}", budget={SHOWN}):\n        image = pipe("red apple").images[0]')


def _searched(pipe: Any, prompts: list[str], folder: Path, *, fit: bool) -> Ladder:
    """Our ladder, with fitted or with plain reuse."""
    with Bar() as bar:
        return search(
            pipe,
            steps=STEPS,
            budgets=BUDGETS,
            prompts=prompts,
            refine="fit" if fit else "none",
            batch=8,
            ledger=folder / ("search.ledger.jsonl" if fit else "budcache-plain.ledger.jsonl"),
            progress=False,
            watch=bar,
        )
