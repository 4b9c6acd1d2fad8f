"""The score of a mask."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Score"]


@dataclass(frozen=True)
class Score:
    """How a mask did: its loss, and how far it was from the teacher on arriving at each later step.

    `arrivals[j]` is the error at step j after the last computed step, reached by reuse alone (index K stands for
    the end); None up to it. From there computing step j would cost one call more: this is what the ladder climbs on.
    """

    loss: float
    arrivals: tuple[float | None, ...] = ()
