"""The only code that knows diffusers: driving a pipeline's model, and serving policies."""

from budcache.pipeline.driven import PipelineModel
from budcache.pipeline.origin import describe
from budcache.pipeline.parts import frozen
from budcache.pipeline.scheduler import BudcacheScheduler
from budcache.pipeline.serving import Handle, applied, apply
from budcache.pipeline.stats import Stats

__all__ = [
    "BudcacheScheduler",
    "Handle",
    "PipelineModel",
    "Stats",
    "applied",
    "apply",
    "describe",
    "frozen",
]
