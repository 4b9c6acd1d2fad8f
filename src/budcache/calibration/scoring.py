"""The score of masks: rolled on all samples and compared with the teacher, many at a time if wanted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from budcache.calibration.asking import Asked, Scope, Thought, finite, new_owner, together
from budcache.calibration.rolling import Final, Roll, Rolled, by_sample
from budcache.calibration.score import Score
from budcache.mask import Mask
from budcache.plan import Stretch

if TYPE_CHECKING:
    from budcache.calibration.pictures import Pictures

__all__ = ["PlainScorer", "Scorer"]


class Scorer(ABC):
    """Scores masks under one kind of reuse; searches are driven by it.

    Args:
        calibration: the samples, with their teachers.
        outputs: how many outputs a blend may need.
        memory: bytes that may be spent on remembered states; 0 remembers none. The scores are the same.
        pictures: who looks at the decoded pictures, too; None does not decode.
        branch: whether to keep the conditional branch's outputs, too.
    """

    kind: str  # of reuse, as ledgers call it

    def __init__(
        self,
        calibration: Asked,
        *,
        outputs: int = 1,
        memory: int = 0,
        pictures: type[Pictures] | None = None,
        branch: bool = False,
    ) -> None:
        self.calibration, self.pictures = calibration, pictures
        self.scope = Scope(new_owner(), outputs, memory, branch, calibration.switch)

    def score_many(self, masks: Iterable[Mask], one_by_one: bool = False) -> Iterator[Score]:
        """Score masks one after the other, each when it is asked for; on workers several are scored ahead.

        Args:
            masks: what to score.
            one_by_one: also on workers, for whoever may stop after any of them.
        """
        masks = list(masks)
        room = 1 if one_by_one or not masks else self.calibration.room(self.scope, max(mask.budget for mask in masks))
        return together(self.calibration, map(self._checked, masks), room)

    def score(self, mask: Mask) -> Score:
        """Roll a mask on all samples and compare with the teacher."""
        return next(self.score_many([mask]))

    def forget(self) -> None:
        """Let go of the remembered states."""
        self.calibration.forget(self.scope)

    @abstractmethod
    def scoring(self, mask: Mask) -> Thought[Score]:
        """What has to be asked to score a mask."""

    def _checked(self, mask: Mask) -> Thought[Score]:
        self.calibration.check(mask)
        return self.scoring(mask)

    def _to_end(
        self, stretches: tuple[Stretch, ...], arrivals: bool = False, pictures: type[Pictures] | None = None
    ) -> Thought[Sequence[Rolled]]:
        """All runs along stretches to the end."""
        return (yield Roll(Final(self.scope, stretches), arrivals, pictures))


class PlainScorer(Scorer):
    """Plain reuse: between computed steps the last output, or the last residual, is repeated."""

    kind = "plain"

    def scoring(self, mask: Mask) -> Thought[Score]:
        """See `Scorer`."""
        stretches = tuple(Stretch(step, end) for step, end in mask.segments)
        rolled = yield from self._to_end(stretches, arrivals=True, pictures=self.pictures)
        arrivals = map(by_sample, zip(*(each.arrivals for each in rolled), strict=True))
        return Score(
            finite(mask, by_sample([each.losses for each in rolled])),
            (*[None] * (mask.computed[-1] + 1), *arrivals),
            ratios=by_sample([each.ratios for each in rolled]) if self.pictures else None,
        )
