"""The configuration of each job: typed values that refuse what cannot be, before anything runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Literal, SupportsIndex, TypeAlias

from budcache.aggregate import Care
from budcache.errors import SearchError
from budcache.mask import MAX_STEPS
from budcache.options import check_budgets, check_care, known_options, whole
from budcache.policy import Ladder, Reuse
from budcache.rows import MAX_BLEND
from budcache.samples.samples import split
from budcache.strategies import STRATEGIES, Exhaustive, Limits, Paths, Polished, Strategy
from budcache.strategies import strategy as by_name
from budcache.wording import several

if TYPE_CHECKING:
    from budcache.calibration.objectives import ObjectiveLike
    from budcache.refine.align import Mean
    from budcache.refine.fit import Target

__all__ = ["AlignConfig", "AlignMethod", "FitConfig", "Refine", "SearchConfig", "care_of", "known_options", "with_care"]

STATE_MEMORY = 2_000_000_000  # bytes for remembered states
POLISH, ROUNDS = 0, 3  # of a climb at the end; more prompts are a better use of the calls (docs/search.md)
# Every mask is tried if nobody names a strategy and that is not much: up to so many masks, and model calls a sample. So
# it is at up to 10 steps, whatever the budgets. It is about as good as paths, and takes more calls (docs/few-steps.md).
LISTED, LISTED_CALLS = 1_000, 520
_FOR_WORST = " with care for the worst"
FEW = 8  # samples: with fewer, paths are found, fitted and chosen on all of them
PAPER_RATE, JOINT_RATE = 1e-3, 1e-2
OUTPUTS, RIDGES = (MAX_BLEND, 3), (1e-3, 1e-4, 1e-2)  # what a fit chooses from
AlignMethod: TypeAlias = Literal["gauss-newton", "gradient"]
Refine: TypeAlias = Literal["none", "fit", "full"]


def with_care(strategy: str, care: Care) -> str:
    """The strategy's name, and what the search cared for, as it stands in the origin of what was found."""
    return strategy + _FOR_WORST * (care == "worst")


def care_of(strategy: str) -> Care:
    """What a search cared for; see `with_care`."""
    return "worst" if strategy.endswith(_FOR_WORST) else "typical"


def taken_strategy(
    strategy: str | Strategy | None,
    reuse: Reuse,
    steps: int = MAX_STEPS,
    budgets: Sequence[int] = (),
    begun: str = "",
) -> Strategy:
    """A strategy by its name. None is what a ledger was begun with; else every mask where that is not much.

    Else it is paths, or the ladder where there are none: residuals do not add up (F1).

    Args:
        budgets: none where not every mask may be tried, because of a limit or a record.
        begun: how a ledger names its strategy, if there is one (`begun_with`).
    """
    if strategy is not None:
        return by_name(strategy) if isinstance(strategy, str) else strategy
    for usual in ("exhaustive", "paths", "ladder"):
        if f"{type(STRATEGIES[usual]).__name__}(" in begun:
            return STRATEGIES[usual]
    if not all(isinstance(number, SupportsIndex) for number in (steps, *budgets)):
        budgets = ()  # they will be refused, with a sentence
    possible = tuple(budget for budget in budgets if 1 <= budget <= steps <= MAX_STEPS)
    masks = sum(math.comb(steps - 1, budget - 1) for budget in possible)
    if possible and masks <= LISTED and Exhaustive().calls(steps, possible) <= LISTED_CALLS:
        return STRATEGIES["exhaustive"]
    return STRATEGIES["paths" if reuse == "output" else "ladder"]


