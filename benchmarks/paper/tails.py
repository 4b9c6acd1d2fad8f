"""The bad tail: the 5th percentile over several seeds of every prompt, ours and who came nearest in the main table.

The 5th percentile of 64 samples is made by three of them, too few to tell methods apart. More seeds make it steadier;
as samples of one prompt are alike, its error is that of drawing the prompts again, each with all its seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from common import Lab
from telling import Claim, Table, of_all, told

from budcache.comparison import Lead
from budcache.comparison.methods import METHODS, SOLVERS

RIVALS = (*SOLVERS, "dicache", "taylorseer", "l2p")  # the others are behind by more than chance in the main table
RESAMPLES = 2000


def main(argv: Sequence[str] | None = None) -> None:
    lab = Lab("tails", __doc__ or "", argv, budgets=((5, 6, 8, 9, 10), (3,)), evaluation=64, more=options)
    seeds = 2 if lab.quick else lab.args.seeds
    found = lab.compare(
        "tails",
        lab.budgets,
        RIVALS,
        {"budcache": lab.ours().ladder},
        prompts=lab.evaluation * seeds,
        chosen=chosen(lab),
    )
    rows, cases, numbers = list[list[object]](), dict[str, bool | None](), list[str]()
    for budget in lab.budgets:
        values = {
            entry.method: np.reshape(ratios, (seeds, -1))
            for entry in found.within(budget)
            if (ratios := entry.quality("psnr")) is not None
        }
        leads = {name: apart(values["budcache"], values[name]) for name in RIVALS if name in values}
        cases[f"{budget} calls"] = of_all(leads.values())
        nearest = min(leads, key=lambda name: leads[name].mean)
        numbers.append(f"{budget} calls: {told(leads[nearest], 2)} dB ({METHODS[nearest]})")
        for name, each in values.items():
            lead = told(leads[name], 2) if name in leads else None
            rows.append([f"{budget} calls", METHODS[name], float(each.mean()), float(np.percentile(each, 5)), lead])
    columns = ["budget", "method", "PSNR", "p5", "budcache's p5 ahead by"]
    title = f"The 5th percentile of {len(lab.evaluation)} prompts with {seeds} seeds each"
    text = "The 5th percentile of budcache is above that of every other method at equal calls"
    lab.report([Table(title, columns, rows)], [Claim("ours", text, cases, ", ".join(numbers))])


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=3, help="of every prompt")


def chosen(lab: Lab) -> Path | None:
    """The settings that the main table has chosen, if it was made here: they need not be chosen again."""
    return next((lab.folder.parent / "main_table").glob("main-*/settings.json"), None)


def apart(mine: np.ndarray, theirs: np.ndarray) -> Lead:
    """How far one tail is ahead of another, and its error by drawing the prompts again."""
    chance, both = np.random.default_rng(0), np.array([mine, theirs])
    prompts = chance.integers(mine.shape[1], size=(RESAMPLES, mine.shape[1]))
    drawn = np.stack([np.percentile(both[:, :, those], 5, axis=(1, 2)) for those in prompts])
    lead = np.subtract(*np.percentile(both, 5, axis=(1, 2)))
    return Lead(float(lead), float(np.subtract(*drawn.T).std(ddof=1)))


if __name__ == "__main__":
    main()
