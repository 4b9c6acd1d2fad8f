"""DiCache: the first blocks run at every step, and what they change tells when to compute and how far to go."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from budcache.baselines.base import Branch, Here, Knob, Native, pick, relative_l1
from budcache.pipeline.trunk import blocks_of, transformers

if TYPE_CHECKING:
    from budcache.baselines.record import Record

__all__ = ["DiCache"]

PROBES = (1, 2)  # blocks, in trunks of at least twice as many
WARMUPS = (0.2, 0.1, 0.0)  # shares of first steps; the authors' settings have the first and the last


@dataclass(frozen=True, kw_only=True)
class DiCache(Native):
    """DiCache; its probe blocks run at every step: no calls, but a part of one among the call-equivalents.

    Args:
        threshold: the knob, the authors' delta; 0 computes every step.
        probe: the authors' m, how many blocks the probe has.
        warmup: the share of first steps that are always computed.
        inclusive: FLUX's code counts the step at which the share ends as warm-up, Wan's does not.
        last: whether the last step is always computed.
        gain: the furthest that a residual is extrapolated.
        difference: accumulate |change of the probe's output - change of its input| instead, the authors' alternative
            for FLUX, which goes without warm-up. None is the first kind, and `tune` may choose.
        apart: whether guidance branches decide each by its own probe, as the authors' code for Wan has it; `tune` also
            tries the first branch's decisions for all.
        deepest: the largest probe that `tune` tries.
    """

    name: ClassVar[str] = "dicache"
    candidates: ClassVar[int] = 56
    knob: ClassVar[Knob] = Knob("threshold")
    threshold: float = 0.4
    probe: int = 1
    warmup: float = 0.2
    inclusive: bool = True
    last: bool = True
    gain: float = 1.5
    difference: bool | None = None
    apart: bool = False
    deepest: int = field(default=1, repr=False)

    @classmethod
    def calibrated(cls, record: Record) -> DiCache:
        """Nothing to calibrate: the settings of the model's family."""
        family = "Wan2.1" if record.model.startswith("Wan") else "FLUX.1-dev"
        networks = transformers(record.pipe) if record.pipe is not None else []
        shallow = min((len(blocks_of(each)) for each in networks), default=0)
        deepest = max((m for m in PROBES if 2 * m <= shallow), default=1)
        return replace(cls.published(family, record.steps), apart=record.branches > 1, deepest=deepest)

    @classmethod
    def published(cls, model: str, steps: int | None = None) -> DiCache:
        """The authors' settings."""
        made: DiCache = pick(cls.name, model, PUBLISHED)
        return replace(made, steps=steps or made.steps)

    @property
    def probes(self) -> int:
        """The probe."""
        return self.probe

    def variants(self) -> list[DiCache]:
        """Both kinds of error, warm-ups from the authors' down to none, probes; apart and together.

        And with the last step always computed, as for FLUX, and without, as for Wan: a warm-up of a fifth of the steps
        is most of a small budget, the last step one of its calls, and the method should not lose by that alone.
        """
        kinds = (False, True) if self.difference is None else (self.difference,)
        together = replace(self, apart=False)
        return [
            replace(each, difference=kind, warmup=share, probe=probe, last=last)
            for each in dict.fromkeys([self, together])
            for last in (self.last, not self.last)
            for kind in kinds
            for share in WARMUPS
            for probe in dict.fromkeys([self.probe, *(m for m in PROBES if m <= self.deepest)])
        ]

    def relaxed(self) -> DiCache | None:
        """A step less of warm-up."""
        return replace(self, warmup=max(0.0, self.warmup - 1 / self.steps)) if self.warmup else None

    def branch(self, steps: int, number: int) -> Branch:
        """Nothing accumulated."""
        return _Branch(self, number if self.apart else 0)


class _Branch(Branch):
    def __init__(self, method: DiCache, number: int) -> None:
        self.method, self.number, self.sum = method, number, 0.0
        self.before: tuple[Tensor, Tensor] | None = None  # the probe's output and input, one step ago
        self.kept: tuple[
            tuple[Tensor, Tensor], ...
        ] = ()  # residuals of trunk and probe, of the newest two computed steps

    def decide(self, here: Here) -> bool:
        """Add what the probe's output changed since the step before, computed or not."""
        method, before = self.method, self.before
        assert here.probed is not None and before is not None
        self.before = (here.probed, here.hidden)
        # Wan's code counts the calls of both guidance branches, 2K of them: 2k is the first one's at step k.
        both = int(2 * here.steps * method.warmup) - self.number
        end = int(method.warmup * here.steps) if method.inclusive else -(-both // 2)
        warm = here.step <= end if method.inclusive and method.warmup else here.step < end
        forced = warm or (method.last and here.step == here.steps - 1)
        if not forced:
            change = relative_l1(here.probed, before[0])
            self.sum += abs(change - relative_l1(here.hidden, before[1])) if method.difference else change
            if self.sum < method.threshold:
                return False
        self.sum = 0.0
        return True

    def follow(self, here: Here, compute: bool) -> None:
        """Keep the probe's output for the next step."""
        assert here.probed is not None
        self.before = (here.probed, here.hidden)

    def computed(self, here: Here, residual: Tensor) -> None:
        """Two residuals are enough to extrapolate."""
        assert here.probed is not None
        self.kept = ((residual, here.probed - here.hidden), *self.kept)[:2]

    def skipped(self, here: Here) -> Tensor:
        """Go on from the older residual through the newer one, as far as the probe has gone on its own way."""
        assert here.probed is not None
        newer, probe_newer = self.kept[0]
        if len(self.kept) == 1:
            return newer
        older, probe_older = self.kept[1]
        now = here.probed - here.hidden
        moved = (probe_newer - probe_older).float().abs().mean().clamp_min(1e-12)
        gain = ((now - probe_older).float().abs().mean() / moved).clamp(1.0, self.method.gain)
        return older + gain.to(newer.dtype) * (newer - older)


PUBLISHED = {
    "FLUX.1-dev": DiCache(steps=30),
    "Wan2.1": DiCache(steps=50, threshold=0.08, inclusive=False, last=False, gain=2.0, difference=False, apart=True),
}
