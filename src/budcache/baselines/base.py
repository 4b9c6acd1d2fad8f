"""What another method is; of a cache, a decision at the trunk's entrance, and what to add where that is skipped."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from budcache.errors import PipelineError, SearchError
from budcache.mask import Computed, Mask

if TYPE_CHECKING:
    from typing_extensions import Self

    from budcache.baselines.record import Record

__all__ = ["Baseline", "Branch", "Here", "Knob", "Native", "StaticBranch", "Taps", "pick", "relative_l1"]


@dataclass(frozen=True)
class Knob:
    """The one number by which a method trades calls for quality.

    Args:
        name: the field of the method that it is.
        most: the value at which every step is computed.
        fewest: the value at which the fewest are; larger than `most`, and above 0.
        whole: whether only whole numbers make sense.
    """

    name: str
    most: float = 0.0
    fewest: float = 1e4
    whole: bool = False


@dataclass
class Here:
    """What a method may look at when a transformer is called at a step.

    Attributes:
        step: index in 0..steps-1, from the scheduler, so it is right from the first step of every run.
        hidden: the hidden states that enter the trunk, shape [N, tokens, channels].
        block: the trunk's first block; `args` and `kwargs` are what it was given.
        time: the embedding of the time, where the trunk's blocks are not given it (Wan).
        probed: the hidden states behind the probe blocks, for methods that have them.
        model: the name of the transformer's class.
    """

    step: int
    steps: int
    hidden: Tensor
    block: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    model: str
    time: Tensor | None = None
    probed: Tensor | None = None


@dataclass(frozen=True)
class Taps:
    """The modules of a block whose outputs are forecast one by one, and those that need not run for it."""

    forecast: tuple[str, ...]
    blank: tuple[str, ...] = ()


class Branch(ABC):
    """One guidance branch of one transformer in one run; all of a method's state is here, so none outlives a run.

    The first branch of a step decides for all of them, unless the method lets them decide apart.
    """

    last: Tensor | None = None

    @abstractmethod
    def decide(self, here: Here) -> bool:
        """Whether to compute this step; asked at every step at which there is something to reuse."""

    def follow(self, here: Here, compute: bool) -> None:  # noqa: B027
        """See a step that this branch did not decide: because there is nothing to reuse yet, or another one did."""

    def computed(self, here: Here, residual: Tensor) -> None:
        """See what the trunk did at a computed step: what left it minus what entered."""
        self.last = residual

    def skipped(self, here: Here) -> Tensor:
        """What to add to the hidden states in place of the trunk."""
        assert self.last is not None
        return self.last

    def tapped(self, tap: int, here: Here, out: Any) -> None:  # noqa: B027
        """See the output of a tapped module at a computed step."""

    def forecast(self, tap: int, here: Here) -> Any:
        """The output of a tapped module at a skipped step."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Baseline(ABC):
    """A caching method, or another solver, with its settings.

    Args:
        steps: K, the number of steps it was made for.
    """

    steps: int

    name: ClassVar[str]
    knob: ClassVar[Knob]
    static: ClassVar[bool] = False  # the same steps for every input, known beforehand: see `mask`
    # Whether so much is learned that settings must be chosen on samples which it was not learned on; see `relearned`.
    held_out: ClassVar[bool] = False

    whole: ClassVar[bool] = False  # its calls are of the whole network, of whatever kind that is
    candidates: ClassVar[int] = 24  # settings that tuning runs against each other at a budget, typically: for estimates

    @classmethod
    def available(cls) -> bool:
        """Whether what the method needs is installed."""
        return True

    @classmethod  # noqa: B027
    def check(cls, pipe: Any) -> None:
        """Raise a sentence where a pipeline is not for this method, as far as is known before it runs."""

    @classmethod
    @abstractmethod
    def calibrated(cls, record: Record) -> Self:
        """The method for a new model, from an instrumented full run of it."""

    @classmethod
    def calibration_calls(cls, steps: int, samples: int) -> int:
        """Sample-calls that calibrating takes beside the full runs of the record."""
        return 0

    @classmethod
    def learned_on(cls, samples: int) -> int:
        """Of so many calibration samples, how many calibrating and tuning use."""
        return samples

    def relearned(self, record: Record) -> Self:
        """The same settings, with all that is learned learned on another record; needed where `held_out` is set."""
        raise NotImplementedError(f"{type(self).__name__} is held_out, so it has to say how it is learned again.")

    @classmethod
    def published(cls, model: str, steps: int | None = None) -> Self:
        """The method with the constants that its authors publish for a model, such as "FLUX.1-dev"."""
        raise PipelineError(f"{cls.name} has no published constants to take. Use {cls.__name__}.calibrated(record).")

    def mask(self, steps: int | None = None) -> Mask:
        """The steps that a static method computes."""
        raise SearchError(f"{self.name} decides while it runs, so its steps differ from input to input. Run it to see.")

    def planned(self, steps: int | None = None) -> Computed:
        """What a run of a static method computes; more than its mask where guidance branches decide apart."""
        return Computed.of(self.mask(steps))

    def asked(self, steps: int) -> int:
        """The steps to ask the pipeline for where the full run has so many."""
        return steps

    def tuned(self, value: float) -> Self:
        """The same method with its knob set."""
        setting: Any = {self.knob.name: int(value) if self.knob.whole else value}
        return replace(self, **setting)

    def relaxed(self) -> Self | None:
        """The method with its forced steps loosened a little, for budgets that its knob alone cannot reach."""
        return None

    def variants(self) -> list[Self]:
        """The settings beside the knob that its authors name; `tune` takes the best of them."""
        return [self]

    def pattern(self, steps: int) -> Hashable:
        """What a static method's runs depend on: settings of one pattern draw the same."""
        rest = tuple(repr(getattr(self, each.name)) for each in fields(self) if each.name != self.knob.name)
        return self.mask(steps), rest

    def at_budget(self, budget: int, steps: int) -> Self | None:
        """The method that makes exactly so many calls, where it can solve for that; None: turn the knob."""
        return None


