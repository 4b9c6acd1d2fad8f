"""Searching: strategies propose masks, the driver scores them."""

from __future__ import annotations

import re

from budcache.errors import SearchError
from budcache.strategies import anneal, authors
from budcache.strategies.anneal import Anneal
from budcache.strategies.authors import Authors
from budcache.strategies.exhaustive import Exhaustive
from budcache.strategies.ladder import LadderSearch
from budcache.strategies.ledger import Ledger, begun_with, read_history
from budcache.strategies.paths import Paths
from budcache.strategies.polish import Polished
from budcache.strategies.random_masks import RandomMasks
from budcache.strategies.space import Space
from budcache.strategies.strategy import Ask, Found, Limits, Proposals, ScoreMany, Strategy, drive
from budcache.strategies.uniform import Uniform

__all__ = [
    "STRATEGIES",
    "Anneal",
    "Ask",
    "Authors",
    "Exhaustive",
    "Found",
    "LadderSearch",
    "Ledger",
    "Limits",
    "Paths",
    "Polished",
    "Proposals",
    "RandomMasks",
    "ScoreMany",
    "Space",
    "Strategy",
    "Uniform",
    "begun_with",
    "drive",
    "read_history",
    "strategy",
]

STRATEGIES: dict[str, Strategy] = {
    "paths": Paths(),
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
    """The strategy of that name; `anneal-r3-sa50`, and so on, has its own number of restarts and annealing steps."""
    if name in STRATEGIES:
        return STRATEGIES[name]
    numbers = re.fullmatch(r"(anneal|authors)-r(\d{1,6})-sa(\d{1,6})", name)
    if numbers is None:
        raise SearchError(
            f"there is no strategy {name!r}. Choose one of {', '.join(STRATEGIES)}, or name restarts and iterations "
            "yourself, as in anneal-r3-sa50."
        )
    kind = Anneal if numbers[1] == "anneal" else Authors
    return kind(restarts=int(numbers[2]), iterations=int(numbers[3]))
