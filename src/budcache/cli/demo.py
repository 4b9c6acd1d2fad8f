"""`budcache demo`: what it is all about, in a few minutes, offline."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from budcache.api import fit, search_in_full
from budcache.cli.common import check_writable, command, err, open_pipeline, out
from budcache.cli.search import Bar
from budcache.mask import Mask
from budcache.policy import Policy
from budcache.search import LadderSearch

MODEL, STEPS, BUDGETS, SHOWN = "tiny-flux", 28, range(4, 13), 9


@command
def demo(
    folder: Annotated[Path, typer.Option("--out", "-o", help="Where to write the pictures.")] = Path("out/demo"),
    prompts: Annotated[int, typer.Option(min=1, max=64, help="How many evaluation prompts to measure on.")] = 16,
) -> None:
    """Search, draw and compare on the embedded model, without a GPU, a network or an account."""
    from budcache import models
    from budcache.report import plots
    from budcache.report.pictures import grid
    from budcache.report.text import describe

    check_writable(folder / "pictures.png")
    begin = time.perf_counter()
    pipe = open_pipeline(MODEL, "cpu", "float32")
    pipe.set_progress_bar_config(disable=True)
    out.print(f"[bold]1. Search and fit[/bold] on {MODEL}: every budget from {BUDGETS[0]} to {BUDGETS[-1]} calls")
    plan = LadderSearch()
    with Bar(plan.expected(STEPS, tuple(BUDGETS)), disable=not err.is_terminal) as bar:
        result = search_in_full(
            pipe,
            steps=STEPS,
            budgets=BUDGETS,
            prompts=models.prompts(MODEL, "calibration")[:32],
            strategy=plan,
            selection=8,
            batch=8,
            watch=bar.advance,
        )
    plain = result.ladder
    with err.status("fitting the reuse of each rung", spinner="dots"):
        ladder = fit(pipe, plain, prompts=models.prompts(MODEL, "calibration")[:32], selection=8, batch=8)
    path = ladder.save(folder / "tiny-flux.ladder.json")
    out.print(describe(ladder))

    texts = models.prompts(MODEL, "evaluation")[:prompts]
    out.print(f"\n[bold]2. Compare[/bold] on {len(texts)} prompts and seeds that the search has not seen")
    methods: dict[str, Callable[[int], Policy]] = {
        "budcache": lambda budget: ladder[budget],
        "its mask alone": lambda budget: plain[budget],
        "uniform mask": lambda budget: Policy(mask=Mask.uniform(STEPS, budget)),
        "fewer steps": lambda budget: Policy(mask=Mask.full(budget)),
    }
    full = _draw(pipe, Policy(mask=Mask.full(STEPS)), texts)
    drawn = {
        name: {budget: _draw(pipe, policy(budget), texts) for budget in ladder.budgets}
        for name, policy in methods.items()
    }
    curves = {
        name: {budget: _psnr(pictures, full) for budget, pictures in by_budget.items()}
        for name, by_budget in drawn.items()
    }
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("PSNR to the full run, dB, at")
    for budget in ladder.budgets:
        table.add_column(str(budget), justify="right")
    for name, curve in curves.items():
        best = [max(other[b] for other in curves.values()) for b in ladder.budgets]
        cells = [
            f"[bold]{curve[b]:.1f}[/bold]" if curve[b] == top else f"{curve[b]:.1f}"
            for b, top in zip(curve, best, strict=True)
        ]
        table.add_row(name, *cells)
    out.print(table)

    rows = [[full[i], *(drawn[name][SHOWN][i] for name in methods)] for i in range(min(6, len(texts)))]
    titles = [f"full run\n{STEPS} calls", *(f"{name}\n{SHOWN} calls, {curves[name][SHOWN]:.1f} dB" for name in methods)]
    sheet = grid(rows, titles, texts[: len(rows)])
    sheet.save(folder / "pictures.png")
    plots.save(
        folder / "quality.png",
        partial(plots.quality, curves=curves, ours="budcache"),
        partial(plots.masks, rungs={f"{rung.budget} calls": rung.mask for rung in ladder}),
    )
    gain = curves["budcache"][SHOWN] - curves["fewer steps"][SHOWN]
    out.print(
        f"\n[bold]{STEPS / SHOWN:.1f} times fewer model calls at {curves['budcache'][SHOWN]:.1f} dB[/bold] to the full "
        f"run, {gain:.1f} dB nearer than running {SHOWN} steps, for {result.calls} sample-calls of search "
        f"({time.perf_counter() - begin:.0f} s in all)."
    )
    out.print(f"Look at {folder / 'pictures.png'} and {folder / 'quality.png'}. On a pipeline of your own:\n")
    out.print(
        f'    with budcache.applied(pipe, "{path}", budget={SHOWN}):\n        image = pipe("red apple").images[0]'
    )


def _draw(pipe: Any, policy: Policy, texts: list[str]) -> list[Any]:
    """One picture per prompt; seeds far from those of the search."""
    import torch

    from budcache.pipeline import applied

    with applied(pipe, policy):
        return list(
            pipe(
                texts,
                num_inference_steps=policy.steps,
                generator=[torch.Generator().manual_seed(10_000 + i) for i in range(len(texts))],
            ).images
        )


def _psnr(pictures: list[Any], references: list[Any]) -> float:
    import numpy as np

    from budcache.metrics import psnr

    values = [psnr(np.asarray(a) / 255, np.asarray(b) / 255) for a, b in zip(pictures, references, strict=True)]
    return float(np.mean([min(value, 100.0) for value in values]))
