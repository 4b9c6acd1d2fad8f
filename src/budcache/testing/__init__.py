"""Tests of what a strategy or a caching method of your own must keep, ready to be inherited.

from budcache.testing import BaselineContract, StrategyContract
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from budcache.testing.strategies import StrategyContract, ready, toy_score

if TYPE_CHECKING:
    from budcache.testing.baselines import BaselineContract

__all__ = ["BaselineContract", "StrategyContract", "ready", "toy_score"]


def __getattr__(name: str) -> Any:
    if name == "BaselineContract":  # needs torch and diffusers, which tests of strategies do without
        from budcache.testing.baselines import BaselineContract

        return BaselineContract
    raise AttributeError(f"module 'budcache.testing' has no attribute {name!r}")
