"""Diffusion pipelines at a number of model calls that you fix in advance.

import budcache

with budcache.applied(pipe, "flux.ladder.json", budget=8):
    image = pipe("a corgi at a street festival").images[0]
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from budcache.errors import (
    BudcacheError,
    BudcacheWarning,
    FileError,
    PipelineError,
    PolicyError,
    RecordError,
    SearchError,
)
from budcache.mask import Mask
from budcache.policy import Ladder, Origin, Policy, Quality, Refined
from budcache.quiet import silence_torchvision_advice

if TYPE_CHECKING:
    from budcache.exports.exporting import Exported, export
    from budcache.exports.foreign import import_policy
    from budcache.hub.finding import Found, find
    from budcache.jobs.align import align
    from budcache.jobs.check import Checked, Promise, check
    from budcache.jobs.compare import compare
    from budcache.jobs.estimate import estimate
    from budcache.jobs.fit import fit
    from budcache.jobs.search import search
    from budcache.models import load
    from budcache.numerics.model import Model, OutputReuse
    from budcache.pipeline import BudcacheScheduler, Handle, PipelineModel, applied, apply
    from budcache.pipeline.recording import recording
    from budcache.records.record import Record
    from budcache.samples.prompts import prompts
    from budcache.workers import Workers

__version__ = "0.2.0"

__all__ = [
    "BudcacheError",
    "BudcacheScheduler",
    "BudcacheWarning",
    "Checked",
    "Exported",
    "FileError",
    "Found",
    "Handle",
    "Ladder",
    "Mask",
    "Model",
    "Origin",
    "OutputReuse",
    "PipelineError",
    "PipelineModel",
    "Policy",
    "PolicyError",
    "Promise",
    "Quality",
    "Record",
    "RecordError",
    "Refined",
    "SearchError",
    "Workers",
    "align",
    "applied",
    "apply",
    "check",
    "compare",
    "estimate",
    "export",
    "find",
    "fit",
    "import_policy",
    "load",
    "prompts",
    "recording",
    "search",
]

# Values load at once; jobs, torch and diffusers only when something that needs them is first used.
_LATE = {
    "BudcacheScheduler": "budcache.pipeline",
    "Checked": "budcache.jobs.check",
    "Exported": "budcache.exports.exporting",
    "Found": "budcache.hub.finding",
    "Handle": "budcache.pipeline",
    "Model": "budcache.numerics.model",
    "OutputReuse": "budcache.numerics.model",
    "PipelineModel": "budcache.pipeline",
    "Promise": "budcache.jobs.check",
    "Workers": "budcache.workers",
    "align": "budcache.jobs.align",
    "applied": "budcache.pipeline",
    "check": "budcache.jobs.check",
    "compare": "budcache.jobs.compare",
    "estimate": "budcache.jobs.estimate",
    "export": "budcache.exports.exporting",
    "find": "budcache.hub.finding",
    "fit": "budcache.jobs.fit",
    "import_policy": "budcache.exports.foreign",
    "load": "budcache.models",
    "apply": "budcache.pipeline",
    "Record": "budcache.records.record",
    "prompts": "budcache.samples.prompts",
    "recording": "budcache.pipeline.recording",
    "search": "budcache.jobs.search",
    # What of ours a saved pipeline holds. diffusers looks these classes and their bases up in the module that the
    # classes name: this one, so that `import budcache` is enough to load such a pipeline.
    "CappedTokenizer": "budcache.models.tokenizer",
    "PreTrainedTokenizerFast": "budcache.models.tokenizer",
    "SchedulerMixin": "budcache.pipeline.standin",
}

silence_torchvision_advice()


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'budcache' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATE[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
