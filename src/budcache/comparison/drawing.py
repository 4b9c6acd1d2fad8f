"""The first stage, drawing: every method draws the same samples from the same noise, one at a time.

A method whose calls depend on the sample may miss the budget on samples that it was not tuned on. Then a setting on the
other side of the budget is drawn as well, and its quality is read off between the two: above and below alike.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import Any

import numpy as np

from budcache.comparison.entry import BESIDE, CLOSE, FULL, Entry
from budcache.comparison.folder import Folder, unusable
from budcache.comparison.kept import compares
from budcache.comparison.methods import title
from budcache.comparison.planning import drawn_already, expected_phases, phase_name, wanted_rows
from budcache.comparison.preparing import Preparation
from budcache.comparison.ready import Ready, plain
from budcache.errors import BudcacheError, FileError, PipelineError, SearchError, WorkerError
from budcache.events import EntryDone
from budcache.jobs.meter import Meter
from budcache.mask import Computed
from budcache.metrics.base import Frame
from budcache.pipeline.clock import Clock, Lap
from budcache.pipeline.parts import denoisers, is_compiled
from budcache.samples.samples import fresh, seeded
from budcache.storage import media

__all__ = ["Drawing", "draw"]

TRIES = 3  # settings that are drawn to get to the other side of a budget, at most


@dataclass
class Drawing:
    """Draws samples on a pipeline, keeps them, and counts what they took of the network.

    Args:
        samples: keyword arguments of the pipeline's `__call__`, one set per sample.
        seed: of the first sample's noise, unless it brings its own; the next ones count up.
        steps: K of the full run.
        timed: the methods whose speed is measured; None is all.
    """

    pipe: Any
    samples: Sequence[Mapping[str, Any]]
    seed: int
    steps: int
    folder: Folder
    meter: Meter
    timed: Collection[str] | None = None
    _warm: bool = False
    _per_call: dict[str, float] = field(default_factory=dict)  # operations of a call of the full run, by size

    def entry(self, method: str, budget: int, ready: Ready) -> Entry:
        """Draw all samples under a method, untimed."""
        note = f"drawing at {budget} calls"
        if not self._warm:  # whatever is set up with the first picture should not count as somebody's time
            with plain(self.pipe, self.steps).running() as last_run:
                self._drawn(0, self.steps)
                self.meter.add(round(last_run().calls))
            self._warm = True
        laps, runs = list[Lap](), list[Computed]()
        with ready.running() as last_run:
            for number in range(len(self.samples)):
                sample, lap = self._drawn(number, ready.steps)
                laps.append(lap)
                runs.append(last_run())
                self.folder.keep(method, budget, number, sample)
                self.meter.add(round(runs[-1].calls), note)
        full = [(lap.loop, run.calls) for lap, run in zip(laps, runs, strict=True)] if method == FULL else []
        full = full or self._drawn_full()
        name = method.removeprefix(BESIDE)
        return Entry(
            method=method,
            title=f"full run, {self.steps} steps" if method == FULL else title(name),
            budget=budget,
            calls=tuple(run.calls for run in runs),
            equivalents=self._equivalents(ready, runs),
            seconds=tuple(lap.loop for lap in laps),
            full_seconds=tuple(seconds for seconds, _ in full),
            full_calls=tuple(calls for _, calls in full),
            before_seconds=median(lap.before for lap in laps),
            after_seconds=median(lap.after for lap in laps),
            masks=tuple(run.mask for run in runs),
            branches=tuple(run.branches for run in runs) if any(len(set(run.branches)) > 1 for run in runs) else (),
            knob=ready.knob,
            learned_on=ready.learned_on,
            learning_calls=ready.learning_calls,
        )

    def _drawn_full(self) -> list[tuple[float, float]]:
        """The drawn full run, for entries that are not timed."""
        entry = self.folder.drawn[FULL, self.steps].entry
        return list(zip(entry.seconds, entry.calls, strict=True))

    def _equivalents(self, ready: Ready, runs: Sequence[Computed]) -> tuple[float, ...]:
        """The operations of every sample in units of the full run's calls.

        A computed step takes as much as another, and so does a skipped one: they are counted in a run of the fewest and
        in one of the most calls, and those of other runs lie in between.
        """
        if ready.whole:
            return tuple(float(run.calls) for run in runs)
        if any(is_compiled(module) for module in denoisers(self.pipe).values()):
            return ()  # what a compiled network does cannot be seen
        first = {run.calls: number for number, run in reversed(list(enumerate(runs)))}
        ends = sorted({min(first), max(first)})
        known = [self._count(first[calls], ready)[0] / self._full_call(first[calls]) for calls in ends]
        return tuple(round(float(np.interp(run.calls, ends, known)), 4) for run in runs)

    def _full_call(self, number: int) -> float:
        """Operations of one call of the full run, of samples of this size."""
        size = repr([self.samples[number].get(name) for name in ("height", "width", "num_frames", "image")])
        if size not in self._per_call:
            total, calls = self._count(number, plain(self.pipe, self.steps))
            self._per_call[size] = total / calls
        return self._per_call[size]

    def _count(self, number: int, ready: Ready) -> tuple[int, float]:
        """The operations and the calls of a run."""
        from budcache.baselines.operations import counted

        with ready.running() as last_run, counted(self.pipe) as operations:
            self.pipe(**{**self.call(number, ready.steps), "output_type": "latent"})
            calls = last_run().calls
        self.meter.add(round(calls))
        return operations.total, calls

    @cached_property
    def clock(self) -> Clock:
        """What times runs."""
        return Clock(self.pipe)

    def call(self, number: int, steps: int) -> dict[str, Any]:
        """The arguments of a sample's run."""
        return {**fresh(seeded(self.samples[number], self.seed + number)), "num_inference_steps": steps}

    def _drawn(self, number: int, steps: int) -> tuple[Frame, Lap]:
        """One sample as numbers, and what the pipeline took for it."""
        # As numbers, so that a GPU has finished when it returns.
        output, lap = self.clock.time(lambda: self.pipe(**{**self.call(number, steps), "output_type": "np"}))
        found = media.samples(output)
        if len(found) != 1:
            raise SearchError(
                f"sample {number} gave {len(found)} pictures. Give each sample one prompt and one picture."
            )
        sample = np.asarray(found[0], np.float32)
        if not np.isfinite(sample).all():
            raise PipelineError(
                f"sample {number} has pixels that are not finite numbers, so nothing can be measured on it. Check the "
                "number format (float16 overflows where bfloat16 does not)."
            )
        return sample, lap


