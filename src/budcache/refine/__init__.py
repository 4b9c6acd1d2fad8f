"""Refining a mask: reuse fitted in closed form."""

from budcache.refine.fit import fit, fitted

__all__ = ["fit", "fitted"]
