"""Telling what came of an experiment: tables beside the paper's figures, and its claims, true here or not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from published import Cases

from budcache.aggregate import standard_error
from budcache.comparison import Comparison, Entry, Lead, Measure, lead, tail_lead
from budcache.comparison.methods import METHODS
from budcache.metrics import METRICS

WHO = {"authors": "the published search", "budcache": "budcache"}
PAPER_METRICS = ("lpips", "imagereward", "clip-b", "clip-l", "hpsv2")


@dataclass
class Table:
    """Rows of values; how they are written depends on where."""

    title: str
    columns: list[str]
    rows: list[list[Any]]

    def text(self) -> str:
        """For a terminal."""
        cells = [self.columns, *([written(value) for value in row] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join(_padded(cell, width, i) for i, (cell, width) in enumerate(zip(row, widths, strict=True)))
            for row in cells
        ]
        return "\n".join([self.title, *(line.rstrip() for line in lines)])

    def markdown(self) -> str:
        """For a page."""
        lines = [self.columns, ["---", *["---:"] * (len(self.columns) - 1)]]
        lines += [[written(value).replace("|", "\\|") for value in row] for row in self.rows]
        return "\n".join([f"**{self.title}**", "", *(f"| {' | '.join(line)} |" for line in lines)])


GOAL = "our goal"


@dataclass
class Claim:
    """Something that the paper says, and what is the case here.

    Args:
        source: where it says so; "ours" is a claim of budcache's own, and `GOAL` one that was set before measuring.
        text: the claim.
        cases: whether it is so, by case; None where chance could have made the difference.
        found: the numbers.
    """

    source: str
    text: str
    cases: dict[str, bool | None]
    found: str = ""

    @property
    def verdict(self) -> str:
        """In words."""
        by = {told: [name for name, value in self.cases.items() if value is told] for told in (True, False, None)}
        if not self.cases:
            return "could not be tested"
        for told, word in ((True, "holds"), (None, "undecided")):
            if len(by[told]) == len(self.cases):
                return word
        unsure = [f"undecided in: {', '.join(by[None])}"] * bool(by[None])
        if not by[True]:
            return ", ".join(["does not hold where it is decided", *unsure]) if unsure else "does not hold"
        wrong = [f"not in: {', '.join(by[False])}"] * bool(by[False])
        return ", ".join([f"holds in {len(by[True])} of {len(self.cases)} cases", *wrong, *unsure])

    @property
    def sentence(self) -> str:
        """One sentence."""
        return f"{self.text} ({self.source}): {self.verdict}{'; ' * bool(self.found)}{self.found}."


# Tables and claims about comparisons. A case is a comparison and the budget that is looked at in it.

Case = tuple[Comparison, int]


def side_by_side(
    title: str,
    cases: Mapping[str, Case],
    published: Cases,
    head: str = "case",
    made: Callable[[str, str], str] | None = None,
    elsewhere: Cases | None = None,
) -> Table:
    """Every method in every case: what was measured here, then what the paper prints of the same metrics.

    Args:
        made: for a case and a method what is carried over and what is made anew, where that is the question.
        elsewhere: what the paper prints of cases that were not measured here, by its calls: rows of their own.
    """
    measures = next(iter(cases.values()))[0].measures
    alone = elsewhere or {}
    theirs = {name for methods in (*published.values(), *alone.values()) for row in methods.values() for name in row}
    printed = {"speedup": "speed-up"} if "speedup" in theirs else {}
    same = {measure.name: measure.title for measure in measures if measure.name in theirs}
    # Where the paper prints none of the metrics that were measured here, those that it does print.
    printed |= same or {name: METRICS[name].title for name in METRICS if name in theirs}
    columns = [head, "method", *["made"] * (made is not None), "calls", "call-eq.", "by work", "loop s", "speed-up"]
    columns += [name for measure in measures for name in (f"{measure.title} ± error", f"{measure.tail_name}")]
    rows = []
    for case, (comparison, budget) in cases.items():
        for entry in comparison.at(budget):
            over = " (too few)" if entry.falls_short else "" if entry in comparison.within(budget) else " (too many)"
            row = [case, entry.title, *([] if made is None else [made(case, entry.method)])]
            row += [entry.calls_text + over, entry.mean_equivalents, by_work(comparison, entry)]
            row += [comparison.latency(entry), speed(entry)]
            for measure in measures:
                found = entry.summed(measure)
                values = entry.quality(measure.name)
                row += [with_error(values, measure.digits), None if found is None else measure.written(found.tail)]
            known = published.get(case, {}).get(entry.method, {})
            rows.append([*row, *map(known.get, printed)])
    blank = [None] * (len(columns) - 3 - (made is not None))
    for calls, methods in alone.items():
        for method, known in methods.items():
            name = ["the paper's", METHODS[method], *[""] * (made is not None), calls]
            rows.append([*name, *blank, *map(known.get, printed)])
    return Table(title, columns + [f"paper: {name}" for name in printed.values()], rows)


def by_work(comparison: Comparison, entry: Entry) -> str | None:
    """How many times less work than the full run: the speed-up if only the network's operations took time."""
    done = entry.mean_equivalents
    return None if done is None else f"{comparison.full.mean_calls / done:.2f}x"


