"""Full runs of the toys, as inner products."""

from __future__ import annotations

from toys import Toy

from budcache.calibration.calibration import Calibration
from budcache.numerics.solvers import Solver, euler
from budcache.records.gram import Grams


def recorded(steps: int = 10, samples: int = 4, solver: Solver = euler, seed: int = 0) -> tuple[Calibration, Grams]:
    """Some toys, run in full, and what a record keeps of them."""
    known = Calibration([Toy(seed + i, solver=solver, steps=steps) for i in range(samples)], record=True)
    return known, known.grams
