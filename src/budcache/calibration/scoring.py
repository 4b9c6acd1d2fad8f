"""The score of masks: rolled on all samples and compared with the teacher, many at a time if wanted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from budcache.calibration.calibration import Calibration
from budcache.calibration.objectives import squared_errors
from budcache.calibration.prefixes import Prefixes
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
        calibration: Calibration,
        *,
        outputs: int = 1,
        memory: int = 0,
        pictures: Pictures | None = None,
        branch: bool = False,
    ) -> None:
        self.calibration, self.pictures = calibration, pictures
        self.prefixes = Prefixes(calibration, outputs, memory, branch, calibration.switch)

    def score_many(self, masks: Iterable[Mask]) -> Iterator[Score]:
        """Score masks one after the other, each when it is asked for."""
        for mask in masks:
            self.calibration.check(mask)
            yield self.score(mask)

    def scored(
        self,
        mask: Mask,
        finals: Sequence[Tensor],
        arrivals: tuple[tuple[float, ...] | None, ...],
        fitted: Sequence[Stretch] = (),
        pictures: bool = True,
    ) -> Score:
        """What the final latents of a mask come to, and the stretches that were fitted for it."""
        losses = self.calibration.checked_losses(mask, finals)
        ratios = self.pictures.ratios(finals) if self.pictures is not None and pictures else None
        if not fitted:
            return Score(losses, arrivals, ratios=ratios)
        if fitted[0].noise is None:
            return Score(losses, arrivals, weights=tuple(tuple(each.blend or ()) for each in fitted), ratios=ratios)
        return Score(losses, arrivals, rows=tuple(each.row for each in fitted), ratios=ratios)

    @abstractmethod
    def score(self, mask: Mask) -> Score:
        """Roll a mask on all samples and compare with the teacher."""


class PlainScorer(Scorer):
    """Plain reuse: between computed steps the last output, or the last residual, is repeated."""

    kind = "plain"

    def score(self, mask: Mask) -> Score:
        """See `Scorer`."""
        calibration, last = self.calibration, mask.computed[-1]
        calibration.check(mask)
        states = self.prefixes.at(tuple(Stretch(step, end) for step, end in mask.segments[:-1]))
        to_end = Stretch(last, calibration.steps)
        finals, errors = list[Tensor](), list[list[Tensor]]()  # the latter by run and step
        for number, state in enumerate(states):
            teacher, passed = calibration.trajectory(number), list[Tensor]()
            for step, each in enumerate(self.prefixes.along(number, state, to_end), last + 1):
                x = each.x.cpu()
                passed.append(squared_errors(x, teacher[step]))
            finals.append(x)
            errors.append(passed)
        arrivals = (tuple(torch.cat(of_all).tolist()) for of_all in zip(*errors, strict=True))
        return self.scored(mask, finals, (*[None] * (last + 1), *arrivals))
