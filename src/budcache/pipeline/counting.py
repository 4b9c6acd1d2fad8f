"""Pipelines and guiders that know which step they are at, whatever steps they are shown and in whatever order.

Pipelines look things up by the number of the step: sigmas, what a ControlNet weighs, where guidance begins and ends.
A scheduler that stands in for theirs hands out timesteps in any order, some of them twice and others never. So that
what is searched is what is served, they count the steps of the full run under either.
"""

from __future__ import annotations

import copy
import functools
import inspect
import types
from collections.abc import Iterator
from typing import Any

from budcache.pipeline.awaited import check_awaited
from budcache.pipeline.scheduler import BudcacheScheduler
from budcache.pipeline.standin import Timesteps, counted, counted_run

__all__ = ["counting", "counting_guider", "counting_pipeline", "guiders", "stock_class"]


def counting(function: Any) -> Any:
    """A function in which `for i, t in enumerate(timesteps)` gives the step that t belongs to.

    It runs with an `enumerate` of its own, in a copy of its module's names. It is taken undecorated, too, so that its
    loop may turn gradients on for itself.

    Args:
        function: a pipeline's or a block's `__call__`.
    """
    function = inspect.unwrap(function)
    names = {**function.__globals__, "enumerate": _enumerate_steps}
    return _copied(function, names, function.__closure__)


def _enumerate_steps(items: Any, start: int = 0) -> Iterator[tuple[int, Any]]:
    timesteps = getattr(items, "iterable", items)  # a progress bar holds them there
    counter = timesteps.counter if isinstance(timesteps, Timesteps) else None
    for i, item in enumerate(items):
        yield (i if counter is None else counter.place) + start, item


def _copied(function: Any, names: dict[str, Any], closure: Any) -> Any:
    twin = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, closure)
    twin.__kwdefaults__ = function.__kwdefaults__
    return twin


def _counting_as_decorated(function: Any) -> Any:
    """The same with its decorators around it, such as `torch.no_grad()`; None where one of them cannot be copied."""
    if not inspect.isfunction(function):
        return None
    inside = getattr(function, "__wrapped__", None)
    if inside is None:
        return counting(function)
    twin, closure = _counting_as_decorated(inside), function.__closure__ or ()
    if twin is None or not any(_holds(cell, inside) for cell in closure):
        return None
    cells = tuple(types.CellType(twin) if _holds(cell, inside) else cell for cell in closure)
    return _copied(function, function.__globals__, cells)


def _holds(cell: Any, value: Any) -> bool:
    try:
        return cell.cell_contents is value
    except ValueError:  # it is still empty
        return False


def counting_pipeline(cls: Any) -> Any:
    """The class of a stock pipeline whose loops count the steps of the full run while a policy is carried out.

    A loop may be in a method of its own, or in the `__call__` of a class that another one was derived from: so each
    class that has one is preceded by one with its loops counting. A pipeline that loops in no method of its own counts
    for itself, and its class stays as it is. A class made on the way cannot be pickled, but it can be made again; and
    it is made again each time, for other libraries put methods of theirs into the classes of pipelines.
    """
    cls = stock_class(cls)
    bases = _counting_bases(cls)
    if bases == (cls,):
        return cls

    class Counting(*bases):  # type: ignore[misc]
        counts_for = cls

        @functools.wraps(cls.__call__)
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            scheduler = getattr(self, "scheduler", None)
            ours = scheduler if isinstance(scheduler, BudcacheScheduler) else None
            if ours is not None:
                kwargs = _with_steps(ours, cls.__call__, (self, *args), kwargs)
            with counted(ours):
                return super().__call__(*args, **kwargs)

        def __reduce_ex__(self, protocol: Any) -> Any:
            return _new_pipeline, (cls,), vars(self)

    return named_as(Counting, cls)


def stock_class(cls: Any) -> Any:
    """The class that a counting one was made from; any other is its own."""
    return getattr(cls, "counts_for", cls)


def _counting_bases(cls: Any) -> tuple[Any, ...]:
    bases: list[Any] = []
    for each in cls.__mro__:
        loops = {name: _counting_method(method) for name, method in vars(each).items() if _loops(method)}
        bases += [type("Loops", (), loops)] if loops else []
        bases += [each] if loops or each is cls else []
    return tuple(bases)


def _loops(method: Any) -> bool:
    """Whether a method loops over timesteps and can be copied."""
    inside = inspect.unwrap(method) if inspect.isfunction(method) else None
    if not inspect.isfunction(inside) or "enumerate" not in inside.__code__.co_names:
        return False
    names = {*inside.__code__.co_names, *inside.__code__.co_varnames}
    return any("timesteps" in name for name in names) and _counting_as_decorated(method) is not None


def _counting_method(method: Any) -> Any:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        return _counting_as_decorated(method)(*args, **kwargs)  # with the names that its module has now

    return call


def _with_steps(scheduler: BudcacheScheduler, function: Any, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keywords of a pipeline's call with the number of steps named, for whatever it computes from that.

    Left out, or the pipeline's default, it means the policy's.
    """
    try:
        call = inspect.signature(function).bind(*args, **kwargs).arguments
    except TypeError:  # the pipeline itself will say it
        return kwargs
    if not scheduler.strength:  # else it is not known yet at which step the run begins, and they are counted from there
        check_awaited(scheduler.policy, call)
    default, name = scheduler.default_steps, "num_inference_steps"
    if default is None or call.get(name, default) != default or (name in call and name not in kwargs):
        return kwargs
    return {**kwargs, name: scheduler.policy.steps}


def _new_pipeline(cls: Any) -> Any:
    return object.__new__(counting_pipeline(cls))


def guiders(pipe: Any) -> dict[str, Any]:
    """The components of a pipeline that combine the branches of its guidance, by name; most pipelines have none."""
    from diffusers.guiders.guider_utils import BaseGuidance

    return {name: part for name, part in vars(pipe).items() if isinstance(part, BaseGuidance)}


def counting_guider(guider: Any) -> Any:
    """A copy of a guider that is told the steps of the full run, not of those that a pipeline is shown."""
    twin = copy.deepcopy(guider)
    twin.__class__ = _counting_guider(guider.__class__)
    return twin


@functools.cache
def _counting_guider(cls: Any) -> Any:
    """The class of a guider. A class made on the way cannot be pickled, but it can be made again."""

    class Counting(cls):  # type: ignore[misc]
        def set_state(self, step: int, num_inference_steps: int, timestep: Any) -> None:
            # Asked for in each run: the user may have set a scheduler of his own since the policy was applied.
            scheduler = counted_run.get()
            if scheduler is not None:
                step, num_inference_steps = scheduler.place, scheduler.length
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