@dataclass(frozen=True, kw_only=True)
class Native(Baseline):
    """A method carried out by our own engine: see `Branch`, and docs/baselines.md."""

    taps: ClassVar[Mapping[str, Taps]] = {}  # by class of block; a skipped step then runs the blocks around them

    @property
    def probes(self) -> int:
        """How many blocks run before the decision, at skipped steps too."""
        return 0

    @property
    def apart(self) -> bool:
        """Whether each guidance branch decides for itself."""
        return False

    @abstractmethod
    def branch(self, steps: int, number: int) -> Branch:
        """Fresh state for the `number`th call of each step of a run."""

    def sigmas(self, sigmas: Tensor, steps: int) -> Tensor:
        """The noise levels to run on, shape [K + 1]; the pipeline's own for all but one method."""
        return sigmas


class StaticBranch(Branch):
    """Computes where a mask says so and otherwise repeats the last residual."""

    def __init__(self, mask: Mask) -> None:
        self.mask = mask

    def decide(self, here: Here) -> bool:
        """As the mask says."""
        return self.mask[here.step]


def relative_l1(new: Tensor, old: Tensor) -> float:
    """mean|new - old| / mean|old| over the whole tensor and thus the whole batch, as the methods' own codes have it."""
    return float((new.float() - old.float()).abs().mean() / old.float().abs().mean().clamp_min(1e-12))


def pick(name: str, model: str, published: Mapping[str, Any]) -> Any:
    """The published constants of a model."""
    if model not in published:
        raise PipelineError(
            f"{name} has published constants for {', '.join(sorted(published))}, not for {model!r}. "
            "Choose one of these, or calibrate on your pipeline with record()."
        )
    return published[model]
