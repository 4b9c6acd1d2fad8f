"""LeMiCa: the path through the steps whose worst reused segment harms the final latents least."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from budcache.baselines.base import Branch, Knob, Native, StaticBranch, pick
from budcache.errors import PipelineError, SearchError
from budcache.mask import Mask
from budcache.numerics.rollout import State, coast, compute, ended
from budcache.pipeline.driven import PipelineModel

if TYPE_CHECKING:
    from budcache.baselines.record import Record

__all__ = ["LeMiCa", "path", "segment_errors"]

# Samples that segments are measured on. The authors take hundreds and find one nearly as good (24.51 dB against 24.67);
# at 28 steps each costs 2,335 sample-calls, so a few are what a comparison can bear.
SAMPLES = 4

# The authors' computed steps, of 50; of Z-Image-Turbo's 9. (There their lists for 8, 7 and 6 calls name a tenth step,
# which such a run does not have: they come to 7, 6 and 5 calls.)
PUBLISHED: dict[str, tuple[tuple[int, ...], ...]] = {
    "FLUX.1-dev": (
        (0, 1, 3, 7, 14, 21, 28, 35, 42, 49),
        (*range(6), 7, 10, 15, 20, 27, 34, 41, 47, 49),
        (*range(8), 9, 12, 15, 19, 24, 31, 38, 43, *range(46, 50)),
        (*range(11), 12, 15, 18, 20, 25, 30, 35, 39, 42, *range(44, 50)),
    ),
    "Wan2.1-T2V-1.3B": (
        (*range(6), 7, 10, 16, 23, 30, 37, 44, 49),
        (*range(9), 10, 13, 18, 25, 32, 39, 46, 49),
        (*range(10), 11, 13, 16, 20, 26, 33, 40, 45, 48, 49),
        (*range(13), 14, 16, 18, 21, 24, 29, 35, 40, 44, *range(47, 50)),
    ),
    "Wan2.1-T2V-14B": (
        (*range(8), 9, 12, 16, 22, 29, 36, 43, 47, 49),
        (*range(10), 11, 14, 18, 23, 29, 36, 42, 46, 48, 49),
    ),
    "Z-Image-Turbo": (
        (0, 1, 2, 5, 8),
        (0, 1, 2, 4, 6, 8),
        (0, 1, 2, 3, 5, 7, 8),
    ),
}
PUBLISHED_STEPS = {"Z-Image-Turbo": 9}  # others: 50


@dataclass(frozen=True, kw_only=True)
class LeMiCa(Native):
    """LeMiCa; static, and exact for any budget that its segments can reach.

    Args:
        errors: `errors[i][j]` is the harm of reusing step i up to step j, which is computed again; infinite where it
            was not measured.
        sets: instead of errors, sets of computed steps to choose from: the published ones.
        budget: the knob; 0 computes every step.
    """

    name: ClassVar[str] = "lemica"
    candidates: ClassVar[int] = 1
    knob: ClassVar[Knob] = Knob("budget", whole=True)
    static: ClassVar[bool] = True
    errors: tuple[tuple[float, ...], ...] = ()
    sets: tuple[tuple[int, ...], ...] = ()
    budget: int = 0

    @classmethod
    def calibrated(cls, record: Record, samples: int = SAMPLES, longest: int | None = None) -> LeMiCa:
        """Measure the segments, on runs of its own.

        Args:
            record: the samples and the pipeline.
            samples: how many of the samples to use, at most; see `calibration_calls` for what each costs.
            longest: the longest segment. The published sets have none above 7 of 50 steps, but they leave no choice
                at a fifth of the steps; ours may take a third of the run.
        """
        longest = longest or _longest(record.steps)
        return cls(steps=record.steps, errors=segment_errors(record, samples, longest))

    @classmethod
    def calibration_calls(cls, steps: int, samples: int) -> int:
        """A full run, and for each segment all that comes behind it; of at most four samples."""
        ends = [j for i in range(steps) for j in range(i + 2, min(i + _longest(steps), steps - 1) + 1)]
        return min(samples, SAMPLES) * (steps + sum(steps - j for j in ends))

    @classmethod
    def learned_on(cls, samples: int) -> int:
        """At most four; nothing is left to tune."""
        return min(samples, SAMPLES)

    @classmethod
    def published(cls, model: str, steps: int | None = None) -> LeMiCa:
        """The authors' sets, of 50 steps; of 9 for Z-Image-Turbo."""
        sets, own = pick(cls.name, model, PUBLISHED), PUBLISHED_STEPS.get(model, 50)
        if steps not in (None, own):
            raise PipelineError(
                f"LeMiCa's published sets for {model} are of {own} steps, not {steps}, and say nothing about others. "
                "Calibrate it on your pipeline."
            )
        return cls(steps=own, sets=sets, budget=len(sets[0]))

    def mask(self, steps: int | None = None) -> Mask:
        """The computed steps of the budget."""
        if steps not in (None, self.steps):
            raise SearchError(
                f"LeMiCa was calibrated on {self.steps} steps, not {steps}. Record runs of {steps} steps."
            )
        if not self.budget:
            return Mask.full(self.steps)
        if self.sets:
            return Mask.of(self.steps, next(each for each in self.sets if len(each) == self.budget))
        return Mask.of(self.steps, path(self.errors, self.budget))

    def at_budget(self, budget: int, steps: int) -> LeMiCa:
        """Solve for the budget, or for the nearest that there is."""
        if self.sets:
            near = min((len(each) for each in self.sets), key=lambda size: (abs(size - budget), size))
            return replace(self, budget=near)
        for near in sorted(range(1, steps + 1), key=lambda size: (abs(size - budget), size)):
            try:
                path(self.errors, near)
            except SearchError:
                continue
            return replace(self, budget=near)
        raise SearchError("LeMiCa found no path through the steps. Measure longer segments.")

    def branch(self, steps: int, number: int) -> Branch:
        """Follows the mask."""
        return StaticBranch(self.mask(steps))


