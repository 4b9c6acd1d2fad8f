"""Who is ahead, and whether that is more than chance: differences sample by sample, with their standard error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from budcache.aggregate import standard_error
from budcache.comparison.entry import Entry, Measure
from budcache.comparison.methods import OURS
from budcache.comparison.result import Comparison
from budcache.wording import listed, several

__all__ = ["Lead", "best_other", "headline", "lead", "main_budget", "percentile_lead", "tail_lead", "why_this_budget"]

ERRORS = 2.0  # standard errors that a lead must exceed to count
# With fewer than 20 samples their errors are guesses themselves: Student's t at 95 %, for 2 samples, 3 and so on.
FEW = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10)
TAILED = 20  # samples; of fewer the 5th percentile is little more than the worst one
RESAMPLES = 2000  # of the samples, for the error of a percentile


@dataclass(frozen=True)
class Lead:
    """How far one method is from another on the same samples, on average; positive where it is better."""

    mean: float
    error: float | None  # of the mean; None for a single sample
    samples: int | None = None  # that these are of; None is many

    @property
    def decided(self) -> bool:
        """Whether it is more than chance; a single sample decides nothing."""
        return self.error is not None and abs(self.mean) > self.wanted * self.error

    @property
    def wanted(self) -> float:
        """Standard errors that it must exceed: two, with few samples more."""
        samples = self.samples or 0
        return FEW[samples - 2] if 2 <= samples < 2 + len(FEW) else ERRORS

    @property
    def ahead(self) -> bool | None:
        """Better (True), worse (False) or undecided (None)."""
        return self.mean > 0 if self.decided else None


def lead(one: Entry, other: Entry, measure: Measure) -> Lead | None:
    """The lead of one method over another by a metric; None where one of them was not measured."""
    mine, theirs = one.quality(measure.name), other.quality(measure.name)
    if not mine or not theirs:
        return None
    apart = np.subtract(mine, theirs) * (1 if measure.higher else -1)
    return Lead(float(apart.mean()), standard_error(apart.tolist()), len(apart))


def tail_lead(one: Entry, other: Entry, measure: Measure) -> Lead | None:
    """The same of the bad tails (the 5th percentile from the bad side), its error by drawing the samples again."""
    mine, theirs = one.quality(measure.name), other.quality(measure.name)
    if not mine or not theirs:
        return None
    sign, at = (1, 5) if measure.higher else (-1, 95)
    found = percentile_lead(np.array([mine]), np.array([theirs]), at)
    return replace(found, mean=sign * found.mean)


def percentile_lead(mine: np.ndarray, theirs: np.ndarray, at: float) -> Lead:
    """How far a percentile of one method is above another's; values are by seed and prompt.

    Samples of one prompt are alike, so the error is that of drawing the prompts again, each with all its seeds.
    """
    both, count = np.array([mine, theirs]), mine.shape[1]
    drawn = np.random.default_rng(0).integers(count, size=(RESAMPLES, count))
    again = np.percentile(both[:, :, drawn], at, axis=(1, 3))
    apart = float(np.subtract(*np.percentile(both, at, axis=(1, 2))))
    return Lead(apart, float((again[0] - again[1]).std(ddof=1)) if count > 1 else None, count)


def main_budget(comparison: Comparison) -> int:
    """The budget to put forward: the one in the middle, of two the larger, which claims less."""
    budgets = _with_ours(comparison)
    return budgets[len(budgets) // 2]


def _with_ours(comparison: Comparison) -> tuple[int, ...]:
    """The budgets at which ours took part; all of them if it took part in none."""
    ours = comparison.ours
    found = () if ours is None else tuple(b for b in comparison.budgets if comparison.entry(ours, b) is not None)
    return found or comparison.budgets


def why_this_budget(comparison: Comparison) -> str:
    """Why the headline is of that budget, in a sentence; empty where there is but one, or nobody to put forward."""
    budgets = _with_ours(comparison)
    if len(budgets) == 1 or comparison.ours is None:
        return ""
    which = "the middle one" if len(budgets) % 2 else "the larger of the two in the middle"
    which = "the larger" if len(budgets) == 2 else which
    at = "" if budgets == comparison.budgets else ", at which it took part"
    those = listed([str(budget) for budget in budgets])
    shown = f"Shown at {main_budget(comparison)} calls, {which} of {those}{at}, which was fixed before the results."
    return " ".join([shown, *_not_ahead(comparison, budgets)])


def _not_ahead(comparison: Comparison, budgets: Sequence[int]) -> list[str]:
    """Sentences on all of whom ours is not ahead by the first metric, at any budget; the headline has said of one."""
    told = []
    for budget in budgets:
        ours = comparison.entry(comparison.ours or "", budget)
        if ours is None or not comparison.measures:
            continue
        measure, rivals = comparison.measures[0], _others(comparison, comparison.within(budget))
        said = best_other(comparison, budget, measure) if budget == main_budget(comparison) else None
        leads = {
            rival.title: apart
            for rival in rivals
            if rival is not said and (apart := lead(ours, rival, measure)) is not None
        }
        better = [title for title, apart in leads.items() if apart.ahead is False]
        unsure = [title for title, apart in leads.items() if not apart.decided and apart.mean > 0]
        maybe = [title for title, apart in leads.items() if not apart.decided and apart.mean <= 0]
        told += [f"At {budget} calls {listed(better)} {'is' if len(better) == 1 else 'are'} better."] * bool(better)
        verb = "is" if len(maybe) == 1 else "are"
        told += [f"At {budget} calls it is undecided whether {listed(maybe)} {verb} better."] * bool(maybe)
        told += [f"At {budget} calls the lead over {listed(unsure)} is undecided."] * bool(unsure)
    return told


def headline(comparison: Comparison) -> str:
    """The outcome in one sentence, also where it is not in our favour, or undecided.

    With care for the worst samples, a second one compares the 5th percentiles.
    """
    return " ".join(filter(None, (_by_the_mean(comparison), _by_the_tail(comparison))))


def _by_the_tail(comparison: Comparison) -> str:
    budget, measures = main_budget(comparison), comparison.measures
    ours = comparison.entry(comparison.ours or "", budget)
    if comparison.care != "worst" or ours is None or not measures:
        return ""
    measure, rivals = measures[0], _others(comparison, comparison.within(budget))
    leads = {each.title: apart for each in rivals if (apart := tail_lead(ours, each, measure)) is not None}
    if not leads:
        return ""
    if len(comparison.prompts) < TAILED:
        return f"{len(comparison.prompts)} prompts are too few to compare a {measure.tail_title}: measure on {TAILED}."
    rival, apart = min(leads.items(), key=lambda each: each[1].mean)
    gap = f"{measure.spoken(abs(apart.mean), apart.error)} {'better' if apart.mean >= 0 else 'worse'}"
    doubt = "" if apart.decided else "; that may be chance, so it is undecided"
    return f"The {measure.tail_title} of {ours.title} is {gap} than the best of the others shown ({rival}){doubt}."


def _by_the_mean(comparison: Comparison) -> str:
    budget = main_budget(comparison)
    ours = comparison.entry(comparison.ours, budget) if comparison.ours is not None else None
    measure = comparison.measures[0] if comparison.measures else None
    found = ours.summed(measure) if ours is not None and measure is not None else None
    if ours is None or measure is None or found is None:
        budgets = ", ".join(map(str, comparison.budgets))
        return f"{several(len(comparison.methods), 'method')} at {budgets} of {comparison.steps} calls."
    faster = f", {'at most ' * ours.speed.capped}{ours.speedup:.1f} times faster," if ours.speed.known else ","
    value = f"{measure.title} {measure.spoken(found.mean, found.error)}"
    reached = f"stays at {value} to the full run" if measure.reference else f"reaches {value}"
    start = f"With {budget} instead of {comparison.steps} model calls{faster} {ours.title} {reached}"
    rival = best_other(comparison, budget, measure)
    apart = lead(ours, rival, measure) if rival is not None else None
    if rival is None or apart is None:
        return f"{start}."
    # Who is not there may well be better, and so may be who needs more calls.
    kept = "" if rival == _best(comparison, comparison.at(budget), measure) else " that kept to the budget"
    better, worse = ("closer", "further away") if measure.reference else ("better", "worse")
    gap = f"{measure.spoken(abs(apart.mean), apart.error)} {better if apart.mean >= 0 else worse}"
    on = f"on {several(len(comparison.prompts), 'prompt')}"
    doubt = "" if apart.decided else "; that may be chance, so it is undecided"
    return f"{start}: {gap} than the best of the others shown{kept} ({rival.title}), {on}{doubt}."


def best_other(comparison: Comparison, budget: int, measure: Measure) -> Entry | None:
    """The best of other people's methods at equal calls, whoever it is, by the mean.

    A policy that was brought is one of them, unless budcache has searched here as well and the policy's name begins
    with budcache's: then it is another one of ours.
    """
    return _best(comparison, comparison.within(budget), measure)


def _best(comparison: Comparison, entries: Sequence[Entry], measure: Measure) -> Entry | None:
    others = _others(comparison, entries)
    means = {entry.method: found.mean for entry in others if (found := entry.summed(measure)) is not None}
    known = [entry for entry in others if entry.method in means]
    return (max if measure.higher else min)(known, key=lambda entry: means[entry.method], default=None)


def _others(comparison: Comparison, entries: Sequence[Entry]) -> list[Entry]:
    """Those of some entries that are other people's."""
    others = [entry for entry in entries if entry.method not in (comparison.ours, *OURS)]
    if comparison.ours in OURS:
        others = [entry for entry in others if not entry.title.startswith("budcache")]
    return others
