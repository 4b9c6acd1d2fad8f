"""The score of a mask: what every sample says of it."""

from __future__ import annotations

from dataclasses import dataclass

from budcache.aggregate import mean, near_worst
from budcache.errors import SearchError
from budcache.rows import Row

__all__ = ["Score"]


@dataclass(frozen=True)
class Score:
    """How a mask did, sample by sample.

    Args:
        losses: the loss of each sample at the end of the run.
        arrivals: `arrivals[j]` has each sample's error at step j after the last computed step, reached by reuse alone
            (index K stands for the end); None up to it. Computing step j from there would cost one call more: this is
            what the ladder climbs on.
        weights: the blend weights that were fitted, for each computed step; see `Policy`.
        rows: the rows that were fitted instead, likewise.
        ratios: the PSNR of each sample's picture to the full run's, where pictures were looked at.
    """

    losses: tuple[float, ...]
    arrivals: tuple[tuple[float, ...] | None, ...] = ()
    weights: tuple[tuple[float, ...], ...] | None = None
    rows: tuple[Row, ...] | None = None
    ratios: tuple[float, ...] | None = None

    @property
    def loss(self) -> float:
        """The paper's loss: the mean over samples."""
        return mean(self.losses)

    @property
    def errors(self) -> tuple[float, ...]:
        """What to choose by: the errors of the pictures if they were looked at, or else the losses."""
        return self.losses if self.ratios is None else tuple(10 ** (-ratio / 10) for ratio in self.ratios)

    def arrival(self, step: int) -> float:
        """One number for the errors on arriving at a step."""
        if not self.arrivals:
            raise SearchError(
                "a mask was scored without the errors on its way, which this strategy needs. Score it with arrivals; "
                "if it stands in a ledger, remove the ledger to start afresh."
            )
        errors = self.arrivals[step]
        if errors is None:
            raise ValueError(f"step {step} is not behind the last computed one, so nothing arrives there")
        return near_worst(errors)
