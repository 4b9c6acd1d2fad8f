"""The door: what users call on a pipeline to find policies and to make more of them."""

from budcache.api.align import align
from budcache.api.fit import fit
from budcache.api.search import Searched, check_budgets, search, search_in_full

__all__ = ["Searched", "align", "check_budgets", "fit", "search", "search_in_full"]
