"""The door: what users call on a pipeline to find policies and to make more of them."""

from budcache.jobs.align import align
from budcache.jobs.fit import fit
from budcache.jobs.search import Searched, check_budgets, search, search_in_full

__all__ = ["Searched", "align", "check_budgets", "fit", "search", "search_in_full"]
