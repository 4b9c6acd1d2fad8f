"""The main table: every method at the same numbers of model calls, with latency, speed-up and fidelity to the full run.

The paper compares on FLUX.1-dev and on Wan2.1 at the settings of each method's authors. Here every method has all its
settings chosen on the same prompts as ours, and is measured at exactly the same budgets, which is what the paper's text
argues from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from common import CAREFUL, FITTED, Lab, short, slug
from published import MAIN, MAIN_SOURCE, WAN_SOURCE, Cases, wan
from telling import (
    GOAL,
    WHO,
    Case,
    Claim,
    Table,
    ahead,
    around,
    beats,
    difference,
    left_out,
    mean,
    side_by_side,
    span,
    tails,
)

from budcache import Ladder, Origin, Policy
from budcache.baselines import BASELINES, record
from budcache.comparison import Comparison
from budcache.comparison.methods import SOLVERS
from budcache.comparison.timing import Speed
from budcache.pipeline.adapters import adapters
from budcache.samples.samples import seeded

MANY = 8
MORE = f"published search on {MANY} prompts"
ROUNDS = 20  # of climbing in the authors' settings; the paper's counts of masks leave room for two
LONG = f"published search, {ROUNDS} rounds"
AS_DEAR = 12  # prompts, at most, that LeMiCa's graph can be made on for what our search takes on 32
GRAPH = f"LeMiCa on {AS_DEAR} prompts"
HEURISTICS = ("teacache", "magcache", "lemica", "dicache", "ertacache", "taylorseer")  # of the paper
OTHERS = ("fewer-steps", *SOLVERS, "uniform", *HEURISTICS, "l2p")  # and what users would choose


def main(argv: Sequence[str] | None = None) -> None:
    lab = Lab("main_table", __doc__ or "", argv, budgets=((5, 6, 8, 9, 10), (3, 4)), evaluation=64)
    # What two prompts have to do with it: the same search on more of them.
    more = Ladder.of([lab.published(budget, count=MANY).ladder[budget] for budget in lab.budgets])
    longer = Ladder.of([lab.published(budget, rounds=ROUNDS).ladder[budget] for budget in lab.budgets])
    ours = {**lab.policies(), FITTED: lab.fitted().ladder, CAREFUL: lab.careful().ladder}
    policies = {f"policy:{GRAPH}": graph(lab), f"policy:{MORE}": more, f"policy:{LONG}": longer, **ours}
    found = lab.compare("main", lab.budgets, OTHERS, policies)
    cases = {f"{budget} calls": (found, budget) for budget in lab.budgets}
    video = type(lab.pipe).__name__.startswith("Wan")
    source, (printed, elsewhere) = (WAN_SOURCE, wan(lab.budgets)) if video else (MAIN_SOURCE, (MAIN, Cases()))
    claims = [claim for who in WHO for claim in about(who, cases, source.split(":")[0], printed)]
    text = "At equal calls budcache is nearer to the full run than the published search"
    better = beats(cases, "budcache", ["authors"], "ours", text)
    title = f"Every method at equal calls; beside it {source}"
    table = side_by_side(title, cases, printed, head="budget", elsewhere=elsewhere)
    above = [
        beats(those, who, ["teacache", "lemica"], source, f"At equal calls {name} is above TeaCache and LeMiCa")
        for who, name, source, those in (
            ("authors", "the published search", source.split(":")[0], told(cases, printed)),
            (f"policy:{MORE}", f"the {MORE}", "ours", cases),
            (f"policy:{LONG}", f"the {LONG},", "ours", cases),
        )
    ]
    rivals = [*OTHERS, "authors", *(f"policy:{name}" for name in (MORE, LONG, GRAPH))]
    text = "At equal calls budcache is nearer to the full run than every other method shown, each at its best"
    goals = [
        beats(cases, "budcache", rivals, GOAL, text),
        tails(cases, "budcache", rivals, GOAL, "The same for the 5th percentile, the bad end of the samples"),
        beats(cases, CAREFUL, rivals, "ours", text.replace("budcache", "budcache with care for the worst")),
        tails(cases, CAREFUL, rivals, "ours", "The same for its 5th percentile; the others are chosen by their mean"),
        beats(cases, FITTED, rivals, "ours", text.replace("budcache", "budcache, fitted and not aligned,")),
    ]
    claims = [*goals, *claims, *above, better]
    lab.report([table, learning(found)], claims, [*notes(found), *left_out([found])], values=values(found))


def graph(lab: Lab) -> Ladder:
    """LeMiCa's masks from more prompts than a comparison gives it: it reuses residuals by a mask, as a policy does."""
    prompts, kind = lab.tuning[:AS_DEAR], BASELINES["lemica"]
    made_for = [lab.args.model, type(lab.pipe.scheduler).__name__, str(lab.pipe.dtype), *adapters(lab.pipe)]
    file = lab.folder / f"{slug(GRAPH)}-{short([*made_for, lab.steps, lab.budgets, prompts, lab.call])}.json"
    if not file.exists():
        lab.say(GRAPH)
        samples = [seeded({"prompt": prompt, **lab.call}, number) for number, prompt in enumerate(prompts)]
        method = kind.calibrated(record(lab.pipe, lab.steps, samples), len(samples))
        took = Origin(prompts=len(samples), calls=len(samples) * (lab.steps + kind.calibration_calls(lab.steps, 1)))
        masks = [method.at_budget(budget, lab.steps).mask() for budget in lab.budgets]
        Ladder.of([Policy(mask=mask, reuse="residual", origin=took) for mask in masks]).save(file)
    return Ladder.load(file)