@dataclass(frozen=True)
class SearchConfig:
    """How a search goes; see `budcache.search` for what each field means."""

    steps: int
    budgets: tuple[int, ...]
    strategy: Strategy = STRATEGIES["paths"]
    reuse: Reuse = "output"
    refine: Refine | None = None
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
    features: bool | None = None
    guided: bool = False  # whether the runs are expected to have two branches of guidance, for the estimate

    def __post_init__(self) -> None:
        check_budgets(self.budgets, self.steps)
        _check_common(self.steps, self.teacher_steps, self.batch)
        if isinstance(self.strategy, str):
            object.__setattr__(self, "strategy", by_name(self.strategy))
        if self.reuse not in ("output", "residual"):
            raise SearchError(f"there is no reuse {self.reuse!r}. Use 'output' or 'residual'.")
        if not callable(self.objective) and self.objective not in ("latent", "pixel"):
            raise SearchError(f"there is no objective {self.objective!r}. Use 'latent', 'pixel' or a function.")
        if self.refine not in (None, "none", "fit", "full"):
            raise SearchError(f"there is no refine {self.refine!r}. Use 'none', 'fit' or 'full'.")
        if self.features and not self.fitted:
            raise SearchError("only fitted weights can look at the sample. Leave features out, or refine by a fit.")
        if self.fitted and self.reuse != "output":
            raise SearchError('only reuse="output" can be fitted. Leave refine out, or use output reuse.')
        if self.state_memory < 0:
            raise SearchError(f"a memory of {self.state_memory} bytes is not possible. Choose 0 or more.")
        check_care(self.care)
        Polished(None, (), self.polish, self.rounds)
        if isinstance(self.strategy, Paths):
            if self.reuse != "output":
                raise SearchError('paths are for reuse="output": residuals do not add up. Use strategy="ladder".')
            return
        next(self.first.propose(self.steps, self.budgets, Random(self.seed)), None)  # what refuses these numbers

    @property
    def fitted(self) -> bool:
        """Whether reuse is fitted: where it can be, unless told otherwise."""
        return self.reuse == "output" if self.refine is None else self.refine != "none"

    @property
    def as_served(self) -> bool:
        """Whether masks are tried with the reuse that will be served, and judged by decoded pictures.

        The other strategies try thousands of masks with plain reuse, and fit the best of them.
        """
        return isinstance(self.strategy, Paths) or (isinstance(self.strategy, Exhaustive) and self.reuse == "output")

    def searched_on(self, samples: int) -> int:
        """How many of the samples to search on; the others choose."""
        if self.as_served and samples == 1:
            raise SearchError(
                "one prompt says nothing of others, and policies are fitted to what there is. Give at least two, "
                'better four or more; or use strategy="ladder".'
            )
        all_for_both = self.as_served and samples < FEW and self.selection is None
        return split(range(samples), 0 if all_for_both else self.selection)

    def suited(self, samples: int) -> SearchConfig:
        """The same for so many samples: paths try fewer candidates where there is nobody to choose among them.

        With care for the worst they try others.
        """
        if not isinstance(self.strategy, Paths):
            return self
        paths = self.strategy.for_worst() if self.care == "worst" else self.strategy
        return replace(self, strategy=paths.with_few() if self.searched_on(samples) == samples else paths)

    @property
    def first(self) -> Strategy:
        """What searches with plain reuse; without a fit it is this search that is polished."""
        polished = self.polish and not self.fitted
        return Polished(self.strategy, (), self.polish, self.rounds) if polished else self.strategy


@dataclass(frozen=True)
class FitConfig:
    """How masks are fitted; see `budcache.fit`."""

    ladder: Ladder
    outputs: tuple[int, ...] = OUTPUTS
    ridges: tuple[float, ...] = RIDGES
    target: Target = "next"
    teacher_steps: int | None = None
    seed: int = 0
    selection: int | None = None
    batch: int = 1
    features: bool | None = None

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
    method: AlignMethod | None = None
    batch: int = 1

    def __post_init__(self) -> None:
        from budcache.refine.align import check_pace

        _check_common(self.ladder.steps, self.teacher_steps, self.batch)
        if self.method not in (None, "gauss-newton", "gradient"):
            raise SearchError(f"there is no method {self.method!r}. Use 'gauss-newton' or 'gradient'.")
        self._check_method()
        if self.objective not in ("latent", "pixel"):
            raise SearchError(f"there is no objective {self.objective!r} to align by. Use 'latent' or 'pixel'.")
        if self.mean not in (None, "arithmetic", "geometric"):
            raise SearchError(f"there is no {self.mean!r} mean. Use 'arithmetic' or 'geometric'.")
        if self.epochs < 1:
            raise SearchError(f"epochs must be at least 1, got {self.epochs}.")
        if self.autocast not in (None, "bfloat16"):
            raise SearchError(f"autocast to {self.autocast!r} is not possible. Use 'bfloat16' or leave it out.")
        check_pace(PAPER_RATE if self.rate is None else self.rate, self.every)

    @property
    def way(self) -> AlignMethod:
        """The method: without gradients where there are weights to move, unless told otherwise."""
        fitted = all(rung.is_blended for rung in self.ladder)
        return self.method or ("gauss-newton" if fitted and not self._of_gradients else "gradient")

    @property
    def _of_gradients(self) -> list[str]:
        """Settings that only the method by gradients has, and that were given."""
        usual = {"epochs": 1, "rate": None, "mean": None, "every": 10, "objective": "latent", "autocast": None}
        return [name for name, value in usual.items() if getattr(self, name) != value]

    def _check_method(self) -> None:
        if self.way == "gradient":
            if self.batch != 1:
                chosen = self._of_gradients[0] if self.method is None and self._of_gradients else None
                why = f'{chosen} belongs to the method "gradient", and there' if chosen else "by gradients"
                which = f"{chosen} or batch" if chosen else "batch"
                raise SearchError(f"{why} one sample is run at a time, not {self.batch}. Leave {which} out.")
            return
        if self._of_gradients:
            name = self._of_gradients[0]
            raise SearchError(f'{name} belongs to the method "gradient". Leave it out, or choose that method.')
        for rung in self.ladder:
            if not rung.is_blended:
                raise SearchError(
                    f"the policy of {several(rung.budget, 'call')} repeats outputs as they are, so it has no weights "
                    'to align. Fit it first, or use the method "gradient".'
                )

    def check_workers(self) -> None:
        """Refuse workers where they would be of no use."""
        if self.way == "gradient":
            raise SearchError(
                "by gradients one update follows the other, so workers would wait for each other. Leave workers out, "
                'or use the method "gauss-newton".'
            )

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
