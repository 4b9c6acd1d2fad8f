"""ERTACache: a fixed set of steps, chosen offline, with rescaled time and rectified residuals in between.

The paper's first version names a repository (bytedance/ERTACache), which could not be downloaded when this was written,
so it follows the paper and is not checked against code. Where that is open: what is cached is the trunk's residual, all
that the paper says of velocities is said of what leaves the trunk, and statistics are means over samples and branches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from budcache.baselines.base import Branch, Here, Knob, Native, StaticBranch
from budcache.errors import SearchError
from budcache.mask import Mask

if TYPE_CHECKING:
    from budcache.baselines.record import Record

__all__ = ["ERTACache", "rescaled"]

Table = tuple[tuple[float, ...], ...]

# A step of no length has no meaning for solvers that divide by it.
SHORTEST = 0.05


@dataclass(frozen=True, kw_only=True)
class ERTACache(Native):
    """ERTACache; static.

    Args:
        distance: `distance[a][k]`, mean |R_a - R_k| over mean |R_k|.
        moved: `moved[a][k]`, mean |R_a - R_k| over how far the trunk's output moved from step k - 1 to k.
        slopes: for each guidance branch, `slopes[b][a][k]` of the regression of R_k on R_a.
        offsets: and its constant term.
        threshold: the knob, the authors' lambda; 0 computes every step.
        adjust: whether reused steps are shortened by their error.
        rectify: whether reused residuals are corrected by the regression.

    The paper gains by both corrections, on models that we could not check against its code. Left at None they are on,
    and `tune` finds out whether they help.
    """

    name: ClassVar[str] = "ertacache"
    knob: ClassVar[Knob] = Knob("threshold")
    static: ClassVar[bool] = True
    distance: Table
    moved: Table
    slopes: tuple[Table, ...]
    offsets: tuple[Table, ...]
    threshold: float = 0.6
    adjust: bool | None = None
    rectify: bool | None = None

    @classmethod
    def calibrated(cls, record: Record) -> ERTACache:
        """From the residuals' distances and products in the full runs."""
        distance = record.mean("distance")
        moved = distance / np.maximum(np.nan_to_num(record.mean("change"), nan=np.inf), 1e-12)
        slopes, offsets = [], []
        for number in range(record.branches):
            mean, gram = record.mean("mean", number), record.mean("gram", number)
            variance = np.maximum(np.diag(gram) - mean**2, 1e-12)
            slope = (gram - np.outer(mean, mean)) / variance[:, None]
            slopes.append(_table(slope))
            offsets.append(_table(mean[None, :] - slope * mean[:, None]))
        return cls(
            steps=record.steps,
            distance=_table(distance / record.mean("size")),
            moved=_table(moved),
            slopes=tuple(slopes),
            offsets=tuple(offsets),
            threshold=0.08 if record.model.startswith("Wan") else 0.6,
        )

    def mask(self, steps: int | None = None) -> Mask:
        """Walk the full run: reuse while the cached residual is near the true one, else refresh it."""
        if steps not in (None, self.steps):
            raise SearchError(f"ERTACache was calibrated on {self.steps} steps, not {steps}. Record {steps} steps.")
        bits, cached = [True], 0
        for k in range(1, self.steps):
            bits.append(not self.distance[cached][k] < self.threshold)  # also where it is NaN
            if bits[-1]:
                cached = k
        return Mask(tuple(bits))

    def variants(self) -> list[ERTACache]:
        """With and without each correction that is left open."""
        return [
            replace(self, adjust=adjust, rectify=rectify)
            for adjust in ((True, False) if self.adjust is None else (self.adjust,))
            for rectify in ((True, False) if self.rectify is None else (self.rectify,))
        ]

    def sigmas(self, sigmas: Tensor, steps: int) -> Tensor:
        """Reused steps shortened by their errors."""
        if self.adjust is False:
            return sigmas
        mask = self.mask(steps)
        shares = [1.0] * steps
        for start, end in mask.segments:
            for k in range(start + 1, end):
                shares[k] = float(np.clip(1 - self.moved[start][k], SHORTEST, 1.0))
        return rescaled(sigmas, shares)

    def branch(self, steps: int, number: int) -> Branch:
        """Follows the mask; a guidance branch that was not recorded is corrected like the first."""
        return _Branch(self, self.mask(steps), number if number < len(self.slopes) else 0)


def rescaled(sigmas: Tensor, shares: Sequence[float]) -> Tensor:
    """Noise levels of which step k takes `shares[k]` of its due, what it leaves being spread over those after it.

    A step's due is its part of what remains, as the original levels divide it; the last one takes all of that. (The
    paper divides what remains by the number of steps, which means the same where levels are evenly spaced.)
    """
    if all(share == 1.0 for share in shares):
        return sigmas
    levels = sigmas.to(torch.float64)
    new = [float(levels[0])]
    end = float(levels[-1])
    for k, share in enumerate(shares):
        left = float(levels[k] - levels[-1])
        due = float(levels[k] - levels[k + 1]) / left if left > 0 else 1.0
        part = due * share if k < len(shares) - 1 else 1.0
        new.append(new[-1] - part * (new[-1] - end))
    return torch.tensor(new, dtype=sigmas.dtype)


def _table(values: np.ndarray) -> Table:
    return tuple(tuple(map(float, row)) for row in values)


class _Branch(StaticBranch):
    def __init__(self, method: ERTACache, mask: Mask, number: int) -> None:
        super().__init__(mask)
        self.method, self.number, self.cached = method, number, 0

    def computed(self, here: Here, residual: Tensor) -> None:
        """Remember the residual and whose it is."""
        self.last, self.cached = residual, here.step

    def skipped(self, here: Here) -> Tensor:
        """The cached residual minus its expected error.

        The paper models the error by a sigmoid of a line and linearises it. Errors have both signs, so this is the line
        itself: least squares of the error on the cached values, one slope and constant per step.
        """
        assert self.last is not None
        if self.method.rectify is False:
            return self.last
        slope = self.method.slopes[self.number][self.cached][here.step]
        offset = self.method.offsets[self.number][self.cached][here.step]
        return self.last * slope + offset
