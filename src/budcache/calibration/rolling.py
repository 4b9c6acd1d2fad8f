"""Rolling a run to its end along stretches, and what comes of it: the one question that scorers and judges share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from budcache.calibration.asking import Scope
from budcache.calibration.calibration import Calibration
from budcache.calibration.objectives import squared_errors
from budcache.numerics.rollout import ended
from budcache.plan import Stretch

if TYPE_CHECKING:
    from budcache.calibration.pictures import Pictures

__all__ = ["Final", "Roll", "Rolled", "by_sample"]


@dataclass(frozen=True)
class Rolled:
    """What one run says of stretches that were followed to its end, sample by sample.

    Args:
        losses: at the end.
        arrivals: the errors at each step behind the last computed one, if they were asked for.
        ratios: the PSNR of the pictures to the full run's, if they were asked for.
    """

    losses: tuple[float, ...]
    arrivals: tuple[tuple[float, ...], ...] = ()
    ratios: tuple[float, ...] = ()


@dataclass(frozen=True)
class Final:
    """The final latents of a run, on the CPU.

    Args:
        scope: which states are remembered on the way.
        stretches: all of the run.
        sigmas: noise levels of their own, if they have some; then nothing is remembered.
        owner: who wants the latents kept, 0 for nobody. They are then not computed again.
        of: under which name.
    """

    scope: Scope
    stretches: tuple[Stretch, ...]
    sigmas: tuple[float, ...] | None = None
    owner: int = 0
    of: Any = None

    def answer(self, known: Calibration, number: int) -> Tensor:
        """See `Question`."""
        x = known.final(self.owner, self.of, number) if self.owner else None
        if x is None:
            x = self._rolled(known, number)
            if self.owner:
                known.keep_final(self.owner, self.of, number, x)
        return x

    def _rolled(self, known: Calibration, number: int) -> Tensor:
        if self.sigmas is not None:
            return known.rolled(number, self.stretches, self.sigmas)
        *before, last = self.stretches
        prefixes = known.prefixes(self.scope)
        return ended(prefixes.along(number, prefixes.at(tuple(before))[number], last)).x.cpu()


@dataclass(frozen=True)
class Roll:
    """How near the final latents come to the teacher's.

    Args:
        final: the final latents.
        arrivals: whether to tell the errors on the last stretch, too.
        pictures: who looks at decoded pictures, too; None does not decode.
    """

    final: Final
    arrivals: bool = False
    pictures: type[Pictures] | None = None

    def answer(self, known: Calibration, number: int) -> Rolled:
        """See `Question`."""
        x, arrivals = self._passing(known, number) if self.arrivals else (self.final.answer(known, number), ())
        ratios = known.looked_at(self.pictures).ratios(number, x) if self.pictures is not None else ()
        return Rolled(known.losses_of(number, x), arrivals, ratios)

    def _passing(self, known: Calibration, number: int) -> tuple[Tensor, tuple[tuple[float, ...], ...]]:
        *before, last = self.final.stretches
        prefixes, teacher = known.prefixes(self.final.scope), known.trajectory(number)
        errors, state = list[tuple[float, ...]](), prefixes.at(tuple(before))[number]
        for step, each in enumerate(prefixes.along(number, state, last), last.step + 1):
            x = each.x.cpu()
            errors.append(tuple(squared_errors(x, teacher[step]).tolist()))
        return x, tuple(errors)


def by_sample(parts: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    """The samples of all runs, in the order of the runs."""
    return tuple(value for part in parts for value in part)
