"""The comparison as a table in the form of the paper's Table 1, for the terminal, and what its marks mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from budcache.comparison.entry import FULL, Entry, Measure
from budcache.comparison.methods import CARELESS, METHODS, SOLVERS, UNCHECKED
from budcache.comparison.result import Comparison
from budcache.comparison.timing import NOT_MEASURABLE, NOT_TIMED
from budcache.comparison.verdict import lead

__all__ = ["NOISY", "NOTES", "Cell", "cells", "equivalents", "heading", "notes", "text"]

SECONDS, FIRST = 2, 4  # the places in a row of the loop's seconds and of the first metric
NOISY = (
    "Speed-ups not known to 5 % after many pairs of runs, or above what the calls allow, are not printed; on a quiet "
    "machine compare again with --timed and the method's name"
)
NOTES = {
    "undecided": "= not told apart from the best, sample by sample: undecided",
    "between": "Calls a | b: two settings on both sides of the budget; the row is what lies between them at the budget",
    "over": "! needs more calls than the budget, so it does not compete",
    "short": "* makes fewer calls than the budget at all settings that were found, and is judged at these",
    "solvers": "{}: fewer steps of another solver, no cache",
    "unchecked": "{}: written after the paper; not checked against code of the authors",
    "worst": "With care for the worst samples, large errors counting more, were searched or chosen: {}",
}
# What the page says above its table, for the terminal, and for a file or pipe, which has no bold letters.
ERROR = "± standard error"
STYLED = "; bold: the best at its budget, underlined: the second best"
PLAIN = "; ^ the best at its budget"
EQUIVALENTS = "call-eq.: work of the network in whole calls, probes and partial passes counted"
WIDE = 10_000  # letters, more than any table has
STYLES = {1: "bold", 2: "underline"}
SHORT = {NOT_MEASURABLE: "?", NOT_TIMED: "."}  # in narrow terminals


class Cell(NamedTuple):
    """One number of the table, as written, its rank at its budget, its standard error, and whether it may be best."""

    text: str
    rank: int = 0  # 1: the best; 2: the second best; 0: does not compete
    error: str = ""
    undecided: bool = False  # behind the best of its budget, but not by more than chance


def heading(measure: Measure) -> str:
    """A metric's column: its name, and which way is better."""
    return f"{measure.title}{'↑' if measure.higher else '↓'}"


def cells(comparison: Comparison, entry: Entry) -> list[Cell]:
    """A row: calls, seconds of the loop, speed-up, then each metric's mean."""
    over = "!" * (entry.method != FULL and entry not in comparison.within(entry.budget)) + "*" * entry.falls_short
    seconds = comparison.latency(entry)
    row = [Cell(entry.calls_text + over), Cell("-" if seconds is None else f"{seconds:.3g}"), Cell(entry.speed.text)]
    return row + [_measured(comparison, entry, measure) for measure in comparison.measures]


def equivalents(entry: Entry) -> Cell:
    """What a method took of the network, probes and partial passes counted, in units of whole calls."""
    found = entry.mean_equivalents
    return Cell("-" if found is None else f"{found:.1f}")


def notes(comparison: Comparison) -> list[str]:
    """What the marks in the table mean, those that there are; what runs take beside the loop, and their memory."""
    entries = [entry for entry in comparison.entries if entry.method != FULL]
    marks = {
        "undecided": any(cell.undecided for entry in entries for cell in cells(comparison, entry)),
        "between": any(len(entry.counting) > 1 for entry in entries),
        "over": any(entry not in comparison.within(entry.budget) for entry in entries),
        "short": any(entry.falls_short for entry in entries),
    }
    found = [NOTES[name] for name, there in marks.items() if there]
    careful = set(METHODS) - {*CARELESS, *comparison.policies} if comparison.care == "worst" else set()
    for name, methods in {"solvers": SOLVERS, "unchecked": UNCHECKED, "worst": careful}.items():
        those = dict.fromkeys(entry.title for entry in entries if entry.method in methods)
        found += [NOTES[name].format(", ".join(those))] * bool(those)
    found += [NOISY] * any(entry.speed.noisy and entry.speed.pairs for entry in entries)
    return [*found, *filter(None, (_around(comparison), _memory(comparison)))]


def _around(comparison: Comparison) -> str:
    """A line with what a run takes beside its loop, where loops were timed."""
    before, after = comparison.full.before_seconds, comparison.full.after_seconds
    if comparison.latency(comparison.full) is None or before is None or after is None:
        return ""
    return f"Beside the loop a sample takes {before:.2g} s for text encoders and {after:.2g} s for the decoder"


def _memory(comparison: Comparison) -> str:
    """A line with peak memory."""
    most: dict[str, int] = {}
    for entry in comparison.entries:
        if (size := comparison.memory(entry)) is not None:
            most[entry.title] = max(size, most.get(entry.title, 0))
    # A process keeps memory that it has freed, so one that has drawn by others before tells methods hardly apart.
    where = "of the process, with what it keeps of earlier runs" if comparison.device == "cpu" else "of the GPU"
    told = ", ".join(f"{title} {size / 2**20:,.0f} MB" for title, size in most.items())
    return f"Peak memory {where}: {told}" if told else ""


