"""The first stage, drawing: every method draws the same samples from the same noise, one at a time, and is timed."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from budcache.comparison.folder import Folder, compares, unusable
from budcache.comparison.methods import title
from budcache.comparison.preparing import Preparation, Ready, plain
from budcache.comparison.result import FULL, Entry
from budcache.comparison.timing import PARTS, parts
from budcache.errors import BudcacheError, FileError, PipelineError, SearchError
from budcache.events import EntryDone, Phase
from budcache.jobs.meter import Meter
from budcache.mask import Mask
from budcache.metrics.base import Frame
from budcache.samples.samples import fresh, seeded
from budcache.storage import media

__all__ = ["MEASURING", "Drawing", "draw"]

MEASURING = "measuring"  # the phase that comes after drawing; it makes no calls


@dataclass
class Drawing:
    """Draws samples on a pipeline, and keeps and times them.

    Args:
        samples: keyword arguments of the pipeline's `__call__`, one set per sample.
        seed: of the first sample's noise, unless it brings its own; the next ones count up.
        steps: K of the full run.
    """

    pipe: Any
    samples: Sequence[Mapping[str, Any]]
    seed: int
    steps: int
    folder: Folder
    meter: Meter
    warm: bool = False

    def expected_calls(self, method: str, budget: int) -> int:
        """What drawing a method at a budget costs: its samples, and the full runs that are timed in between."""
        count = len(self.samples)
        return count * budget + (0 if method == FULL else min(PARTS, count) * self.steps)

    def entry(self, method: str, budget: int, ready: Ready) -> Entry:
        """Draw all samples under a method, with a full run timed before each of a few parts of them."""
        note = f"drawing at {budget} calls"
        if not self.warm:  # whatever is set up with the first picture should not count as somebody's time
            self._full_run(0)
            self.warm = True
        seconds, masks, full = list[float](), list[Mask](), list[tuple[float, int]]()
        for part in [range(len(self.samples))] if method == FULL else parts(len(self.samples)):
            if method != FULL:
                full.append(self._full_run(part[0]))
            with ready.running() as last_mask:
                for number in part:
                    sample, taken = self._run(number, ready.steps)
                    seconds.append(taken)
                    masks.append(last_mask())
                    self.folder.keep(method, budget, number, sample)
                    self.meter.add(masks[-1].budget, note)
        full = full or [(taken, mask.budget) for taken, mask in zip(seconds, masks, strict=True)]
        return Entry(
            method=method,
            title=f"full run, {self.steps} steps" if method == FULL else title(method),
            budget=budget,
            calls=tuple(mask.budget for mask in masks),
            seconds=tuple(seconds),
            full_seconds=tuple(taken for taken, _ in full),
            full_calls=tuple(calls for _, calls in full),
            masks=tuple(masks),
            knob=ready.knob,
            learned_on=ready.learned_on,
        )

    def _full_run(self, number: int) -> tuple[float, int]:
        """The seconds and calls of a full run that is only timed, not kept."""
        with plain(self.pipe, self.steps).running() as last_mask:
            _, seconds = self._run(number, self.steps)
            calls = last_mask().budget
        self.meter.add(calls)
        return seconds, calls

    def _run(self, number: int, steps: int) -> tuple[Frame, float]:
        """One sample as numbers, and the seconds that the pipeline took for it."""
        call = fresh(seeded(self.samples[number], self.seed + number))
        begin = time.perf_counter()
        # As numbers, so that a GPU has finished when it returns.
        output = self.pipe(**{**call, "num_inference_steps": steps, "output_type": "np"})
        seconds = time.perf_counter() - begin
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
        return sample, seconds


def draw(drawing: Drawing, preparation: Preparation, methods: Sequence[str], budgets: Sequence[int]) -> None:
    """Draw the full run and every method at every budget, but for what the folder has already.

    A method that cannot be brought to a budget on this pipeline is left out, with the reason. Trouble with the folder
    is no method's fault and ends the comparison.
    """
    folder, meter = drawing.folder, drawing.meter
    wanted = {FULL: [drawing.steps], **{method: list(budgets) for method in methods}}
    known = {
        (method, budget)
        for method, those in wanted.items()
        for budget in those
        if folder.find(method, budget, preparation.made_of(method)) is not None
    }
    known -= _to_draw_again(folder, known)
    names = {method: _name(method) for method in wanted}
    meter.plan(expected_phases(drawing, preparation, wanted, known))
    for method, those in wanted.items():
        meter.phase(names[method])
        for budget in those:
            if (method, budget) in known:
                meter.skipped(drawing.expected_calls(method, budget))
            elif not _drawn(drawing, preparation, method, budget):
                continue
            meter.tell(EntryDone(method, names[method], budget, kept=(method, budget) in known))


def expected_phases(
    drawing: Drawing,
    preparation: Preparation,
    wanted: Mapping[str, Sequence[int]],
    known: Collection[tuple[str, int]] = (),
) -> list[Phase]:
    """What a comparison will cost, method by method; `known` is drawn already."""
    phases = []
    for method, those in wanted.items():
        new = any((method, budget) not in known for budget in those)
        calls = preparation.expected_calls(method) if new and method != FULL else 0
        phases.append(Phase(_name(method), calls + sum(drawing.expected_calls(method, budget) for budget in those)))
    return [*phases, Phase(MEASURING, 0)]


def _name(method: str) -> str:
    return "full run" if method == FULL else title(method)


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
    folder = drawing.folder
    try:
        ready = plain(drawing.pipe, budget) if method == FULL else preparation.ready(method, budget)
        folder.remove(method, budget)
        folder.add(drawing.entry(method, budget, ready), preparation.made_of(method))
    except FileError:
        raise
    except BudcacheError as error:
        if method == FULL:
            raise
        folder.leave_out(method, title(method), budget, str(error))
        return False
    return True