def _longest(steps: int) -> int:
    return max(7, -(-steps // 3))


def path(errors: Sequence[Sequence[float]], budget: int) -> tuple[int, ...]:
    """The lexicographic minimax path from the first step to the last over exactly `budget` computed steps.

    The errors of its segments, from the largest down, are the least in lexicographic order. Putting one more segment
    behind two paths keeps their order, so the best path to each step by each number of steps is all there is to know.
    """
    steps = len(errors)
    if not 1 <= budget <= steps or (budget == 1 and steps > 1):
        raise SearchError(
            f"no path over {budget} computed steps: the first and the last of {steps} are always computed."
        )
    best: dict[int, tuple[tuple[float, ...], tuple[int, ...]]] = {0: ((), (0,))}
    for _ in range(budget - 1):
        longer: dict[int, tuple[tuple[float, ...], tuple[int, ...]]] = {}
        for i, (weights, way) in best.items():
            for j in range(i + 1, steps):
                error = errors[i][j] if j > i + 1 else 0.0
                if math.isinf(error):
                    continue
                found = (tuple(sorted((*weights, error), reverse=True)), (*way, j))
                if j not in longer or found < longer[j]:
                    longer[j] = found
        best = longer
    if steps - 1 not in best:
        raise SearchError(
            f"no path over {budget} computed steps reaches the end of {steps}: the measured segments are too short. "
            "Measure longer ones, or raise the budget."
        )
    return best[steps - 1][1]


def segment_errors(record: Record, samples: int, longest: int) -> tuple[tuple[float, ...], ...]:
    """The harm of each segment by itself: mean |difference| of the final latents to the full run's, over samples.

    A segment's run leaves the full one at i, reuses up to j and computes everything from there on.
    """
    from budcache.baselines.pictures import fresh

    if record.pipe is None or not record.samples:
        raise SearchError("LeMiCa needs runs of its own, but this record has no pipeline. Make it with record().")
    steps, chosen = record.steps, record.samples[:samples]
    total: NDArray[np.float64] = np.full((steps, steps), np.inf)
    for sample in chosen:
        call = {
            name: value for name, value in fresh(sample).items() if name not in ("num_inference_steps", "output_type")
        }
        with PipelineModel(record.pipe, steps=steps, reuse="residual", **call) as model:
            follow = _Follow(model)
            state = State(model.noise, step=model.begin)
            full = []
            while state.step < steps:
                state = follow.computed(state)
                full.append(state)
            for start in full[:-1]:
                i, reused = start.step - 1, start
                for j in range(i + 2, min(i + longest, steps - 1) + 1):
                    if full[j - 1 - model.begin].memo.keys() != start.memo.keys():
                        break  # Wan 2.2's other expert, which has nothing to reuse yet
                    reused = follow.reused(reused)
                    end = reused
                    while end.step < steps:
                        end = follow.computed(end)
                    harm = float((end.x.float() - state.x.float()).abs().mean())
                    total[i, j] = harm / len(chosen) + (0.0 if np.isinf(total[i, j]) else total[i, j])
    return tuple(tuple(map(float, row)) for row in total)


class _Follow:
    """One step of a run at a time, computed or with the residual of the last computed step."""

    def __init__(self, model: PipelineModel) -> None:
        self.model, self.solver = model, model.solver()

    def computed(self, state: State) -> State:
        state = compute(self.model, state, self.model.sigmas)
        return self._on(state, state.outputs[0])

    def reused(self, state: State) -> State:
        return self._on(state, self.model.reuse(state.x, self.model.sigmas[state.step], state.memo))

    def _on(self, state: State, v: Tensor) -> State:
        return ended(coast(state, v, state.step + 1, self.model.sigmas, self.solver))
