"""Other people's methods, to compare with: seven caches of our own making, others as they are installed, and solvers.

rec = record(pipe, 28, samples)
method = tune(pipe, BASELINES["teacache"].calibrated(rec), 8, samples)
with caching(pipe, method, 28) as runs:
    pipe("a corgi")
runs.masks
"""

from __future__ import annotations

from budcache.baselines.base import Baseline, Branch, Here, Knob, Native, StaticBranch, relative_l1
from budcache.baselines.cachedit import CacheDiT, CacheDiTPreset
from budcache.baselines.dicache import DiCache
from budcache.baselines.ertacache import ERTACache
from budcache.baselines.installed import DiffusersFirstBlock, DiffusersMagCache, DiffusersTaylorSeer
from budcache.baselines.l2p import L2P
from budcache.baselines.lemica import LeMiCa
from budcache.baselines.magcache import MagCache
from budcache.baselines.record import Record, record
from budcache.baselines.runs import Runs, caching
from budcache.baselines.solvers import SOLVERS
from budcache.baselines.taylorseer import TaylorSeer
from budcache.baselines.teacache import TeaCache
from budcache.baselines.tuning import tune

__all__ = [
    "BASELINES",
    "TUNABLE",
    "Baseline",
    "Branch",
    "Here",
    "Knob",
    "Native",
    "Record",
    "Runs",
    "StaticBranch",
    "caching",
    "record",
    "relative_l1",
    "tune",
]

BASELINES: dict[str, type[Baseline]] = {
    method.name: method
    for method in (
        *(TeaCache, MagCache, LeMiCa, DiCache, ERTACache, TaylorSeer, L2P),
        *(DiffusersMagCache, DiffusersFirstBlock, DiffusersTaylorSeer, CacheDiT, CacheDiTPreset),
    )
}

# All that has settings to choose: the caches, and fewer steps of other solvers.
TUNABLE: dict[str, type[Baseline]] = {**BASELINES, **SOLVERS}
