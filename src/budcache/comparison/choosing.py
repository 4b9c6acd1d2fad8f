"""Choosing the settings of other people's methods on the calibration samples, once for each budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from budcache.aggregate import Care
from budcache.comparison.kept import of_the_folder, put_aside
from budcache.comparison.settings import Settings
from budcache.errors import PipelineError
from budcache.jobs.meter import Meter
from budcache.policy import Origin
from budcache.samples.samples import seeded

if TYPE_CHECKING:
    from budcache.baselines.tuning import Choice

__all__ = ["SETTINGS", "Choosing", "expected_calls"]

SETTINGS = "settings.json"  # in the folder of the comparison


class Choosing:
    """The settings of any method at any budget, each chosen when it is first asked for and kept in the folder.

    Args:
        pipe: the pipeline.
        steps: K.
        calibration: samples to choose on.
        folder: where choices are kept.
        origin: what the kept choices say of where they came from.
        seed: of the first sample's noise.
        batch: how many samples of a static method run as one.
        meter: told sample-calls as they are spent.
        given: settings that were chosen already.
        care: what counts in the choice, typical errors or the worst ones.
    """

    def __init__(
        self,
        pipe: Any,
        steps: int,
        calibration: Sequence[Mapping[str, Any]],
        folder: Path,
        origin: Origin,
        seed: int,
        batch: int,
        meter: Meter,
        given: Settings | None,
        care: Care,
    ) -> None:
        self.pipe, self.steps, self.batch, self.meter, self.given = pipe, steps, batch, meter, given
        self.care: Care = care
        # As many samples as ours has, each with a noise of its own.
        self.samples = [seeded(sample, seed + number) for number, sample in enumerate(calibration)]
        self._file, self._origin = folder / SETTINGS, origin
        self._tuners: dict[str, Any] = {}

    def choice(self, method: str, budget: int) -> Choice[Any]:
        """What is chosen for a method at a budget."""
        for kept in (self.given, self._chosen):
            if kept is not None and (known := kept.find(method, budget)) is not None:
                return known
        from budcache.baselines import TUNABLE
        from budcache.baselines.tuning import Choice

        self.meter.add(0, note=f"choosing settings for {budget} calls")
        if method not in self._tuners:
            self._tuners[method] = self._tuner(method)
        tuner, spent = self._tuners[method]
        best = tuner.choice(budget)
        found = Choice(
            best.settings,
            samples=TUNABLE[method].learned_on(len(self.samples)),
            # Full runs and calibration serve all budgets, and count at each, as our search does.
            sample_calls=best.sample_calls + spent,
        )
        self._chosen.keep(method, budget, found)
        self._chosen.save(self._file)
        return found

    def _tuner(self, method: str) -> tuple[Any, int]:
        """What brings a method to all budgets, and the sample-calls that calibrating it took."""
        from budcache.baselines import TUNABLE
        from budcache.baselines.tally import counting
        from budcache.baselines.tuning import Tuner

        kind = TUNABLE[method]
        kind.check(self.pipe)  # before full runs are made
        full, calls = self._full_runs if kind.whole else self._record, 0
        if kind.whole:
            made = kind.calibrated(full)
        else:
            with counting(self.pipe) as own:  # LeMiCa has runs of its own
                made = kind.calibrated(full)
            calls = own.count // full.branches
        self.meter.add(calls)
        tuner = Tuner(
            self.pipe,
            made,
            full.samples,
            known=full,
            batch=self.batch,
            spent=self.meter.add,
            care=self.care,
            learned_here=True,
        )
        return tuner, self.steps * len(self.samples) + calls

    @cached_property
    def _full_runs(self) -> Any:
        """Full runs in which nothing need be watched; of networks that the caches do not know, their pictures."""
        from budcache.baselines.record import unwatched

        try:
            return self._record
        except PipelineError:
            found = unwatched(self.pipe, self.steps, self.samples)
            self.meter.add(self.steps * len(self.samples))
            return found

    @cached_property
    def _record(self) -> Any:
        from budcache.baselines import record

        self.meter.add(0, note="recording full runs")
        # One by one: what methods watch differs from sample to sample, and the mean of a batch would hide it.
        found = record(self.pipe, self.steps, self.samples)
        self.meter.add(self.steps * len(self.samples))
        return found

    @cached_property
    def _chosen(self) -> Settings:
        """What was chosen in this folder before."""
        facts = {"steps": self.steps, "care": self.care}
        fresh = Settings({**facts, **self._origin.model_dump(mode="json", exclude_none=True)})
        if not self._file.exists():
            return fresh
        with of_the_folder():
            found = Settings.load(self._file)
        if differs := found.difference(fresh):
            put_aside(self._file, f"has settings of another comparison: {differs}", "settings are chosen again")
            return fresh
        return found


def expected_calls(method: str, steps: int, budgets: Sequence[int], samples: int, care: Care) -> int:
    """About how many sample-calls choosing will take for some budgets, beside the full runs that serve all methods."""
    from budcache.baselines import TUNABLE
    from budcache.baselines.tuning import first_samples, halving_runs

    kind = TUNABLE[method]
    runs = halving_runs(kind.candidates, kind.learned_on(samples), first_samples(care))
    return kind.calibration_calls(steps, samples) + runs * sum(budgets)
