"""Searching: strategies propose masks, the driver scores them."""

from __future__ import annotations

from budcache.errors import SearchError
from budcache.search import anneal, authors
from budcache.search.anneal import Anneal
from budcache.search.authors import Authors
from budcache.search.ladder import LadderSearch
from budcache.search.ledger import Ledger, read_history
from budcache.search.polish import Polished
from budcache.search.simple import Exhaustive, RandomMasks, Uniform
from budcache.search.space import Space
from budcache.search.strategy import Ask, Evaluated, Found, Limits, Proposals, Strategy, drive

__all__ = [
    "STRATEGIES",
    "Anneal",
    "Ask",
    "Authors",
    "Evaluated",
    "Exhaustive",
    "Found",
    "LadderSearch",
    "Ledger",
    "Limits",
    "Polished",
    "Proposals",
    "RandomMasks",
    "Space",
    "Strategy",
    "Uniform",
    "drive",
    "read_history",
    "strategy",
]

STRATEGIES: dict[str, Strategy] = {
    "ladder": LadderSearch(),
    "anneal": Anneal(),
    **{f"anneal-{name}": preset for name, preset in anneal.PRESETS.items()},
    "authors": Authors(),
    **{f"authors-{name}": preset for name, preset in authors.PRESETS.items()},
    "exhaustive": Exhaustive(),
    "uniform": Uniform(),
    "random": RandomMasks(),
}


def strategy(name: str) -> Strategy:
    """The strategy of that name."""
    if name not in STRATEGIES:
        raise SearchError(f"there is no strategy {name!r}. Choose one of {', '.join(STRATEGIES)}.")
    return STRATEGIES[name]
