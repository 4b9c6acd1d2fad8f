"""The judge: samples that nothing was searched or fitted on. What is chosen is chosen by them (F8)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from torch import Tensor

from budcache.calibration.aggregate import Care, cared_for, mean, percentile, standard_error
from budcache.calibration.calibration import Calibration
from budcache.calibration.pictures import Pictures
from budcache.calibration.prefixes import Prefixes
from budcache.calibration.score import Score
from budcache.plan import Plan
from budcache.policy import Policy, Quality
from budcache.rows import MAX_BLEND

__all__ = ["Judge", "quality_of"]

Moving: TypeAlias = tuple[Any, ...]


class Judge:
    """Held-out samples: which of several policies is best, and how good is it?

    Final latents are kept until `forget`, so that what was compared is measured without another run.

    Args:
        calibration: the samples, with their teachers. Its runs can decode.
        memory: bytes that may be spent on remembered states.
        care: what counts of the samples' errors, "typical" or "worst".
    """

    def __init__(self, calibration: Calibration, memory: int = 0, care: Care = "typical") -> None:
        self.calibration, self.care = calibration, care
        self._prefixes = Prefixes(calibration, MAX_BLEND, memory)
        self._finals: dict[Moving, list[Tensor]] = {}
        self._pictures = Pictures(calibration)

    @property
    def calls(self) -> int:
        """Sample-calls so far."""
        return self.calibration.calls

    def finals(self, policy: Policy) -> list[Tensor]:
        """The final latents of every run under a policy."""
        key = policy.moving_parts
        if key not in self._finals:
            self._finals[key] = self._rolled(policy)
        return self._finals[key]

    def losses(self, policy: Policy) -> tuple[float, ...]:
        """Each sample's loss under a policy."""
        return self.calibration.losses(self.finals(policy))

    def score(self, policy: Policy) -> Score:
        """Each sample's loss and PSNR under a policy."""
        return Score(self.losses(policy), ratios=self._pictures.ratios(self.finals(policy)))

    def best(self, policies: Iterable[Policy]) -> Policy:
        """The policy of least loss; of equals the first."""
        different: dict[Moving, Policy] = {}
        for policy in policies:
            different.setdefault(policy.moving_parts, policy)
        return min(different.values(), key=lambda policy: cared_for(self.losses(policy), self.care))

    def quality(self, policy: Policy, *, used_to_choose: bool) -> Quality:
        """How near a policy comes to the full run on these samples."""
        return quality_of(self.score(policy)).model_copy(update={"used_to_choose": used_to_choose})

    def forget(self, *but: Policy) -> None:
        """Let go of the final latents that were kept, but for those of some policies."""
        wanted = {policy.moving_parts for policy in but}
        self._finals = {key: finals for key, finals in self._finals.items() if key in wanted}

    def _rolled(self, policy: Policy) -> list[Tensor]:
        if policy.sigmas is not None:
            return self.calibration.finals(policy)
        self.calibration.check(policy.mask)
        *before, last = Plan.of(policy, (), guided=self.calibration.is_guided).stretches
        return self._prefixes.finals(self._prefixes.at(tuple(before)), last)


def quality_of(score: Score) -> Quality:
    """What samples whose pictures were looked at say of a policy."""
    ratios = score.ratios or ()
    return Quality(
        loss=score.loss,
        psnr=mean(ratios),
        psnr_error=standard_error(ratios),
        psnr_p5=percentile(ratios, 0.05),
        psnr_worst=min(ratios),
        samples=len(ratios),
    )
