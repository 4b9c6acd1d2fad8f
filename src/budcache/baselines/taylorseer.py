"""TaylorSeer: at fixed intervals compute, in between continue every module's output by its Taylor series."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from budcache.baselines.base import Branch, Here, Knob, Native, StaticBranch, Taps, pick
from budcache.mask import Mask

if TYPE_CHECKING:
    from budcache.baselines.record import Record

__all__ = ["FIRST", "ORDERS", "Series", "TaylorSeer", "intervals"]

# What is chosen from: the authors' scripts have 1 to 3 first steps and order 1 or 2.
FIRST, ORDERS = (1, 2, 3, 4), (1, 2, 3, 4)


@dataclass(frozen=True, kw_only=True)
class TaylorSeer(Native):
    """TaylorSeer; static. Forecasts of modules are no calls; what still runs of a block counts as call-equivalents.

    Its memory is its price: order + 1 tensors for each of a block's modules, 114 modules on FLUX.

    Args:
        interval: the knob, the authors' n; 1 computes every step.
        first: how many first steps are always computed.
        order: of the series.
    """

    name: ClassVar[str] = "taylorseer"
    candidates: ClassVar[int] = 32
    knob: ClassVar[Knob] = Knob("interval", most=1, fewest=1000, whole=True)
    static: ClassVar[bool] = True
    # What a block's gates multiply, before they do. A FLUX single block has one fused output.
    taps: ClassVar[Mapping[str, Taps]] = {
        "FluxTransformerBlock": Taps(("attn", "ff", "ff_context")),
        "FluxSingleTransformerBlock": Taps(("proj_out",), blank=("attn", "proj_mlp")),
        "WanTransformerBlock": Taps(("attn1", "attn2", "ffn")),
        "QwenImageTransformerBlock": Taps(("attn", "img_mlp", "txt_mlp")),
        "ZImageTransformerBlock": Taps(("attention", "feed_forward")),
        "JointTransformerBlock": Taps(("attn", "attn2", "ff", "ff_context")),
    }
    interval: int = 6
    first: int = 3
    order: int = 1

    @classmethod
    def calibrated(cls, record: Record) -> TaylorSeer:
        """Nothing to calibrate: the settings of the model's family."""
        return cls.published("Wan2.1" if record.model.startswith("Wan") else "FLUX.1-dev", record.steps)

    @classmethod
    def published(cls, model: str, steps: int | None = None) -> TaylorSeer:
        """The authors' settings."""
        made: TaylorSeer = pick(cls.name, model, PUBLISHED)
        return replace(made, steps=steps or made.steps)

    def mask(self, steps: int | None = None) -> Mask:
        """The first steps, and from the last of them on every `interval`th."""
        return intervals(steps or self.steps, self.first, self.interval)

    def variants(self) -> list[TaylorSeer]:
        """The first steps and orders of the authors' scripts, 1 to 3 and 1 or 2, and some beyond."""
        found = [replace(self, first=first, order=order) for first in FIRST for order in ORDERS]
        return list(dict.fromkeys([self, *found]))

    def branch(self, steps: int, number: int) -> Branch:
        """No series yet."""
        return _Branch(self, self.mask(steps))


def intervals(steps: int, first: int, interval: int) -> Mask:
    """The first steps, and from the last of them on every `interval`th."""
    first = max(1, min(first, steps))
    return Mask.of(steps, (*range(first), *range(first - 1, steps, interval)))


class Series:
    """One module's output as a function of the step, from finite differences of its values at computed steps.

    The differences look back, so that order 1 continues a straight line exactly, and order 2 a parabola only nearly.
    """

    def __init__(self, order: int) -> None:
        self.order, self.step = order, 0
        self.factors: list[Tensor] = []

    def see(self, step: int, value: Tensor, difference: bool = True) -> None:
        """Take in the value at a computed step."""
        factors = [value]
        if difference:
            for old in self.factors[: self.order]:
                factors.append((factors[-1] - old) / (step - self.step))
        self.factors, self.step = factors, step

    def at(self, step: int) -> Tensor:
        """The value at a later step."""
        ahead = step - self.step
        value = self.factors[0]
        for power, factor in enumerate(self.factors[1:], start=1):
            value = value + factor * (ahead**power / math.factorial(power))
        return value


class _Branch(StaticBranch):
    def __init__(self, method: TaylorSeer, mask: Mask) -> None:
        super().__init__(mask)
        self.method = method
        self.series: dict[int, tuple[Series, ...]] = {}
        self.tuples: set[int] = set()

    def computed(self, here: Here, residual: Tensor) -> None:
        """The trunk's residual is not needed."""

    def tapped(self, tap: int, here: Here, out: Any) -> None:
        """Keep the series of each tensor that a module returns; an attention may return image and text."""
        values = out if isinstance(out, tuple) else (out,)
        if tap not in self.series:
            self.series[tap] = tuple(Series(self.method.order) for _ in values)
        for series, value in zip(self.series[tap], values, strict=True):
            # As in the authors' code, the first differences are those between the last two of the first steps.
            series.see(here.step, value, difference=here.step >= self.method.first - 1)
        if isinstance(out, tuple):
            self.tuples.add(tap)

    def forecast(self, tap: int, here: Here) -> Any:
        """The same as a module returns it."""
        values = tuple(series.at(here.step) for series in self.series[tap])
        return values if tap in self.tuples else values[0]


PUBLISHED = {
    "FLUX.1-dev": TaylorSeer(steps=50),
    "Wan2.1": TaylorSeer(steps=50, interval=5, first=1),
}
