"""`budcache demo`: what budcache does, in a few minutes, offline."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from budcache.cli.bar import Bar
from budcache.cli.common import check_writable, command, open_pipeline, out, say
from budcache.cli.compare import KeptRows
from budcache.jobs.config import Refine
from budcache.jobs.search import search
from budcache.policy import Ladder

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Show:
    """What a demo shows.

    Attributes:
        model: an embedded name.
        steps: K of the full run.
        budgets: of the search.
        shown: the budget in the last lines.
        compared: budgets of the comparison.
        plain: methods that have nothing to choose.
        tuned: methods whose settings were chosen beforehand, by benchmarks/tune_demo.py.
        settings: these settings; without the file those methods are left out.
        published: what the paper's own search found on two of the prompts, made by the same script; None leaves it out.
        calibration: prompts, for ours and for the settings of the others.
        prompts: evaluation prompts to measure on.
        batch: samples at once.
        refine: how far ours is refined; "full" is what `budcache compare` does.
        call: how to use what was found, in a line of Python.
    """

    model: str
    steps: int
    budgets: tuple[int, ...]
    shown: int
    compared: tuple[int, ...]
    plain: tuple[str, ...]
    tuned: tuple[str, ...]
    settings: Path | None
    published: Path | None
    calibration: int
    prompts: int
    batch: int
    refine: Refine
    call: str

    @property
    def methods(self) -> list[str]:
        """The methods that can take part: there is no time to choose settings here."""
        there = self.settings is None or self.settings.exists()
        return [*self.plain, *(self.tuned if there else ())]

    def texts(self, split: str, count: int) -> list[str]:
        """Prompts of the model."""
        from budcache import models

        return models.prompts(self.model, split)[:count]


PICTURES = Show(
    model="tiny-flux",
    steps=28,
    budgets=(6, 8, 10),
    shown=8,
    compared=(6, 8, 10),
    plain=("fewer-steps", "uniform"),
    tuned=("ipndm", "dpmpp", "unipc", "teacache", "magcache", "lemica", "dicache", "ertacache", "taylorseer", "l2p"),
    settings=HERE / "demo.settings.json",
    published=HERE / "demo.published.json",
    calibration=12,
    prompts=8,
    batch=8,
    refine="full",
    call='image = pipe("red apple").images[0]',
)
VIDEOS = Show(
    model="tiny-wan",
    steps=50,
    budgets=(8, 10, 15, 20),
    shown=10,
    compared=(10, 20),
    plain=("fewer-steps", "uniform"),
    tuned=("teacache", "magcache"),
    settings=HERE / "demo-video.settings.json",
    published=None,
    calibration=4,
    prompts=4,
    batch=4,
    refine="fit",
    call='video = pipe("red apple rolling to the right").frames[0]',
)


@command
def demo(
    folder: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Where to write the report.", show_default="out/demo, out/demo-video"),
    ] = None,
    prompts: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="How many evaluation prompts to measure on.", show_default="8; 4 videos"),
    ] = None,
    video: Annotated[bool, typer.Option("--video", help="The same with videos; about six minutes.")] = False,
) -> None:
    """Search, draw and compare on an embedded model, without a GPU, a network or an account."""
    show = VIDEOS if video else PICTURES
    present(show, folder or Path("out/demo-video" if video else "out/demo"), prompts or show.prompts)


def present(show: Show, folder: Path, prompts: int) -> None:
    """Search, draw, compare and write the page."""
    from budcache.comparison import headline, text
    from budcache.comparison.verdict import why_this_budget
    from budcache.jobs.compare import compare
    from budcache.report.text import describe

    check_writable(folder / "comparison.html")
    begin = time.perf_counter()
    pipe = open_pipeline(show.model, "cpu", "float32")
    pipe.set_progress_bar_config(disable=True)
    learned_on = show.texts("calibration", show.calibration)
    out.print(f"[bold]1. Search[/bold] on {show.model}: {', '.join(map(str, show.budgets))} of {show.steps} calls")
    ladder = _searched(show, pipe, learned_on, folder, show.refine)
    path = ladder.save(folder / "budcache.ladder.json")
    out.print(describe(ladder))
    say("The same search with outputs repeated as they are, to compare with.")
    plain = _searched(show, pipe, learned_on, folder, "none")
    plain.save(folder / "budcache-plain.ladder.json")

    measured_on = show.texts("evaluation", prompts)
    out.print(
        f"\n[bold]2. Compare[/bold] with the other methods on {len(measured_on)} prompts and seeds not seen before"
    )
    published = {"authors": Ladder.load(show.published)} if show.published is not None else {}
    with Bar() as bar:
        watch = KeptRows(bar)
        found = compare(
            pipe,
            steps=show.steps,
            prompts=measured_on,
            calibration=learned_on,
            folder=folder,
            budgets=show.compared,
            methods=show.methods,
            settings=show.settings if set(show.tuned) <= set(show.methods) else None,
            timed=("budcache",),
            policies={**published, "budcache-plain": plain, "budcache": ladder},
            batch=show.batch,
            watch=watch,
            progress=False,
        )
    out.print(text(found))
    if watch.note:
        say(watch.note)
    out.print(f"\n[bold]{headline(found)}[/bold]")
    say(why_this_budget(found))
    budgets = ",".join(map(str, show.budgets))
    longer = f"budcache compare {show.model} --steps {show.steps} --budgets {budgets}"
    say(f"`{longer}` takes longer: more prompts and methods, each timed.")
    seconds = time.perf_counter() - begin
    say(f"The report: {folder / 'comparison.html'} ({seconds:.0f} s in all). What was found, in Python:\n")
    say(f'    pipe = budcache.load("{show.model}")')
    say(f'    with budcache.applied(pipe, "{path}", budget={show.shown}):\n        {show.call}\n')
    say("For your own pipeline search first: `budcache recipe` has the commands for FLUX, Wan, Qwen-Image and others.")


def _searched(show: Show, pipe: Any, prompts: list[str], folder: Path, refine: Refine) -> Ladder:
    """Our ladder, refined or with plain reuse."""
    with Bar() as bar:
        return search(
            pipe,
            steps=show.steps,
            budgets=show.budgets,
            prompts=prompts,
            refine=refine,
            batch=show.batch,
            ledger=folder / ("search.ledger.jsonl" if refine != "none" else "budcache-plain.ledger.jsonl"),
            progress=False,
            watch=bar,
        )