def _measured(comparison: Comparison, entry: Entry, measure: Measure) -> Cell:
    found = entry.summed(measure)
    if found is None:
        return Cell("-")
    written = measure.written(found.mean)
    error = "" if found.error is None else measure.written(found.error)
    rivals = comparison.within(entry.budget)
    if entry.method == FULL or entry not in rivals:
        return Cell(written, 0, error)
    means = {one.mean for other in rivals if (one := other.summed(measure)) is not None}
    ranked = list(dict.fromkeys(measure.written(mean) for mean in sorted(means, reverse=measure.higher)))
    rank = ranked.index(written) + 1 if len(ranked) > 1 else 0
    return Cell(written, rank, error, rank > 1 and not _behind(entry, rivals, measure))


def _behind(entry: Entry, rivals: list[Entry], measure: Measure) -> bool:
    """Whether an entry is behind the best by more than chance."""
    known = {other.method: found.mean for other in rivals if (found := other.summed(measure)) is not None}
    best = (max if measure.higher else min)(known, key=known.__getitem__)
    apart = lead(next(other for other in rivals if other.method == best), entry, measure)
    return apart is not None and apart.decided


def text(comparison: Comparison) -> RenderableType:
    """The table for a terminal: the best of each budget is bold, the second best underlined.

    Behind each mean stands its standard error; behind that the first metric's bad tail, if the terminal is wide enough.
    """
    return _Fitting(comparison)


@dataclass(frozen=True)
class _Fitting:
    """The widest form of the table that fits a terminal."""

    comparison: Comparison

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        measures, narrow, shown, plain = self.comparison.measures, False, 0, not console.is_terminal
        whole = [(True, False, False), (True, True, False), (False, True, False), (False, True, True)]
        if self.comparison.care == "worst":  # then the tail is what it is about
            whole[2:3] = [(True, True, True)]
        if all(self.comparison.latency(entry) is None for entry in self.comparison.entries):
            whole = [(tail, narrow, True) for tail, narrow, _ in whole]
        forms = [(*form, len(measures)) for form in whole]
        forms += [(False, True, True, count) for count in range(len(measures) - 1, 0, -1)]
        for tail, narrow, slim, shown in forms:
            table = _table(self.comparison, tail, narrow, slim, shown, plain)
            if Measurement.get(console, options.update(max_width=WIDE), table).maximum <= options.max_width:
                break
        yield table
        short = {entry.speed.text for entry in self.comparison.entries} & set(SHORT) if narrow else set()
        left_out = ", ".join(measure.title for measure in measures[shown:])
        room = [f"No room here for {left_out}, which the page and the files have"] if left_out else []
        shortened = [f"{SHORT[text]} {text}" for text in sorted(short)]
        ranked = any(cell.rank for entry in self.comparison.entries for cell in cells(self.comparison, entry))
        legend = ERROR + (PLAIN if plain else STYLED) * ranked
        if tail and measures:
            legend += f"; {measures[0].tail_name}: the {measures[0].tail_title} of the samples, the bad end"
        for note in [legend, EQUIVALENTS, *notes(self.comparison), *shortened, *room]:
            yield Text(note, "dim")


def _table(comparison: Comparison, tail: bool, narrow: bool, slim: bool, shown: int, plain: bool) -> Table:
    """The table with or without the first metric's tail, short words, the seconds, the last metrics, and styles."""
    names = ["calls", "call-eq.", "loop s", "speed-up", *(heading(each) for each in comparison.measures[:shown])]
    tailed = comparison.measures[0] if tail and comparison.measures else None
    if tailed is not None:
        names.insert(FIRST + 1, f"{tailed.title} {tailed.tail_name}")
    if slim:
        del names[SECONDS]
    table = Table(box=None, pad_edge=False, header_style="dim", collapse_padding=narrow)
    table.add_column("method")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)

    def add(entry: Entry) -> None:
        row = cells(comparison, entry)[: FIRST - 1 + shown]
        row.insert(1, equivalents(entry))
        row = [Cell(SHORT[cell.text]) if narrow and cell.text in SHORT else cell for cell in row]
        if tailed is not None:
            found = entry.summed(tailed)
            row.insert(FIRST + 1, Cell("-" if found is None else tailed.written(found.tail)))
        if slim:
            del row[SECONDS]
        name = Text(entry.title, "bold" if entry.method == comparison.ours else "")
        table.add_row(name, *(_written(cell, plain) for cell in row))

    add(comparison.full)
    for budget in comparison.budgets:
        table.add_section()
        table.add_row(f"[dim]{budget} calls[/]")
        for entry in comparison.at(budget):
            add(entry)
    return table


def _written(cell: Cell, plain: bool) -> Text:
    error = (f"±{cell.error}", "dim") if cell.error else ""
    mark = "=" * cell.undecided or "^" * (plain and cell.rank == 1)
    return Text.assemble((cell.text, STYLES.get(cell.rank, "")), error, mark)
