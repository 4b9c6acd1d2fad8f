"""Pipelines with two experts, such as Wan 2.2: one for high noise, then another one for low noise."""

from __future__ import annotations

import copy
from typing import Any

from budcache.pipeline.parts import denoisers
from budcache.pipeline.standin import StandIn

__all__ = ["switch_of"]


def switch_of(pipe: Any, steps: int) -> int | None:
    """The step of a full run at which the second expert takes over; None where one network makes all steps."""
    ratio = getattr(getattr(pipe, "config", None), "boundary_ratio", None)
    if ratio is None or not {"transformer", "transformer_2"} <= set(denoisers(pipe)):
        return None
    scheduler = pipe.scheduler.inner if isinstance(pipe.scheduler, StandIn) else pipe.scheduler
    scheduler = copy.deepcopy(scheduler)
    scheduler.set_timesteps(steps)
    boundary = ratio * scheduler.config.num_train_timesteps
    before = int((scheduler.timesteps >= boundary).sum())
    return before if 0 < before < steps else None
