"""Loops and guiders that know which step they are at, whatever steps they are shown and in whatever order.

Pipelines look things up by the number of the step: sigmas, what a ControlNet weighs, where guidance begins and ends.
A scheduler that stands in for theirs hands out timesteps in any order, some of them twice and others never.
"""

from __future__ import annotations

import copy
import functools
import inspect
import types
from collections.abc import Iterator
from typing import Any

from budcache.pipeline.standin import StandIn, Timesteps

__all__ = ["counting", "counting_guider", "guiders"]


def counting(function: Any, scheduler: Any) -> Any:
    """A function in which `for i, t in enumerate(timesteps)` gives the step that t belongs to.

    It runs with an `enumerate` of its own, in a copy of its module's names. It is taken undecorated, too, so that its
    loop may turn gradients on for itself.

    Args:
        function: a pipeline's or a block's `__call__`.
        scheduler: the stand-in whose timesteps it loops over.
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


def guiders(pipe: Any) -> dict[str, Any]:
    """The components of a pipeline that combine the branches of its guidance, by name; most pipelines have none."""
    from diffusers.guiders.guider_utils import BaseGuidance

    return {name: part for name, part in vars(pipe).items() if isinstance(part, BaseGuidance)}


def counting_guider(guider: Any, scheduler: StandIn) -> Any:
    """A copy of a guider that is told the steps of the full run, not of those that a pipeline is shown."""
    twin = copy.deepcopy(guider)
    twin.__class__ = _counting_guider(guider.__class__)
    twin.stand_in = scheduler
    return twin


@functools.cache
def _counting_guider(cls: Any) -> Any:
    """The class of a guider. A class made on the way cannot be pickled, but it can be made again."""

    class Counting(cls):  # type: ignore[misc]
        stand_in: StandIn | None = None

        def set_state(self, step: int, num_inference_steps: int, timestep: Any) -> None:
            if self.stand_in is not None:
                step, num_inference_steps = self.stand_in.place, self.stand_in.length
            super().set_state(step=step, num_inference_steps=num_inference_steps, timestep=timestep)

        def __reduce_ex__(self, protocol: Any) -> Any:
            return _new_guider, (cls,), vars(self)

    return named_as(Counting, cls)


def _new_guider(cls: Any) -> Any:
    return object.__new__(_counting_guider(cls))


def named_as(cls: Any, other: Any) -> Any:
    """A class under the name of the one that it is made from, for configurations and messages."""
    cls.__name__, cls.__qualname__, cls.__module__ = other.__name__, other.__qualname__, other.__module__
    return cls