def draw(drawing: Drawing, preparation: Preparation, methods: Sequence[str], budgets: Sequence[int]) -> None:
    """Draw the full run and every method at every budget, but for what the folder has already.

    A method that cannot be brought to a budget on this pipeline is left out, with the reason. Trouble with the folder
    or with workers is no method's fault and ends the comparison.
    """
    folder, meter = drawing.folder, drawing.meter
    wanted = wanted_rows(drawing.steps, methods, budgets)
    there = {
        (method, budget): found.entry
        for method, those in wanted.items()
        for budget in those
        if (found := folder.find(method, budget, preparation.made_of(method, budget))) is not None
    }
    again = _to_draw_again(folder, set(there))
    known = {key: entry for key, entry in there.items() if key not in again}
    phases = expected_phases(preparation, len(drawing.samples), wanted, known, drawing.timed)
    meter.plan(phases, drawn_already(known, wanted))
    for method, those in wanted.items():
        meter.phase(phase_name(method))
        for budget in those:
            if (method, budget) not in known and not _drawn(drawing, preparation, method, budget):
                continue
            meter.tell(EntryDone(method, phase_name(method), budget, kept=(method, budget) in known))


def _to_draw_again(folder: Folder, known: set[tuple[str, int]]) -> set[tuple[str, int]]:
    """The full run, where its samples were removed and others have still to be compared with it.

    A sample that is lost and that a new metric needs is said here, before the work.
    """
    full, *others = folder.wanted
    missing = {key: folder.missing(folder.drawn[key]) for key in known}
    for key in others:
        if missing.get(key) and (sample := folder.lost(folder.drawn[key])) is not None:
            raise unusable(sample)
    if full not in known or folder.lost(folder.drawn[full]) is None:
        return set()
    needed = any(compares(name) for key in others for name in missing.get(key, folder.metrics))
    return {full} if needed or missing[full] else set()


def _drawn(drawing: Drawing, preparation: Preparation, method: str, budget: int) -> bool:
    """Draw a method at a budget, or write down why that cannot be."""
    folder, made_of = drawing.folder, preparation.made_of(method, budget)
    try:
        choices = [plain(drawing.pipe, budget)] if method == FULL else preparation.ready(method, budget)
        folder.remove(method, budget)
        folder.remove(BESIDE + method, budget)
        folder.discard(BESIDE + method, budget)
        entry = drawing.entry(method, budget, choices[0])
        if len(choices) > 1:
            _draw_beside(drawing, entry, choices, made_of)
        folder.add(entry, made_of)
    except (FileError, WorkerError):
        raise
    except BudcacheError as error:
        if method == FULL:
            raise
        folder.leave_out(method, title(method), budget, str(error))
        return False
    return True


def _draw_beside(drawing: Drawing, entry: Entry, choices: Sequence[Ready], made_of: str) -> None:
    """Draw the setting on the other side of the budget, where the nearest one does not meet it on these samples.

    A setting's calls on other samples are off by about as much as those of the first one.
    """
    budget, made = entry.budget, entry.mean_calls
    if abs(made - budget) <= CLOSE:
        return
    side = 1 if made < budget else -1
    off = made - (choices[0].expected or made)
    others = [each for each in choices[1:] if each.expected is not None and side * (each.expected + off - made) > 0]
    others.sort(key=lambda each: (side * (each.expected + off - budget) < 0, abs(each.expected + off - budget)))  # type: ignore[operator]
    for ready in others[:TRIES]:
        other = drawing.entry(BESIDE + entry.method, budget, ready)
        if side * (other.mean_calls - budget) >= 0:
            drawing.folder.add(other, made_of)
            return
    drawing.folder.discard(BESIDE + entry.method, budget)
