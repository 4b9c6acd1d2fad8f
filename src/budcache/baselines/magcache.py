"""MagCache: skip while the product of known magnitude ratios of the residual stays near one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from budcache.baselines.base import Branch, Knob, Native, StaticBranch, pick
from budcache.baselines.ratios import FLUX, WAN_1_3B, WAN_14B, WAN_I2V_480P, WAN_I2V_720P
from budcache.mask import Computed, Mask

if TYPE_CHECKING:
    from budcache.baselines.record import Record

__all__ = ["MagCache", "resampled"]

MOST_RETAINED = 0.4  # the largest share of first steps that the authors' settings have


@dataclass(frozen=True, kw_only=True)
class MagCache(Native):
    """MagCache; the ratios are the model's, so the mask is the same for every input.

    Args:
        ratios: mean over tokens of |R_k| / |R_{k-1}|, one for each step that they were measured at.
        others: those of further guidance branches, where there are any.
        apart: whether guidance branches decide each by its own ratios, as the authors' codes for Wan and Qwen-Image
            have it; `tune` also tries the first branch's decisions for all.
        threshold: the knob; the accumulated error |1 - product of ratios| up to which steps are skipped.
        longest: the most steps skipped in a row.
        retention: the share of first steps that are always computed.
        strict: the codes for Wan and Qwen-Image skip below the threshold and round the retained calls of both branches
            down; FLUX's also at the threshold, and rounds the retained steps to nearest.
        outlier: of 28 steps, one that is always computed: the authors' FLUX code has 11, where the ratios dip.
    """

    name: ClassVar[str] = "magcache"
    candidates: ClassVar[int] = 16
    knob: ClassVar[Knob] = Knob("threshold", most=-1.0)
    static: ClassVar[bool] = True
    ratios: tuple[float, ...]
    threshold: float = 0.24
    longest: int = 5
    retention: float = 0.1
    strict: bool = False
    outlier: int | None = None
    others: tuple[tuple[float, ...], ...] = ()
    apart: bool = False

    @classmethod
    def calibrated(cls, record: Record) -> MagCache:
        """The mean ratios of each guidance branch; settings of the model's family.

        The authors measure one run of one prompt; here all samples of the record count. Their rule for FLUX's step 11
        belongs to their ratios and is left out.
        """
        first, *others = (_ratios(record, number) for number in range(record.branches))
        made = cls(steps=record.steps, ratios=first, others=tuple(others), apart=bool(others))
        if record.model.startswith("Wan"):
            return replace(made, threshold=0.12, longest=4, retention=0.2, strict=True)
        return replace(made, strict=record.model.startswith("QwenImage"))

    @classmethod
    def published(cls, model: str, steps: int | None = None) -> MagCache:
        """The authors' ratios and their fast settings."""
        made: MagCache = pick(cls.name, model, PUBLISHED)
        return replace(made, steps=steps or made.steps)

    def mask(self, steps: int | None = None) -> Mask:
        """The steps that are computed, for any number of them, in any branch."""
        return self.planned(steps).mask

    def planned(self, steps: int | None = None) -> Computed:
        """The branches' masks, or that of the first, which then decides for all."""
        own = [self.ratios, *self.others] if self.apart else [self.ratios]
        return Computed.of(*(self._mask(ratios, steps or self.steps, number) for number, ratios in enumerate(own)))

    def _mask(self, own: Sequence[float], steps: int, number: int) -> Mask:
        ratios = resampled(own, steps)
        # Wan's code counts the calls of both guidance branches, 2K of them: 2k is the first one's at step k.
        retained = (
            -(-(int(2 * steps * self.retention) - number) // 2) if self.strict else int(self.retention * steps + 0.5)
        )
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
        """All three are its users' to set: beside the threshold the longest skip K and the share R of first steps.

        On Wan R counts calls of both branches, so that shares of half a step differ where branches decide apart.
        """
        longest = range(1, max(2, self.steps // 2))
        found = []
        for apart in (True, False) if self.apart else (False,):
            parts = 2 if apart and self.strict else 1
            counts = range(parts, int(MOST_RETAINED * self.steps * parts) + 1)
            shares = [(count + 1e-6) / (self.steps * parts) for count in counts]
            found += [replace(self, longest=k, retention=share, apart=apart) for k in longest for share in shares]
        return [self, *found]

    def pattern(self, steps: int) -> Hashable:
        """What is computed is all."""
        return self.planned(steps)

    def branch(self, steps: int, number: int) -> Branch:
        """Follows its mask; a guidance branch without ratios of its own follows the last that has some."""
        masks = self.planned(steps).branches
        return StaticBranch(masks[min(number, len(masks) - 1)])


def _ratios(record: Record, number: int) -> tuple[float, ...]:
    return tuple(1.0 if ratio != ratio else float(ratio) for ratio in record.mean("ratio", branch=number))


def resampled(ratios: Sequence[float], steps: int) -> tuple[float, ...]:
    """Ratios for another number of steps: of the nearest step, as the authors do it."""
    if steps == len(ratios) or steps == 1:
        return tuple(ratios[:steps])
    return tuple(ratios[round(i * (len(ratios) - 1) / (steps - 1))] for i in range(steps))


def _wan(both: tuple[tuple[float, ...], tuple[float, ...]], threshold: float, longest: int) -> MagCache:
    first, second = both
    return MagCache(
        steps=len(first),
        ratios=first,
        others=(second,),
        apart=True,
        threshold=threshold,
        longest=longest,
        retention=0.2,
        strict=True,
    )


PUBLISHED = {
    "FLUX.1-dev": MagCache(steps=28, ratios=FLUX, outlier=11),
    "Wan2.1-T2V-1.3B": _wan(WAN_1_3B, 0.12, 4),
    "Wan2.1-T2V-14B": _wan(WAN_14B, 0.24, 6),
    "Wan2.1-I2V-480P": _wan(WAN_I2V_480P, 0.24, 6),
    "Wan2.1-I2V-720P": _wan(WAN_I2V_720P, 0.24, 6),
}
