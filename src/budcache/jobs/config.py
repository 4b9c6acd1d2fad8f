"""The configuration of each job: typed values that refuse what cannot be, before anything runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Literal

from budcache.errors import SearchError
from budcache.options import check_budgets, known_options, whole
from budcache.policy import Ladder, Reuse
from budcache.samples.samples import split
from budcache.strategies import STRATEGIES, Limits, Paths, Polished, Strategy
from budcache.strategies import strategy as by_name
from budcache.wording import several

if TYPE_CHECKING:
    from budcache.calibration.aggregate import Care
    from budcache.calibration.objectives import ObjectiveLike
    from budcache.refine.align import Mean
    from budcache.refine.fit import Target

__all__ = ["AlignConfig", "FitConfig", "SearchConfig", "known_options"]

STATE_MEMORY = 2_000_000_000  # bytes for remembered states
POLISH, ROUNDS = 0, 3  # of a climb at the end; more prompts are a better use of the calls (docs/search.md)
FEW = 8  # samples: with fewer, paths are found, fitted and chosen on all of them
PAPER_RATE, JOINT_RATE = 1e-3, 1e-2


def taken_strategy(strategy: str | Strategy | None, reuse: Reuse) -> Strategy:
    """A strategy by its name; None is paths, or the ladder where there are none: residuals do not add up (F1)."""
    if strategy is None:
        return STRATEGIES["paths" if reuse == "output" else "ladder"]
    return by_name(strategy) if isinstance(strategy, str) else strategy


@dataclass(frozen=True)
class SearchConfig:
    """How a search goes; see `budcache.search` for what each field means."""

    steps: int
    budgets: tuple[int, ...]
    strategy: Strategy = STRATEGIES["paths"]
    reuse: Reuse = "output"
    fit: bool | None = None
    polish: int = POLISH
    rounds: int | None = ROUNDS
    teacher_steps: int | None = None
    seed: int = 0
    selection: int | None = None
    batch: int = 1
    objective: ObjectiveLike = "latent"
    limits: Limits = field(default_factory=Limits)
    state_memory: int = STATE_MEMORY
    care: Care = "typical"

    def __post_init__(self) -> None:
        check_budgets(self.budgets, self.steps)
        _check_common(self.steps, self.teacher_steps, self.batch)
        if isinstance(self.strategy, str):
            object.__setattr__(self, "strategy", by_name(self.strategy))
        if self.reuse not in ("output", "residual"):
            raise SearchError(f"there is no reuse {self.reuse!r}. Use 'output' or 'residual'.")
        if not callable(self.objective) and self.objective not in ("latent", "pixel"):
            raise SearchError(f"there is no objective {self.objective!r}. Use 'latent', 'pixel' or a function.")
        if self.fit and self.reuse != "output":
            raise SearchError('only reuse="output" can be fitted. Leave fit out, or use output reuse.')
        if self.state_memory < 0:
            raise SearchError(f"a memory of {self.state_memory} bytes is not possible. Choose 0 or more.")
        if self.care not in ("typical", "worst"):
            raise SearchError(f"there is no care {self.care!r}. Use 'typical' or 'worst'.")
        Polished(None, (), self.polish, self.rounds)
        if isinstance(self.strategy, Paths):
            if self.reuse != "output":
                raise SearchError('paths are for reuse="output": residuals do not add up. Use strategy="ladder".')
            return
        next(self.first.propose(self.steps, self.budgets, Random(self.seed)), None)  # what refuses these numbers

    @property
    def fitted(self) -> bool:
        """Whether reuse is fitted: where it can be, unless told otherwise."""
        return self.reuse == "output" if self.fit is None else self.fit

    def searched_on(self, samples: int) -> int:
        """How many of the samples to search on; the others choose."""
        paths = isinstance(self.strategy, Paths)
        if paths and samples == 1:
            raise SearchError(
                "one prompt says nothing of others, and paths are fitted to what there is. Give at least two, better "
                'four or more; or use strategy="ladder".'
            )
        all_for_both = paths and samples < FEW and self.selection is None
        return split(range(samples), 0 if all_for_both else self.selection)

    @property
    def first(self) -> Strategy:
        """What searches with plain reuse; without a fit it is this search that is polished."""
        polished = self.polish and not self.fitted
        return Polished(self.strategy, (), self.polish, self.rounds) if polished else self.strategy


@dataclass(frozen=True)
class FitConfig:
    """How masks are fitted; see `budcache.fit`."""

    ladder: Ladder
    outputs: tuple[int, ...] = (3, 2)
    ridges: tuple[float, ...] = (1e-3, 1e-4, 1e-2)
    target: Target = "next"
    teacher_steps: int | None = None
    seed: int = 0
    selection: int | None = None
    batch: int = 1

    def __post_init__(self) -> None:
        from budcache.refine.fit import check_blend

        _check_common(self.ladder.steps, self.teacher_steps, self.batch)
        if not self.outputs or not self.ridges:
            raise SearchError("there is nothing to choose from. Give at least one number of outputs and one ridge.")
        for outputs in self.outputs:
            for ridge in self.ridges:
                check_blend(outputs, ridge)
        if self.target not in ("next", "final"):
            raise SearchError(f"there is no target {self.target!r}. Use 'next' or 'final'.")
        for rung in self.ladder:
            which = f"the policy of {several(rung.budget, 'call')}"
            if rung.reuse != "output":
                raise SearchError(
                    f'{which} reuses residuals, and only outputs can be blended. Search with reuse="output".'
                )
            if rung.sigmas is not None:
                raise SearchError(
                    f"{which} has noise levels of its own, and fits are made on the pipeline's. Fit first, and align "
                    "what was fitted."
                )


@dataclass(frozen=True)
class AlignConfig:
    """How noise levels are learned; see `budcache.align`."""

    ladder: Ladder
    epochs: int = 1
    rate: float | None = None
    mean: Mean | None = None
    every: int = 10
    objective: Literal["latent", "pixel"] = "latent"
    autocast: Literal["bfloat16"] | None = None
    teacher_steps: int | None = None
    seed: int = 0
    selection: int | None = None

    def __post_init__(self) -> None:
        from budcache.refine.align import check_pace

        _check_common(self.ladder.steps, self.teacher_steps, 1)
        if self.objective not in ("latent", "pixel"):
            raise SearchError(f"there is no objective {self.objective!r} to align by. Use 'latent' or 'pixel'.")
        if self.mean not in (None, "arithmetic", "geometric"):
            raise SearchError(f"there is no {self.mean!r} mean. Use 'arithmetic' or 'geometric'.")
        if self.epochs < 1:
            raise SearchError(f"epochs must be at least 1, got {self.epochs}.")
        if self.autocast not in (None, "bfloat16"):
            raise SearchError(f"autocast to {self.autocast!r} is not possible. Use 'bfloat16' or leave it out.")
        check_pace(PAPER_RATE if self.rate is None else self.rate, self.every)

    def rate_for(self, joint: bool) -> float:
        """The learning rate: the paper's for noise levels alone, and what was found to suit blend weights."""
        return (JOINT_RATE if joint else PAPER_RATE) if self.rate is None else self.rate

    def mean_for(self, joint: bool) -> Mean:
        """The mean of the samples' errors: the paper's for noise levels alone, what goes with PSNR otherwise."""
        return self.mean or ("geometric" if joint else "arithmetic")


def _check_common(steps: int, teacher_steps: int | None, batch: int) -> None:
    if whole("batch", batch) < 1:
        raise SearchError(f"batch must be at least 1, got {batch}.")
    if teacher_steps is not None and whole("teacher_steps", teacher_steps) < steps:
        raise SearchError(
            f"a teacher of {teacher_steps} steps is coarser than the {steps} steps that it is to teach. "
            f"Leave its steps out, or choose more than {steps}."
        )
