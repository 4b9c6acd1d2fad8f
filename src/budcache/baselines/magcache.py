"""MagCache: skip while the product of known magnitude ratios of the residual stays near one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from budcache.baselines.base import Branch, Knob, Native, StaticBranch, pick
from budcache.mask import Mask

if TYPE_CHECKING:
    from budcache.baselines.record import Record

__all__ = ["FLUX", "MagCache", "resampled"]

MOST_RETAINED = 0.4  # the largest share of first steps that the authors' settings have

FLUX = (
    *(1.0, 1.21094, 1.11719, 1.07812, 1.0625, 1.03906, 1.03125, 1.03906, 1.02344, 1.03125, 1.02344, 0.98047, 1.01562),
    *(1.00781, 1.0, 1.00781, 1.0, 1.00781, 1.0, 1.0, 0.99609, 0.99609, 0.98047, 0.98828, 0.96484, 0.95703, 0.93359),
    0.89062,
)
# Of the conditional branch; the unconditional one gives the same masks at every published setting.
WAN_1_3B = (
    *(1.0, 1.0124, 1.00166, 0.99791, 0.99682, 0.99634, 0.99567, 0.99416, 0.99578, 0.9957, 0.99511, 0.99535, 0.99552),
    *(0.99541, 0.9954, 0.99489, 0.99518, 0.99484, 0.99481, 0.99415, 0.99419, 0.99396, 0.99388, 0.99349, 0.99309),
    *(0.9927, 0.99228, 0.99171, 0.99137, 0.99068, 0.99005, 0.98944, 0.98849, 0.98758, 0.98644, 0.98504, 0.9836),
    *(0.98202, 0.97977, 0.97717, 0.9741, 0.97003, 0.96538, 0.9593, 0.95086, 0.94013, 0.92402, 0.90241, 0.86821),
    0.81838,
)
WAN_14B = (
    *(1.0, 1.02504, 1.00025, 0.9985, 0.99779, 0.9966, 0.99482, 0.99467, 0.99664, 0.99434, 0.99533, 0.99468, 0.99438),
    *(0.99516, 0.99384, 0.99404, 0.99517, 0.99409, 0.99428, 0.99347, 0.99418, 0.99271, 0.99313, 0.99215, 0.99218),
    *(0.99216, 0.99163, 0.99138, 0.98982, 0.98996, 0.9887, 0.98772, 0.98767, 0.98573, 0.98501, 0.9838, 0.98177),
    *(0.98037, 0.97678, 0.97546, 0.97184, 0.96711, 0.96349, 0.95629, 0.94926, 0.93964, 0.92511, 0.90693, 0.8796),
    0.86111,
)
WAN_I2V_480P = (
    *(1.0, 0.98783, 0.97559, 0.98311, 0.98202, 0.9888, 0.98762, 0.98957, 0.99052, 0.99383, 0.98857, 0.99065, 0.98845),
    *(0.99057, 0.98957, 0.98601, 0.98823, 0.98756, 0.98808, 0.98721, 0.98571, 0.98543, 0.98157, 0.98411, 0.97952),
    *(0.98149, 0.9774, 0.97825, 0.97355, 0.97085, 0.97056, 0.96588, 0.96113, 0.9567, 0.94961, 0.93973, 0.93217),
    *(0.91878, 0.90955, 0.92617),
)
WAN_I2V_720P = (
    *(1.0, 0.99428, 0.98588, 0.98273, 0.99018, 0.98911, 0.98646, 0.99454, 0.9891, 0.99124, 0.99102, 0.99215, 0.99515),
    *(0.99576, 0.99068, 0.99097, 0.99166, 0.99041, 0.99201, 0.99101, 0.98599, 0.98845, 0.98848, 0.98862, 0.98718),
    *(0.98497, 0.98264, 0.98389, 0.97938, 0.97535, 0.97498, 0.973, 0.96827, 0.96261, 0.95335, 0.94649, 0.93397),
    *(0.91636, 0.89088, 0.8679),
)


@dataclass(frozen=True, kw_only=True)
class MagCache(Native):
    """MagCache; the ratios are the model's, so the mask is the same for every input.

    Args:
        ratios: mean over tokens of |R_k| / |R_{k-1}|, one for each step that they were measured at.
        threshold: the knob; the accumulated error |1 - product of ratios| up to which steps are skipped.
        longest: the most steps skipped in a row.
        retention: the share of first steps that are always computed.
        strict: Wan's code skips below the threshold and rounds the retained calls of both branches down; FLUX's also at
            the threshold, and rounds the retained steps to nearest.
        outlier: of 28 steps, one that is always computed: the authors' FLUX code has 11, where the ratios dip.
    """

    name: ClassVar[str] = "magcache"
    knob: ClassVar[Knob] = Knob("threshold", most=-1.0)
    static: ClassVar[bool] = True
    ratios: tuple[float, ...]
    threshold: float = 0.24
    longest: int = 5
    retention: float = 0.1
    strict: bool = False
    outlier: int | None = None

    @classmethod
    def calibrated(cls, record: Record) -> MagCache:
        """The mean ratios of the conditional branch, which decides; settings of the model's family.

        The authors measure one run of one prompt; here all samples of the record count. Their rule for FLUX's step 11
        belongs to their ratios and is left out.
        """
        ratios = tuple(1.0 if ratio != ratio else float(ratio) for ratio in record.mean("ratio", branch=0))
        if record.model.startswith("Wan"):
            return cls(steps=record.steps, ratios=ratios, threshold=0.12, longest=4, retention=0.2, strict=True)
        return cls(steps=record.steps, ratios=ratios)

    @classmethod
    def published(cls, model: str, steps: int | None = None) -> MagCache:
        """The authors' ratios and their fast settings."""
        made: MagCache = pick(cls.name, model, PUBLISHED)
        return replace(made, steps=steps or made.steps)

    def mask(self, steps: int | None = None) -> Mask:
        """The steps that are computed, for any number of them."""
        steps = steps or self.steps
        ratios = resampled(self.ratios, steps)
        # Wan's code counts the calls of both guidance branches, 2K of them, and the first branch's are the even ones.
        retained = -(-int(2 * steps * self.retention) // 2) if self.strict else int(self.retention * steps + 0.5)
        bits: list[bool] = []
        product, error, skipped = 1.0, 0.0, 0
        for k, ratio in enumerate(ratios):
            skip = False
            if k >= retained:
                product, skipped = product * ratio, skipped + 1
                error += abs(1 - product)
                near = error < self.threshold if self.strict else error <= self.threshold
                skip = near and skipped <= self.longest and k > 0
                if self.outlier is not None and steps > 1:
                    skip = skip and round(k * 27 / (steps - 1)) != self.outlier
            if not skip:
                product, error, skipped = 1.0, 0.0, 0
            bits.append(not skip)
        return Mask(tuple(bits))

    def variants(self) -> list[MagCache]:
        """All three are its users' to set: beside the threshold the longest skip K and the share R of first steps."""
        shares = [(count + 1e-6) / self.steps for count in range(1, int(MOST_RETAINED * self.steps) + 1)]
        longest = range(1, max(2, self.steps // 2))
        found = [replace(self, longest=most, retention=share) for most in longest for share in shares]
        return [self, *found]

    def pattern(self, steps: int) -> Hashable:
        """The mask is all."""
        return self.mask(steps)

    def branch(self, steps: int, number: int) -> Branch:
        """Follows the mask."""
        return StaticBranch(self.mask(steps))


def resampled(ratios: Sequence[float], steps: int) -> tuple[float, ...]:
    """Ratios for another number of steps: of the nearest step, as the authors do it."""
    if steps == len(ratios) or steps == 1:
        return tuple(ratios[:steps])
    return tuple(ratios[round(i * (len(ratios) - 1) / (steps - 1))] for i in range(steps))


PUBLISHED = {
    "FLUX.1-dev": MagCache(steps=28, ratios=FLUX, outlier=11),
    "Wan2.1-T2V-1.3B": MagCache(steps=50, ratios=WAN_1_3B, threshold=0.12, longest=4, retention=0.2, strict=True),
    "Wan2.1-T2V-14B": MagCache(steps=50, ratios=WAN_14B, threshold=0.24, longest=6, retention=0.2, strict=True),
    "Wan2.1-I2V-480P": MagCache(steps=40, ratios=WAN_I2V_480P, threshold=0.24, longest=6, retention=0.2, strict=True),
    "Wan2.1-I2V-720P": MagCache(steps=40, ratios=WAN_I2V_720P, threshold=0.24, longest=6, retention=0.2, strict=True),
}
