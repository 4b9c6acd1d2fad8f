"""TeaCache: skip while the input, rescaled by a polynomial to how much the output would change, has changed little."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from torch import Tensor

from budcache.baselines.base import Branch, Here, Knob, Native, pick, relative_l1
from budcache.baselines.signals import signal
from budcache.errors import SearchError

if TYPE_CHECKING:
    from budcache.baselines.record import Record

__all__ = ["TeaCache", "fit"]

DEGREE = 4
RETAINED = 5  # first steps of the variant for the projected signal

# Highest power first; "ret" is the variant that keeps the first five steps and watches the projected time embedding.
PUBLISHED: dict[str, tuple[float, ...]] = {
    "FLUX.1-dev": (498.651651, -283.781631, 55.8554382, -3.82021401, 0.264230861),
    "Wan2.1-T2V-1.3B": (2396.76752, -1311.10545, 201.331979, -8.29855975, 0.137887774),
    "Wan2.1-T2V-1.3B-ret": (-52186.2437, 9230.41404, -528.275948, 13.6987616, -0.0499875664),
    "Wan2.1-T2V-14B": (-5784.54975374, 5449.50911966, -1811.16591783, 256.27178429, -13.02252404),
    "Wan2.1-T2V-14B-ret": (-303318.725, 49053.7029, -2655.30556, 58.7365115, -0.315583525),
    "Wan2.1-I2V-480P": (-302.331670, 223.948934, -52.5463970, 5.87348440, -0.201973289),
    "Wan2.1-I2V-480P-ret": (257151.496, -35422.9917, 1402.86849, -13.5890334, 0.132517977),
    "Wan2.1-I2V-720P": (-114.36346466, 65.26524496, -18.82220707, 4.91518089, -0.23412683),
    "Wan2.1-I2V-720P-ret": (8107.05460, 2133.93892, -372.934672, 16.6203073, -0.0417769401),
}
# The authors' setting for about twice the speed.
THRESHOLDS = {
    "FLUX.1-dev": 0.6,
    "Wan2.1-T2V-1.3B": 0.08,
    "Wan2.1-T2V-1.3B-ret": 0.1,
    "Wan2.1-T2V-14B": 0.2,
    "Wan2.1-T2V-14B-ret": 0.1,
    "Wan2.1-I2V-480P": 0.26,
    "Wan2.1-I2V-480P-ret": 0.2,
    "Wan2.1-I2V-720P": 0.3,
    "Wan2.1-I2V-720P-ret": 0.3,
}


@dataclass(frozen=True, kw_only=True)
class TeaCache(Native):
    """TeaCache; a step is skipped while the accumulated, rescaled change of the signal stays below the threshold.

    Args:
        coefficients: of the polynomial from the signal's change to the output's, highest power first.
        threshold: the knob; 0 computes every step.
        first: how many first steps are always computed.
        last: whether the last one is.
        projected: for Wan, watch the projected time embedding.
        projection: the polynomial for that signal, where it was calibrated: `tune` also tries the authors' variant that
            goes by it ("ret-steps": the first five steps are computed, the last one need not be).
    """

    name: ClassVar[str] = "teacache"
    candidates: ClassVar[int] = 10
    knob: ClassVar[Knob] = Knob("threshold")
    coefficients: tuple[float, ...]
    threshold: float = 0.6
    first: int = 1
    last: bool = True
    projected: bool = False
    projection: tuple[float, ...] = ()

    @classmethod
    def calibrated(cls, record: Record) -> TeaCache:
        """Fit the polynomial to the changes between all neighbouring steps of all full runs and branches."""
        signals, projected, outputs = (
            np.concatenate([getattr(trace, name) for trace in record.traces])
            for name in ("signal", "projected", "output")
        )
        projection = fit(projected, outputs) if np.isfinite(projected).any() else ()
        threshold = 0.08 if record.model.startswith("Wan") else 0.6
        coefficients = fit(signals, outputs)
        return cls(steps=record.steps, coefficients=coefficients, threshold=threshold, projection=projection)

    @classmethod
    def published(cls, model: str, steps: int | None = None) -> TeaCache:
        """The authors' polynomials; thresholds for about twice the speed."""
        coefficients = pick(cls.name, model, PUBLISHED)
        ret = model.endswith("-ret")
        return cls(
            steps=steps or (28 if model.startswith("FLUX") else 40 if "I2V" in model else 50),
            coefficients=coefficients,
            threshold=THRESHOLDS[model],
            first=RETAINED if ret else 1,
            last=not ret,
            projected=ret,
        )

    def variants(self) -> list[TeaCache]:
        """Both signals, each with the first steps that the authors keep for it; with the last step and without.

        The authors always compute the last step for FLUX, but not for Wan with the projected signal. At a small budget
        it is a call that may be worth more elsewhere, and the method should not lose by that.
        """
        kept = [self]
        if self.projection:
            ret = replace(self, coefficients=self.projection, projection=(), projected=True)
            kept.append(replace(ret, first=RETAINED, last=False))
        return [replace(each, last=last) for each in kept for last in (each.last, not each.last)]

    def relaxed(self) -> TeaCache | None:
        """A first step less."""
        return replace(self, first=self.first - 1) if self.first > 1 else None

    def branch(self, steps: int, number: int) -> Branch:
        """Nothing accumulated."""
        return _Branch(self)


def fit(signals: Sequence[float] | np.ndarray, outputs: Sequence[float] | np.ndarray) -> tuple[float, ...]:
    """The polynomial of degree four from the signal's relative changes to the output's; NaN pairs are left out."""
    x, y = np.asarray(signals, np.float64), np.asarray(outputs, np.float64)
    known = np.isfinite(x) & np.isfinite(y)
    if known.sum() <= DEGREE:
        raise SearchError(
            f"TeaCache's polynomial has {DEGREE + 1} coefficients, but only {int(known.sum())} pairs of steps were "
            "recorded. Record more steps or samples."
        )
    return tuple(float(value) for value in np.polyfit(x[known], y[known], DEGREE))


class _Branch(Branch):
    def __init__(self, method: TeaCache) -> None:
        self.method, self.sum = method, 0.0
        self.before: Tensor | None = None

    def decide(self, here: Here) -> bool:
        """Add what this step changes, compare, and start again at a computed one."""
        method, before = self.method, self.before
        self._see(here)
        forced = here.step < method.first or (method.last and here.step == here.steps - 1)
        if not forced and before is not None:
            self.sum += float(np.polyval(method.coefficients, relative_l1(self._signal, before)))
            # A polynomial may be negative, so that the sum is below any threshold; at 0 nothing is to be skipped.
            if method.threshold > 0 and self.sum < method.threshold:
                return False
        self.sum = 0.0
        return True

    def follow(self, here: Here, compute: bool) -> None:
        """The change is always that since the step before, computed or not."""
        self._see(here)

    def _see(self, here: Here) -> None:
        self._signal = signal(here, self.method.projected)
        self.before = self._signal