def speed(entry: Entry) -> str:
    """How many times faster than the full run, with its 95 % interval where it is known."""
    found = entry.speed
    return f"{found.text} ({found.low:.2f}-{found.high:.2f})" if found.known and found.low < found.high else found.text


def around(comparison: Comparison) -> list[str]:
    """What a full run takes, in its loop and beside it, and the most memory of timed runs; empty where none were."""
    full, loop = comparison.full, comparison.latency(comparison.full)
    most = [size for entry in comparison.entries if (size := comparison.memory(entry)) is not None]
    if loop is None or full.before_seconds is None or full.after_seconds is None or not most:
        return []
    return [
        f"A full run takes {loop:.3f} s in its loop, and beside it {full.before_seconds:.3f} s for text encoders and "
        f"{full.after_seconds:.3f} s for the decoder. Timed runs had at most {max(most) / 2**20:,.0f} MB in use, full "
        f"runs {(comparison.memory(full) or 0) / 2**20:,.0f} MB."
    ]


def beats(cases: Mapping[str, Case], who: str, rivals: Iterable[str], source: str, text: str) -> Claim:
    """A method is better than all its rivals, in every case and by every metric, by more than chance.

    Rivals are taken at equal calls, where need be between two of their settings. One that needs more calls
    counts where it is worse all the same; where it is better, nobody knows. The one that is printed is the nearest.
    """
    wanted, verdicts, found = set(rivals), dict[str, bool | None](), list[str]()
    for case, (comparison, budget) in cases.items():
        mine, fair = comparison.entry(who, budget), comparison.within(budget)
        if mine is None:
            continue
        for measure in comparison.measures:
            others = [
                e for e in comparison.at(budget) if e.method in wanted and (e in fair or better(mine, e, measure))
            ]
            leads = [apart for e in others if (apart := lead(mine, e, measure)) is not None]
            if leads:
                first = best(others, measure)
                verdicts[f"{case} by {measure.title}"] = of_all(leads)
            if leads and measure == comparison.measures[0]:
                values = f"{measure.written(mean(mine, measure))} against {measure.written(mean(first, measure))}"
                values = f"{case}: {measure.title} {values} {measure.unit}".rstrip()
                found.append(f"{values} ({first.title}; {difference(mine, first, measure)})")
        over = [e for e in comparison.at(budget) if e.method in wanted and e not in fair]
        found += [f"{case}: {e.title} needs {e.mean_calls:.1f} calls" for e in over]
    return Claim(source, text, verdicts, ", ".join(found))


def of_all(leads: Iterable[Lead], least: float = 0.0) -> bool | None:
    """Whether all leads are above something, by more than chance; one that is below decides, too."""
    found = {replace(each, mean=each.mean - least).ahead for each in leads}
    return False if False in found else None if None in found else True


def ahead_by(cases: Mapping[str, Case], rivals: Sequence[str], least: float, text: str) -> Claim:
    """Ours is ahead of every rival at equal calls by so many decibels; undecided where that may be chance."""
    verdicts, numbers = dict[str, bool | None](), list[str]()
    for case, (comparison, budget) in cases.items():
        measure, mine = comparison.measures[0], comparison.entry("budcache", budget)
        there = [entry for entry in comparison.at(budget) if entry.method in rivals]
        others = [entry for entry in there if entry in comparison.within(budget)] or there
        leads = {e.title: apart for e in others if mine and (apart := lead(mine, e, measure)) is not None}
        if leads:
            verdicts[case] = of_all(leads.values(), least)
            title, least_lead = min(leads.items(), key=lambda each: each[1].mean)
            numbers.append(f"{case}: {told(least_lead)} {measure.unit} ({title})")
    return Claim("ours", text, verdicts, ", ".join(numbers))


