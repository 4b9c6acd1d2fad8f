"""The judge: samples that nothing was searched or fitted on. What is chosen is chosen by them (F8)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from torch import Tensor

from budcache.aggregate import Care, cared_for, mean, percentile, standard_error
from budcache.calibration.asking import Asked, Scope, new_owner
from budcache.calibration.pictures import Pictures
from budcache.calibration.rolling import Final, Roll, by_sample
from budcache.calibration.score import Score
from budcache.plan import Plan
from budcache.policy import Policy, Quality
from budcache.rows import MAX_BLEND

__all__ = ["Judge", "quality_of"]

Moving: TypeAlias = tuple[Any, ...]


class Judge:
    """Held-out samples: which of several policies is best, and how good is it?

    Final latents are kept where the runs are until `forget`, so that what was compared is measured without another run.

    Args:
        calibration: the samples, with their teachers. Its runs can decode.
        memory: bytes that may be spent on remembered states.
        care: what counts of the samples' errors, "typical" or "worst".
    """

    def __init__(self, calibration: Asked, memory: int = 0, care: Care = "typical") -> None:
        self.calibration, self.care = calibration, care
        self._owner = new_owner()
        self._scope = Scope(self._owner, MAX_BLEND, memory, branch=True)
        self._losses: dict[Moving, tuple[float, ...]] = {}
        self._known: dict[Moving, Score] = {}

    @property
    def calls(self) -> int:
        """Sample-calls so far."""
        return self.calibration.calls

    def finals(self, policy: Policy) -> list[Tensor]:
        """The final latents of every run under a policy."""
        return next(self.calibration.ask([self._final(policy)]))

    def know(self, policy: Policy, score: Score) -> None:
        """Take over what these very samples gave when a policy was fitted, so that it is not run once more."""
        self._known[policy.moving_parts] = score

    def losses(self, policy: Policy) -> tuple[float, ...]:
        """Each sample's loss under a policy."""
        known = self._known.get(policy.moving_parts)
        if known is not None:
            return known.losses
        self._look_at([policy])
        return self._losses[policy.moving_parts]

    def score(self, policy: Policy) -> Score:
        """Each sample's loss and PSNR under a policy."""
        known = self._known.get(policy.moving_parts)
        if known is not None and known.ratios is not None:
            return known
        (rolled,) = self.calibration.ask([Roll(self._final(policy), pictures=Pictures)])
        return Score(by_sample([each.losses for each in rolled]), ratios=by_sample([each.ratios for each in rolled]))

    def best(self, policies: Iterable[Policy]) -> Policy:
        """The policy of least loss; of equals the first."""
        different: dict[Moving, Policy] = {}
        for policy in policies:
            different.setdefault(policy.moving_parts, policy)
        self._look_at(list(different.values()))
        return min(different.values(), key=lambda policy: cared_for(self.losses(policy), self.care))

    def quality(self, policy: Policy, *, used_to_choose: bool) -> Quality:
        """How near a policy comes to the full run on these samples."""
        return quality_of(self.score(policy)).model_copy(update={"used_to_choose": used_to_choose})

    def left_of(self, policy: Policy, *, plain: bool = True) -> dict[str, float]:
        """What is left of a policy's PSNR where parts of it cannot be carried out: fields of `Quality`.

        Args:
            policy: with numbers of its own; of one that repeats outputs nothing can be left out.
            plain: whether to look at its mask alone as well, which mostly was not run before.
        """
        bare = policy.model_copy(update=dict.fromkeys(("weights", "rows", "guided", "sigmas")))
        parts = {"psnr_plain": bare} if plain and bare.moving_parts != policy.moving_parts else {}
        if policy.guided is not None:
            parts["psnr_combined"] = policy.model_copy(update={"guided": None})
        return {name: mean(self.score(part).ratios or ()) for name, part in parts.items()}

    def forget(self, *but: Policy) -> None:
        """Let go of the final latents that were kept, but for those of some policies."""
        wanted = frozenset(policy.moving_parts for policy in but)
        self._losses = {key: losses for key, losses in self._losses.items() if key in wanted}
        self.calibration.forget_finals(self._owner, wanted)

    def _look_at(self, policies: list[Policy]) -> None:
        """Find the losses of some policies that are not known yet, all at once."""
        new = {policy.moving_parts: Roll(self._final(policy)) for policy in policies}
        new = {key: roll for key, roll in new.items() if key not in self._losses and key not in self._known}
        for key, rolled in zip(new, self.calibration.ask(list(new.values())), strict=True):
            self._losses[key] = by_sample([each.losses for each in rolled])

    def _final(self, policy: Policy) -> Final:
        self.calibration.check(policy.mask)
        stretches = Plan.of(policy, (), guided=self.calibration.is_guided).stretches
        return Final(self._scope, stretches, policy.sigmas, self._owner, policy.moving_parts)


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
