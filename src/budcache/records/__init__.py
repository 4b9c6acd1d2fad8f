"""Full runs kept as inner products: enough to know how well every stretch of every mask could do (F10)."""

from __future__ import annotations

__all__ = ["EVERY", "LIKELIEST"]

# Here strategies can read them, too, which know nothing of arrays. The power by which early errors are discounted that
# is mostly best (see `paths`):
LIKELIEST = 0.5
EVERY = 5_000  # masks in all, up to which every one is weighed, however long its stretches
