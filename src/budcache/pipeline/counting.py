"""Loops that know which step they are at, whatever order the steps come in."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator
from typing import Any

from budcache.pipeline.standin import Timesteps

__all__ = ["counting"]


def counting(function: Any, scheduler: Any) -> Any:
    """A function in which `for i, t in enumerate(timesteps)` gives the step that t belongs to.

    Pipelines look things up by that i (sigmas, guidance schedules), but a scheduler that stands in for theirs may hand
    out timesteps in any order, some of them twice and others never. So the function runs with an `enumerate` of its
    own, in a copy of its module's names. It is taken undecorated, too, so that its loop may turn gradients on.

    Args:
        function: a pipeline's or a block's `__call__`.
        scheduler: the stand-in whose timesteps it loops over; its `place` is the step.
    """
    function = inspect.unwrap(function)

    def enumerate_steps(items: Any, start: int = 0) -> Iterator[tuple[int, Any]]:
        if isinstance(getattr(items, "iterable", items), Timesteps):  # a progress bar holds them in `iterable`
            for item in items:
                yield scheduler.place + start, item
        else:
            yield from enumerate(items, start)

    names = {**function.__globals__, "enumerate": enumerate_steps}
    twin = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    twin.__kwdefaults__ = function.__kwdefaults__
    return twin
