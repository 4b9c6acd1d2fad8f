"""The methods that can be compared, by name. How each is brought to a budget is in `preparing.py`."""

from __future__ import annotations

__all__ = ["AUTHORS", "CARELESS", "METHODS", "OURS", "SOLVERS", "UNCHECKED", "UNTAUGHT", "title", "usual"]

METHODS = {
    "fewer-steps": "fewer steps",
    "ipndm": "iPNDM(2M)",
    "dpmpp": "DPM-Solver++(2M)",
    "unipc": "UniPC",
    "uniform": "uniform mask",
    "teacache": "TeaCache",
    "magcache": "MagCache",
    "lemica": "LeMiCa",
    "dicache": "DiCache",
    "ertacache": "ERTACache",
    "taylorseer": "TaylorSeer",
    "l2p": "L2P",
    "diffusers-magcache": "MagCache (diffusers)",
    "diffusers-firstblock": "First Block Cache (diffusers)",
    "diffusers-taylorseer": "TaylorSeer (diffusers)",
    "cache-dit": "cache-dit",
    "cache-dit-preset": "cache-dit, preset mask",
    "authors": "published search",
    "authors-quick": "published search, quick",
    "authors-turbo": "published search, for few steps",
    "budcache-plain": "budcache, plain reuse",  # a search of its own, without a fit
    "budcache": "budcache",
}
OURS = ("budcache", "budcache-plain")  # the first that takes part is put forward
SOLVERS = ("ipndm", "dpmpp", "unipc")  # fewer steps of other solvers than the pipeline's own
UNCHECKED = ("ertacache", "l2p")  # written after their papers: none of their authors' code could be downloaded
UNTAUGHT = ("fewer-steps", "uniform")  # need no samples to be made on
# The published search, and its strategies; the last is the preset of the authors' code for Z-Image-Turbo.
AUTHORS = {
    "authors": "authors-r2-sa100",
    "authors-quick": "authors-r1-sa20",
    "authors-turbo": "authors-z-image-turbo",
}
CARELESS = (*UNTAUGHT, *AUTHORS, "lemica")  # in which nothing is chosen by typical errors or the worst


def usual() -> list[str]:
    """The methods that take part where none are named: all that are installed, without the slow published search."""
    from budcache.baselines import BASELINES

    return [name for name in METHODS if name not in AUTHORS and (name not in BASELINES or BASELINES[name].available())]


def title(method: str) -> str:
    """A method's name for people."""
    return METHODS.get(method, method.removeprefix("policy:"))
