"""cache-dit as installed: its dynamic cache, and its preset masks. Needs the extra `cache-dit`."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from budcache.baselines.base import Knob
from budcache.baselines.installed import Installed
from budcache.baselines.tally import Tally, watched
from budcache.errors import PipelineError, SearchError
from budcache.mask import Mask
from budcache.pipeline.trunk import transformers

if TYPE_CHECKING:
    from budcache.baselines.record import Record

__all__ = ["CacheDiT", "CacheDiTPreset"]

LEFT_BEHIND = ("forward", "_is_patched")
WARMUPS = (8, 4, 2)
PRESETS = ("slow", "medium", "fast", "ultra")


@dataclass(frozen=True, kw_only=True)
class _CacheDiT(Installed):
    """What both have in common.

    Args:
        first: how many first blocks run at every step; they are not counted as calls. cache-dit's default is 8 of a big
            model's blocks; 1 is the least that it allows, and the nearest to what the other methods do.
        branches: calls of the transformer in a step.
    """

    first: int = 1
    branches: int = 1

    @classmethod
    def available(cls) -> bool:
        """Whether cache-dit is installed."""
        return importlib.util.find_spec("cache_dit") is not None

    def settings(self, steps: int) -> dict[str, Any]:
        """The arguments of its settings, beyond the number of steps and blocks."""
        raise NotImplementedError

    @contextmanager
    def installed(self, pipe: Any, steps: int, tally: Tally) -> Iterator[None]:
        """Switched on; what it leaves on the transformer when switched off is taken off, too."""
        cache_dit = _cache_dit()
        with ExitStack() as undo:
            for transformer in transformers(pipe):
                own: dict[str, Any] = {name: vars(transformer).get(name) for name in LEFT_BEHIND}
                undo.callback(_clean, transformer, own)
            config = cache_dit.DBCacheConfig(
                Fn_compute_blocks=self.first,
                Bn_compute_blocks=0,
                num_inference_steps=steps,
                enable_separate_cfg=self.branches > 1,
                **self.settings(steps),
            )
            undo.callback(cache_dit.disable_cache, pipe)
            cache_dit.enable_cache(pipe, cache_config=config)
            undo.enter_context(watched(pipe, tally))
            yield


def _cache_dit() -> Any:
    try:
        return importlib.import_module("cache_dit")
    except ImportError as error:
        raise PipelineError(
            f"cache-dit is not installed ({error}). Install it with: pip install 'budcache[cache-dit]'."
        ) from error


def _clean(transformer: Any, own: dict[str, Any]) -> None:
    for name, value in own.items():
        vars(transformer).pop(name, None)
        if value is not None:
            vars(transformer)[name] = value


@dataclass(frozen=True, kw_only=True)
class CacheDiT(_CacheDiT):
    """cache-dit's DBCache: compute when the first blocks' residual differs from that of the last computed step.

    Args:
        threshold: the knob.
        warmup: how many first steps are always computed; None is cache-dit's default of 8, and `tune` may take fewer.
    """

    name: ClassVar[str] = "cache-dit"
    knob: ClassVar[Knob] = Knob("threshold", most=-1.0)
    threshold: float = 0.08
    warmup: int | None = None

    @classmethod
    def calibrated(cls, record: Record) -> CacheDiT:
        """Nothing to calibrate."""
        return cls(steps=record.steps, branches=record.branches)

    def settings(self, steps: int) -> dict[str, Any]:
        """As cache-dit names them."""
        return {
            "residual_diff_threshold": self.threshold,
            "max_warmup_steps": WARMUPS[0] if self.warmup is None else self.warmup,
        }

    def relaxed(self) -> CacheDiT | None:
        """A step less of warm-up."""
        return replace(self, warmup=self.warmup - 1) if self.warmup is not None and self.warmup > 1 else None

    def variants(self) -> list[CacheDiT]:
        """Eight first steps of 28 leave little to a small budget; cache-dit's own examples also have fewer."""
        return [replace(self, warmup=warmup) for warmup in (WARMUPS if self.warmup is None else (self.warmup,))]


@dataclass(frozen=True, kw_only=True)
class CacheDiTPreset(_CacheDiT):
    """cache-dit's preset masks, carried out to the letter (its policy "static").

    Args:
        preset: the knob: 0 to 3 for "slow" to "ultra"; -1 computes every step.
    """

    name: ClassVar[str] = "cache-dit-preset"
    knob: ClassVar[Knob] = Knob("preset", most=-1, fewest=len(PRESETS) - 1, whole=True)
    static: ClassVar[bool] = True
    preset: int = 1

    @classmethod
    def calibrated(cls, record: Record) -> CacheDiTPreset:
        """Nothing to calibrate."""
        return cls(steps=record.steps, branches=record.branches)

    def mask(self, steps: int | None = None) -> Mask:
        """The preset for a number of steps; cache-dit stretches and cuts it itself."""
        steps = steps or self.steps
        if self.preset < 0:
            return Mask.full(steps)
        if self.preset >= len(PRESETS):
            raise SearchError(
                f"cache-dit has the presets 0 to {len(PRESETS) - 1}, not {self.preset}. Choose one of them."
            )
        return Mask(tuple(map(bool, _cache_dit().steps_mask(total_steps=steps, mask_policy=PRESETS[self.preset]))))

    def settings(self, steps: int) -> dict[str, Any]:
        """As cache-dit names them."""
        bits = [int(bit) for bit in self.mask(steps)]
        return {"steps_computation_mask": bits, "steps_computation_policy": "static", "max_warmup_steps": 0}
