"""The judge: samples that nothing was searched or fitted on. What is chosen is chosen by them (F8)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from budcache.calibration.aggregate import geometric_mean, mean, standard_error
from budcache.calibration.calibration import Calibration
from budcache.calibration.prefixes import Prefixes
from budcache.metrics import psnr
from budcache.plan import Stretch
from budcache.policy import Policy, Quality

__all__ = ["Judge"]

Moving: TypeAlias = tuple[Any, ...]


class Judge:
    """Held-out samples: which of several policies is best, and how good is it?

    Final latents are kept until `forget`, so that what was compared is measured without another run.

    Args:
        calibration: the samples, with their teachers. Its runs can decode.
        memory: bytes that may be spent on remembered states.
    """

    def __init__(self, calibration: Calibration, memory: int = 0) -> None:
        self.calibration = calibration
        self._prefixes = Prefixes(calibration, memory=memory)
        self._finals: dict[Moving, list[Tensor]] = {}
        self._full: list[list[Any]] = []

    @property
    def calls(self) -> int:
        """Sample-calls so far."""
        return self.calibration.calls

    def finals(self, policy: Policy) -> list[Tensor]:
        """The final latents of every run under a policy."""
        key = _moving_parts(policy)
        if key not in self._finals:
            self._finals[key] = self._rolled(policy)
        return self._finals[key]

    def losses(self, policy: Policy) -> tuple[float, ...]:
        """Each sample's loss under a policy."""
        return self.calibration.losses(self.finals(policy))

    def best(self, policies: Iterable[Policy]) -> Policy:
        """The policy of least loss; of equals the first.

        Of the samples' losses it is the geometric mean that counts. Those to choose by are few, and in their arithmetic
        mean one that turns into another picture under any policy outweighs all that differ.
        """

        def loss(policy: Policy) -> float:
            found = geometric_mean(self.losses(policy))
            return found if math.isfinite(found) else math.inf

        different: dict[Moving, Policy] = {}
        for policy in policies:
            different.setdefault(_moving_parts(policy), policy)
        return min(different.values(), key=loss)

    def quality(self, policy: Policy, *, used_to_choose: bool) -> Quality:
        """How near a policy comes to the full run on these samples."""
        return self.measure(self.finals(policy), used_to_choose=used_to_choose)

    def measure(self, finals: Sequence[Tensor], *, used_to_choose: bool = False) -> Quality:
        """The quality of final latents, one tensor for each of the runs, against the teacher's."""
        if not self._full:
            runs = range(len(self.calibration.runs))
            self._full = [self._pictures(run, self.calibration.teacher(run)) for run in runs]
        ratios = [
            min(psnr(picture, reference), 100.0)  # a perfect picture is infinitely near; JSON knows no infinity
            for run, x in enumerate(finals)
            for picture, reference in zip(self._pictures(run, x), self._full[run], strict=True)
        ]
        return Quality(
            loss=mean(self.calibration.losses(finals)),
            psnr=mean(ratios),
            psnr_error=standard_error(ratios),
            psnr_p5=float(np.percentile(ratios, 5)),
            psnr_worst=min(ratios),
            samples=len(ratios),
            used_to_choose=used_to_choose,
        )

    def forget(self) -> None:
        """Let go of the final latents that were kept."""
        self._finals = {}

    def _rolled(self, policy: Policy) -> list[Tensor]:
        if policy.weights is not None or policy.sigmas is not None:
            return self.calibration.finals(policy)
        *before, last = (Stretch(step, end) for step, end in policy.mask.segments)
        return self._prefixes.finals(self._prefixes.at(tuple(before)), last)

    def _pictures(self, run: int, x: Tensor) -> list[Any]:
        pictures: list[Any] = self.calibration.runs[run].decode(x)  # type: ignore[attr-defined]
        return pictures


def _moving_parts(policy: Policy) -> Moving:
    """What a policy's final latents depend on."""
    return policy.mask, policy.weights, policy.sigmas