def paired(one: Sequence[float], other: Sequence[float]) -> Lead:
    """How far one is ahead of the other on the same prompts."""
    apart = [a - b for a, b in zip(one, other, strict=True)]
    return Lead(sum(apart) / len(apart), standard_error(apart), len(apart))


def told(found: Lead, digits: int = 2) -> str:
    """A lead with its standard error."""
    return f"{found.mean:+.{digits}f}" + ("" if found.error is None else f" ± {found.error:.{digits}f}")


def better(one: Entry, other: Entry, measure: Measure) -> bool:
    """Whether one method has the better mean."""
    apart = mean(one, measure) - mean(other, measure)
    return apart > 0 if measure.higher else apart < 0


def ahead(one: Entry, other: Entry, measure: Measure) -> bool | None:
    """Whether one method is better than another on the same samples; None where that may be chance."""
    found = lead(one, other, measure)
    return None if found is None else found.ahead


def difference(one: Entry, other: Entry, measure: Measure) -> str:
    """How far one method is ahead of another, sample by sample, and the standard error of that."""
    found = lead(one, other, measure)
    return "not measured" if found is None else told(found, measure.digits)


def with_error(values: Sequence[float] | None, digits: int = 1) -> str | None:
    """The mean of all samples' values, and its standard error."""
    if not values:
        return None
    error = standard_error(list(values))
    return f"{sum(values) / len(values):.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}")


def best(entries: Sequence[Entry], measure: Measure) -> Entry:
    """The method with the best mean."""
    return (max if measure.higher else min)(entries, key=lambda entry: mean(entry, measure))


def mean(entry: Entry, measure: Measure) -> float:
    """A metric's mean over all samples."""
    found = entry.summed(measure)
    return float("nan") if found is None else found.mean


def left_out(comparisons: Iterable[Comparison]) -> list[str]:
    """Who could not take part, and why."""
    those = list(comparisons)
    lines = [f"Left out: {absent.title}: {absent.reason}" for each in those for absent in each.left_out]
    return list(dict.fromkeys([*lines, *unmeasured(those)]))


def unmeasured(comparisons: Iterable[Comparison]) -> list[str]:
    """One line for the paper's metrics that need weights which are not here, instead of a column of dashes."""
    here = {measure.name for each in comparisons for measure in each.measures}
    missing = [METRICS[name].title for name in PAPER_METRICS if name not in here]
    told = f"Not measured here, as their weights are not here: {', '.join(missing)}; --metrics adds them."
    return [told] if missing else []


def tails(cases: Mapping[str, Case], who: str, rivals: Iterable[str], source: str, text: str) -> Claim:
    """A method's bad tail is better than that of each rival at equal calls, by more than chance."""
    wanted, verdicts, found = set(rivals), dict[str, bool | None](), list[str]()
    for case, (comparison, budget) in cases.items():
        mine, measure = comparison.entry(who, budget), comparison.measures[0]
        others = [entry for entry in comparison.within(budget) if entry.method in wanted]
        if mine is None or not others:
            continue
        leads = {e.title: apart for e in others if (apart := tail_lead(mine, e, measure)) is not None}
        if not leads:
            continue
        title, least = min(leads.items(), key=lambda each: each[1].mean)
        verdicts[case] = of_all(leads.values())
        found.append(f"{case}: {told(least, measure.digits)} {measure.unit} ({title})")
    return Claim(source, text, verdicts, ", ".join(found))


def span(values: Iterable[float], digits: int = 2) -> str:
    """The smallest and the largest of some values."""
    known = sorted(values)
    low, high = f"{known[0]:.{digits}f}", f"{known[-1]:.{digits}f}"
    return low if low == high else f"{low} to {high}"


def written(value: Any) -> str:
    """A value as it stands in a table."""
    if value is None or value != value:
        return "-"
    if not isinstance(value, float):
        return str(value)
    size = abs(value)
    return f"{value:.2f}" if size >= 1 else f"{value:.4f}" if size >= 1e-3 or size == 0 else f"{value:.2e}"


def _padded(cell: str, width: int, column: int) -> str:
    return cell.ljust(width) if column < 2 else cell.rjust(width)
