"""Masks as strips, prepared once for terminals, pages and plots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from budcache.mask import Mask

__all__ = ["Strip", "strip"]


class Strip(NamedTuple):
    """Steps from noise to picture: for each the share of the runs that computed it."""

    title: str
    shares: tuple[float, ...]
    note: str = ""

    @property
    def computed(self) -> list[int]:
        """The steps that at least half of the runs computed."""
        return [step for step, share in enumerate(self.shares) if share >= 0.5]

    @property
    def about(self) -> str:
        """The strip for those who cannot see it."""
        return f"{self.title} computes steps {', '.join(map(str, self.computed))} of {len(self.shares)}".lstrip()


def strip(masks: Sequence[Mask], title: str = "", note: str = "") -> Strip:
    """Masks as one strip; runs that start midway have their last steps only, so masks are aligned at the end."""
    steps = max(map(len, masks))
    bits = [(False,) * (steps - len(mask)) + mask.bits for mask in masks]
    return Strip(title, tuple(sum(column) / len(masks) for column in zip(*bits, strict=True)), note)
