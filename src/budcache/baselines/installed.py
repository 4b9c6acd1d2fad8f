"""Methods as installed: the caches that diffusers brings, switched on through its own interface."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from budcache.baselines.base import Baseline, Knob, pick
from budcache.baselines.magcache import MagCache
from budcache.baselines.ratios import FLUX
from budcache.baselines.tally import Tally, watched
from budcache.baselines.taylorseer import FIRST, ORDERS
from budcache.errors import PipelineError
from budcache.mask import Mask
from budcache.pipeline.trunk import transformers

if TYPE_CHECKING:
    from budcache.baselines.record import Record

__all__ = ["DiffusersFirstBlock", "DiffusersMagCache", "DiffusersTaylorSeer", "Installed"]


@dataclass(frozen=True, kw_only=True)
class Installed(Baseline):
    """A method that another library carries out."""

    @abstractmethod
    def installed(self, pipe: Any, steps: int, tally: Tally) -> AbstractContextManager[None]:
        """Switch it on for the length of a `with` block."""


@dataclass(frozen=True, kw_only=True)
class Diffusers(Installed):
    """A cache of diffusers, by `transformer.enable_cache(...)`."""

    config: ClassVar[str]  # the name of its settings in diffusers

    @classmethod
    def available(cls) -> bool:
        """Whether this diffusers has it."""
        import diffusers

        return hasattr(diffusers, cls.config)

    @abstractmethod
    def settings(self, steps: int, transformer: Any) -> dict[str, Any]:
        """The arguments of the settings."""

    @contextmanager
    def installed(self, pipe: Any, steps: int, tally: Tally) -> Iterator[None]:
        """Switched on; state starts afresh with every run, also after one that was left midway."""
        import diffusers

        if not self.available():
            raise PipelineError(f"diffusers {diffusers.__version__} has no {self.config}. Upgrade diffusers.")
        if "cache_context" not in inspect.getsource(inspect.unwrap(type(pipe).__call__)):
            raise PipelineError(
                f"{type(pipe).__name__} does not tell diffusers' caches its guidance branches (cache_context), so they "
                "cannot run on it. Use a method of budcache's own, such as magcache."
            )
        with ExitStack() as undo:
            for transformer in transformers(pipe):
                if not hasattr(transformer, "enable_cache"):
                    raise PipelineError(
                        f"{type(transformer).__name__} has no enable_cache. Use a method of budcache's own."
                    )
                if transformer.is_cache_enabled:
                    raise PipelineError("a cache is on for this transformer already. Call its disable_cache() first.")
                transformer.enable_cache(getattr(diffusers, self.config)(**self.settings(steps, transformer)))
                undo.callback(transformer.disable_cache)
                tally.at_start.append(transformer._reset_stateful_cache)
            undo.enter_context(watched(pipe, tally))
            yield


@dataclass(frozen=True, kw_only=True)
class DiffusersMagCache(Diffusers):
    """MagCache of diffusers; static. One list of ratios serves both guidance branches."""

    name: ClassVar[str] = "diffusers-magcache"
    knob: ClassVar[Knob] = Knob("threshold", most=-1.0)
    static: ClassVar[bool] = True
    config: ClassVar[str] = "MagCacheConfig"
    ratios: tuple[float, ...]
    threshold: float = 0.06
    longest: int = 3
    retention: float = 0.2

    @classmethod
    def calibrated(cls, record: Record) -> DiffusersMagCache:
        """The ratios of the conditional branch."""
        return cls(steps=record.steps, ratios=MagCache.calibrated(record).ratios)

    @classmethod
    def published(cls, model: str, steps: int | None = None) -> DiffusersMagCache:
        """The ratios that diffusers brings."""
        return cls(steps=steps or 28, ratios=pick(cls.name, model, {"FLUX.1-dev": FLUX}))

    def settings(self, steps: int, transformer: Any) -> dict[str, Any]:
        """As diffusers names them."""
        return {
            "threshold": self.threshold,
            "max_skip_steps": self.longest,
            "retention_ratio": self.retention,
            "num_inference_steps": steps,
            "mag_ratios": list(self.ratios),
        }

    def mask(self, steps: int | None = None) -> Mask:
        """The same rule as the authors' for FLUX."""
        return self._own().mask(steps)

    def variants(self) -> list[DiffusersMagCache]:
        """As of the authors' own."""
        return [replace(self, longest=each.longest, retention=each.retention) for each in self._own().variants()]

    def pattern(self, steps: int) -> Hashable:
        """The mask is all."""
        return self.mask(steps)

    def _own(self) -> MagCache:
        return MagCache(
            steps=self.steps,
            ratios=self.ratios,
            threshold=self.threshold,
            longest=self.longest,
            retention=self.retention,
        )


