"""Full runs kept as inner products: enough to know how well every stretch of every mask could do (F10)."""

from __future__ import annotations

__all__ = ["LIKELIEST"]

# The power by which early errors are discounted that is mostly best (see `paths`); here strategies can read it, too,
# which know nothing of arrays.
LIKELIEST = 0.5
