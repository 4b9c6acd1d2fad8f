"""The bad tail: the 5th percentile over several seeds of every prompt, ours and who came nearest in the main table.

The 5th percentile of 64 samples is made by the worst four of them, too few to tell methods apart. More seeds make it
steadier; as samples of one prompt are alike, all errors are those of drawing the prompts again, each with all its
seeds. Ours and the others are there twice: by default, and searched or chosen with care for the worst samples.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from common import CAREFUL, Lab
from telling import Claim, Table, of_all, paired, told, with_error

from budcache.comparison import Comparison, Lead, percentile_lead
from budcache.comparison.methods import METHODS, SOLVERS

RIVALS = (*SOLVERS, "dicache", "taylorseer", "l2p")  # those that came nearest in the main table
CARE = ", care"  # behind the name of who is chosen with care for the worst
WITH_CARE = {name + CARE: name for name in RIVALS}
OURS = {"budcache": "budcache", CAREFUL: "budcache with care for the worst"}
NAMES = {
    **{name: METHODS[name] for name in RIVALS},
    **{own: f"{METHODS[name]} with care for the worst" for own, name in WITH_CARE.items()},
    **OURS,
}

Values = Mapping[str, np.ndarray]  # of every method, by seed and prompt


def main(argv: Sequence[str] | None = None) -> None:
    lab = Lab("tails", __doc__ or "", argv, budgets=((5, 6, 8, 9, 10), (3,)), evaluation=64, more=options)
    seeds = 2 if lab.quick else lab.args.seeds
    prompts, ours = lab.evaluation * seeds, {"budcache": lab.ours().ladder, CAREFUL: lab.careful().ladder}
    usual = lab.compare("tails", lab.budgets, RIVALS, ours, prompts=prompts, chosen=chosen(lab))
    careful = lab.compare("tails", lab.budgets, RIVALS, {}, prompts=prompts, care="worst")
    cases = {
        f"{budget} calls": ratios(usual, budget, seeds)
        | {name + CARE: each for name, each in ratios(careful, budget, seeds).items()}
        for budget in lab.budgets
    }
    claims = [
        ahead(
            cases, who, (*RIVALS, *WITH_CARE), how, f"{what} of {OURS[who]} is above that of each of the others shown"
        )
        for who in OURS
        for what, how in (("The 5th percentile", tail), ("The mean", mean))
    ]
    text = "Care for the worst raises the 5th percentile of"
    claims.append(ahead(cases, CAREFUL, ["budcache"], tail, f"{text} budcache"))
    claims += [ahead(cases, own, [name], tail, f"{text} {METHODS[name]}") for own, name in WITH_CARE.items()]
    note = (
        "The others are there with their settings chosen by their mean, as in the main table, and with care for the "
        "worst samples, as our search has it; ours is compared with all of these."
    )
    title = f"PSNR of {len(lab.evaluation)} prompts with {seeds} seeds each"
    lab.report([table(title, cases)], claims, [note])


def ratios(found: Comparison, budget: int, seeds: int) -> dict[str, np.ndarray]:
    """The PSNR of every method at a budget, by seed and prompt."""
    known = {entry.method: entry.quality("psnr") for entry in found.within(budget)}
    return {name: np.reshape(each, (seeds, -1)) for name, each in known.items() if each is not None}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=3, help="of every prompt")


def chosen(lab: Lab) -> Path | None:
    """The settings that the main table has chosen, if it was made here: they need not be chosen again."""
    file = lab.folder.parent / "main_table" / lab.place("main", lab.evaluation, lab.pipe, lab.call) / "settings.json"
    return file if file.exists() else None


def table(title: str, cases: Mapping[str, Values]) -> Table:
    """Every method's mean and tail, and how far ours is ahead of its tail."""
    rows = [
        [
            case,
            NAMES[name],
            with_error(each.mean(0).tolist(), 2),
            bad_end(each),
            *(told(tail(values[who], each), 2) if name not in OURS else None for who in OURS),
        ]
        for case, values in cases.items()
        for name, each in values.items()
    ]
    columns = [
        "budget",
        "method",
        "PSNR ± error",
        "p5 ± error",
        "budcache's p5 ahead by",
        "with care for the worst, ahead by",
    ]
    return Table(title, columns, rows)


def bad_end(values: np.ndarray) -> str:
    """The 5th percentile and its error."""
    found = percentile_lead(values, np.zeros_like(values), 5)
    return f"{found.mean:.2f} ± {found.error or 0:.2f}"


def ahead(
    cases: Mapping[str, Values],
    who: str,
    rivals: Iterable[str],
    how: Callable[[np.ndarray, np.ndarray], Lead],
    text: str,
) -> Claim:
    """One of ours is above each of some others at equal calls, by more than chance."""
    verdicts, numbers = dict[str, bool | None](), list[str]()
    for case, values in cases.items():
        leads = {name: how(values[who], values[name]) for name in rivals if {who, name} <= set(values)}
        if not leads:
            continue
        verdicts[case] = of_all(leads.values())
        nearest = min(leads, key=lambda name: leads[name].mean)
        numbers.append(f"{case}: {told(leads[nearest], 2)} dB ({NAMES[nearest]})")
    return Claim("ours", text, verdicts, ", ".join(numbers))


def mean(mine: np.ndarray, theirs: np.ndarray) -> Lead:
    """How far one mean is ahead of another, prompt by prompt."""
    return paired(mine.mean(0).tolist(), theirs.mean(0).tolist())


def tail(mine: np.ndarray, theirs: np.ndarray) -> Lead:
    """How far one tail is ahead of another, and its error by drawing the prompts again."""
    return percentile_lead(mine, theirs, 5)


if __name__ == "__main__":
    main()