@dataclass(frozen=True, kw_only=True)
class DiffusersFirstBlock(Diffusers):
    """FirstBlockCache of diffusers: compute when the first block's change differs from that of the last computed step.

    The first block runs at every step: no call, but a part of one among the call-equivalents.
    """

    name: ClassVar[str] = "diffusers-firstblock"
    knob: ClassVar[Knob] = Knob("threshold", most=-1.0)
    config: ClassVar[str] = "FirstBlockCacheConfig"
    threshold: float = 0.05

    @classmethod
    def calibrated(cls, record: Record) -> DiffusersFirstBlock:
        """Nothing to calibrate."""
        return cls(steps=record.steps)

    def settings(self, steps: int, transformer: Any) -> dict[str, Any]:
        """As diffusers names them."""
        return {"threshold": self.threshold}


@dataclass(frozen=True, kw_only=True)
class DiffusersTaylorSeer(Diffusers):
    """TaylorSeer of diffusers; static. By default it forecasts attentions only: the rest of every block still runs.

    Args:
        interval: the knob; 1 computes every step.
        first: how many first steps are always computed; the one after the next is, too.
        order: of the series.
        lite: forecast the transformer's output instead, and skip all blocks.
    """

    name: ClassVar[str] = "diffusers-taylorseer"
    knob: ClassVar[Knob] = Knob("interval", most=1, fewest=1000, whole=True)
    static: ClassVar[bool] = True
    config: ClassVar[str] = "TaylorSeerCacheConfig"
    interval: int = 5
    first: int = 3
    order: int = 1
    lite: bool = False

    @classmethod
    def calibrated(cls, record: Record) -> DiffusersTaylorSeer:
        """Nothing to calibrate."""
        return cls(steps=record.steps)

    def settings(self, steps: int, transformer: Any) -> dict[str, Any]:
        """As diffusers names them. Its series are kept in bfloat16 unless told otherwise, which costs more precision
        than memory where the model itself is more exact.
        """
        return {
            "cache_interval": self.interval,
            "disable_cache_before_step": self.first,
            "max_order": self.order,
            "taylor_factors_dtype": transformer.dtype,
            "use_lite_mode": self.lite,
            # Its own patterns miss Wan, whose attentions are called attn1 and attn2, and nothing would be cached there.
            "cache_identifiers": None if self.lite else [r"(single_)?(transformer_)?blocks\.\d+\.attn\d?"],
        }

    def mask(self, steps: int | None = None) -> Mask:
        """The first steps and, counted from one behind them, every `interval`th."""
        steps = steps or self.steps
        return Mask.of(steps, (k for k in range(steps) if k < self.first or (k - self.first - 1) % self.interval == 0))

    def variants(self) -> list[DiffusersTaylorSeer]:
        """First steps, orders and the light mode, which diffusers leaves to its users."""
        found = [
            replace(self, first=first, order=order, lite=lite)
            for lite in (False, True)
            for first in FIRST
            for order in ORDERS
        ]
        return list(dict.fromkeys([self, *found]))
