"""Very few calls: plain short runs and cached ones, each with and without an aligned schedule.

The paper judges by ImageReward, CLIP and HPSv2.1 (`--metrics` on a real model); PSNR and SSIM to the full run are what
can be measured anywhere. `--align` is the number of prompts that a schedule is learned on, one update for each.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import Lab
from judging import Judge
from published import ALIGNMENT_SECONDS, ALIGNMENT_SOURCE, LOW, LOW_SOURCE
from telling import WHO, Case, Claim, Table, ahead, beats, left_out, mean, paired, side_by_side, told

import budcache
from budcache import Ladder, Mask, Policy
from budcache.comparison.methods import SOLVERS

SHORT, PUBLISHED, OURS = "fewer steps", "published search", "budcache"
PLAIN = {SHORT: "fewer-steps", PUBLISHED: "authors", OURS: "budcache"}


def main(argv: Sequence[str] | None = None) -> None:
    lab = Lab("low_budget", __doc__ or "", argv, budgets=((5, 6, 7), (3,)), evaluation=64, more=options)
    high, cases, costs = 4 if lab.quick else lab.args.high, dict[str, Case](), list[list[Any]]()
    notes, gains, judge = list[str](), dict[str, list[float]](), lab.judge()
    if len(lab.learned) < lab.args.align:
        notes.append(
            f"Aligned on {len(lab.learned)} prompts, not on {lab.args.align}: there are no more to learn on. Give a "
            "longer file with --calibration."
        )
        lab.say(notes[0])
    for budget in lab.budgets:
        start = {SHORT: Policy(mask=Mask.full(budget)), PUBLISHED: lab.published(budget).ladder[budget]}
        start[OURS] = lab.ours().ladder[budget]
        policies = {PLAIN[name]: Ladder.of([policy]) for name, policy in start.items() if name != SHORT}
        for name, policy in start.items():
            aligned, seconds = align(lab, name, budget, policy)
            policies[f"policy:{name}, aligned"] = Ladder.of([aligned])
            line = aligned.refined[-1]
            if name == PUBLISHED:
                gains[f"{budget} calls"] = gained(judge, policy, aligned)
            costs.append([f"{budget} calls", name, line.calls, seconds, ALIGNMENT_SECONDS.get(budget), line.gain])
        others = ["fewer-steps", *SOLVERS]
        cases[f"{budget} calls"] = lab.compare(f"low {budget}", [budget], others, policies), budget
    claims = [claim for name in (PUBLISHED, OURS) for claim in about(name, cases)]
    policy = lab.published(high).ladder[high]
    aligned, seconds = align(lab, PUBLISHED, high, policy)
    costs.append([f"{high} calls", PUBLISHED, aligned.refined[-1].calls, seconds, None, aligned.refined[-1].gain])
    claims.append(limited(gains, gained(judge, policy, aligned), high))
    columns = ["budget", "policy", "sample-calls", "seconds", "paper: seconds", "gain in dB"]
    tables = [
        side_by_side(f"With and without alignment; beside it {LOW_SOURCE}", cases, LOW, head="budget"),
        Table(f"What an alignment took, and gained where it was chosen; beside it {ALIGNMENT_SOURCE}", columns, costs),
    ]
    lab.report(tables, claims, notes + left_out(found for found, _ in cases.values()))


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--align", type=int, default=32, help="prompts to align on; the paper takes 100")
    parser.add_argument("--high", type=int, default=10, help="a larger budget, at which alignment should matter less")


def align(lab: Lab, name: str, budget: int, policy: Policy) -> tuple[Policy, float]:
    """Algorithm 3 on a policy; a short run is taught by the full one."""
    prompts = lab.learned[: lab.args.align]
    finer = {"teacher_steps": lab.steps} if name == SHORT else {}

    def refine(ladder: Ladder, ledger: Path) -> Ladder:
        return budcache.align(lab.pipe, ladder, prompts=prompts, ledger=ledger, call=lab.call, progress=False, **finer)

    return lab.refined(f"align {name} {budget} on {len(prompts)}", policy, refine)


def about(name: str, cases: dict[str, Case]) -> list[Claim]:
    """What the paper says of its method at few calls, asked of one of ours."""
    plain, aligned, source = PLAIN[name], f"policy:{name}, aligned", "Table 4"
    who = WHO[plain]
    rivals = [PLAIN[SHORT], f"policy:{SHORT}, aligned", plain]
    less, numbers = dict[str, bool | None](), list[str]()
    for case, (found, budget) in cases.items():
        measure = found.measures[0]
        short, opt, mine = (found.entry(who, budget) for who in (*rivals[:2], plain))
        if short and opt and mine:
            by_schedule, by_mask = (mean(entry, measure) - mean(short, measure) for entry in (opt, mine))
            less[case] = ahead(mine, opt, measure)  # what both add to the same short run
            numbers.append(f"{case}: {measure.title} {by_schedule:+.2f} against {by_mask:+.2f} {measure.unit}".rstrip())
    return [
        beats(cases, plain, rivals[:1], source, f"Caching by {who} is better than naively taking fewer steps"),
        Claim(source, f"Aligning a short schedule alone brings less than {who} does", less, ", ".join(numbers)),
        beats(cases, aligned, rivals, source, f"The best of all is {who} with an aligned schedule"),
    ]


def gained(judge: Judge, policy: Policy, aligned: Policy) -> list[float]:
    """What aligning gained, in decibels of every prompt."""
    return [after - before for before, after in zip(judge.ratios(policy), judge.ratios(aligned), strict=True)]


def limited(gains: dict[str, list[float]], last: list[float], high: int) -> Claim:
    """Alignment is said to matter less where there are more calls; what was not aligned at either says nothing."""
    apart = {case: paired(gain, last) for case, gain in gains.items()}
    numbers = ", ".join(f"{case}: {told(lead, 2)} dB more" for case, lead in apart.items())
    text = f"At {high} calls aligning the published search's policy gains less than at few"
    return Claim("Section 4.3", text, {f"less than at {case}": lead.ahead for case, lead in apart.items()}, numbers)


if __name__ == "__main__":
    main()