def notes(found: Comparison) -> list[str]:
    """What a reader of the rows has to know."""
    told = around(found)
    ertacache = [entry for entry in found.entries if entry.method == "ertacache"]
    plain = [str(entry.budget) for entry in ertacache if (entry.knob or "").endswith("adjust no, rectify no")]
    if plain:
        told.append(
            f"At {', '.join(plain)} calls ERTACache is nearest to the full run with both its corrections switched off: "
            "what is left there is its own rule for when to skip, with plain residual reuse."
        )
    return told


def values(found: Comparison) -> dict[str, Any]:
    """Every prompt's value, by which each verdict can be looked at again."""
    return {
        measure.name: {
            str(budget): {
                entry.title: [round(value, measure.digits) for value in entry.quality(measure.name) or ()]
                for entry in found.at(budget)
            }
            for budget in found.budgets
        }
        for measure in found.measures
    }


def learning(found: Comparison) -> Table:
    """What each method was made on, and what that took."""
    rows = [
        [entry.title, entry.budget, entry.learned_on, entry.learning_calls, entry.knob]
        for entry in found.entries
        if entry.learned_on is not None
    ]
    columns = ["method", "budget", "prompts", "sample-calls", "settings"]
    return Table("What each was made on (full runs and searches that serve all budgets count at each)", columns, rows)


def about(who: str, cases: dict[str, Case], source: str, printed: Cases) -> list[Claim]:
    """What the paper says of its method, asked of one of ours."""
    name, theirs = WHO[who], told(cases, printed)
    (found, low), high = next(iter(theirs.values())), max(budget for _, budget in theirs.values())
    text = f"At equal calls {name} is nearer to the full run than every heuristic"
    claims = [beats(theirs, who, HEURISTICS, source, text), cheaper(found, who, low, high, source)]
    if others := {case: where for case, where in cases.items() if case not in theirs}:
        claims.append(beats(others, who, HEURISTICS, "ours", f"{text}, also at budgets that the paper does not print"))
    exact = {case: set(entry.calls) == {b} for case, (_, b) in cases.items() if (entry := found.entry(who, b))}
    made = {
        (case, e.title): [n for each in e.counting for n in each.calls]
        for case, (_, b) in cases.items()
        for e in found.at(b)
    }
    ranges = [f"{title} {span(calls, 0)} at {case}" for (case, title), calls in made.items() if len(set(calls)) > 1]
    claims.append(
        Claim(
            "Section 1",
            f"Every input costs {name} the same number of calls, where thresholds vary",
            {**exact, "some threshold varies": bool(ranges)},
            f"over the prompts vary: {', '.join(ranges) or 'none'}",
        )
    )
    speeds = {case: row["authors"]["speedup"] for case, row in printed.items() if "speedup" in row.get("authors", {})}
    entries = {case: found.entry(who, cases[case][1]) for case in speeds if case in cases}
    those = {case: entry for case, entry in entries.items() if entry is not None and entry.speed.pairs}
    claims.append(
        Claim(
            source,
            f"The speed-up of {name} is at least nine tenths of the printed one",
            {case: at_least(entry.speed, 0.9 * speeds[case]) for case, entry in those.items()},
            ", ".join(f"{case}: {e.speed.text}, printed {speeds[case]:.2f}x" for case, e in those.items()),
        )
    )
    return claims


def at_least(speed: Speed, wanted: float) -> bool | None:
    """Whether a speed-up is no smaller; None where its interval has the wanted one inside, or it is not known."""
    return None if not speed.known or speed.low < wanted <= speed.high else speed.low >= wanted


def told(cases: dict[str, Case], printed: Cases) -> dict[str, Case]:
    """The cases that the paper has figures for, by which alone its claims are judged; all of them if it has none."""
    return {case: where for case, where in cases.items() if case in printed} or cases


def cheaper(found: Comparison, who: str, low: int, high: int, source: str) -> Claim:
    """Fewer calls of one method against more of TeaCache's."""
    mine, other = found.entry(who, low), found.entry("teacache", high)
    cases, numbers = dict[str, bool | None](), ""
    if mine and other:
        cases = {measure.title: ahead(mine, other, measure) for measure in found.measures}
        first = found.measures[0]
        numbers = f"{first.title} {first.written(mean(mine, first))} against {first.written(mean(other, first))}"
        numbers += f" {first.unit} ({difference(mine, other, first)})"
    return Claim(source, f"With {low} calls {WHO[who]} is better than TeaCache with {high}", cases, numbers)


if __name__ == "__main__":
    main()
