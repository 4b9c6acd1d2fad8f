"""Refining a mask: reuse fitted in closed form."""

from budcache.refine.fit import fit, fitted_loss

__all__ = ["fit", "fitted_loss"]
