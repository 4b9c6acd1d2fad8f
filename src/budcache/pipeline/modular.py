"""Modular pipelines: what they do is in their blocks, and what they return is a state.

A stock pipeline is one function with one loop. A modular pipeline hands a state from block to block, and one of the
blocks loops over the timesteps. It meets its scheduler in the same two calls, so whoever stands in for the scheduler
stands right; but the loop's own counting and its progress bar are the block's, and have to be reached there.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from budcache.errors import PipelineError
from budcache.pipeline.arguments import is_modular
from budcache.pipeline.counting import counting

__all__ = ["following", "guiders", "run", "twin_of"]


def following(pipe: Any, steps: int | None = None) -> Any:
    """A copy of a modular pipeline's blocks that follows the scheduler which stands in for the pipeline's own.

    Its loops count the steps as the scheduler does, and their progress bars are as long as the calls that are made.

    Args:
        pipe: the pipeline; it keeps the blocks that it has.
        steps: the number of steps to take where the pipeline's user names none.
    """
    blocks = pipe.blocks  # diffusers gives a copy
    for block in _blocks(blocks):
        block.__class__ = _follower(block.__class__)
    blocks.default_steps = steps
    return blocks


def _blocks(block: Any) -> Iterator[Any]:
    yield block
    for part in block.sub_blocks.values():
        yield from _blocks(part)


@functools.cache
def _follower(cls: Any) -> Any:
    """The class of a block, with a `__call__` that counts steps."""

    class Follower(cls):  # type: ignore[misc]
        default_steps: int | None = None
        planned_calls: int | None = None

        def __call__(self, components: Any, *args: Any, **kwargs: Any) -> Any:
            scheduler = getattr(components, "scheduler", None)
            self.planned_calls = getattr(scheduler, "planned_calls", None)
            return counting(cls.__call__, scheduler)(self, components, *args, **kwargs)

        def progress_bar(self, iterable: Any = None, total: int | None = None) -> Any:
            return super().progress_bar(iterable, total and (self.planned_calls or total))

        @property
        def inputs(self) -> list[Any]:
            return [
                replace(each, default=self.default_steps)
                if self.default_steps is not None and each.name == "num_inference_steps"
                else each
                for each in super().inputs
            ]

    Follower.__name__, Follower.__qualname__, Follower.__module__ = cls.__name__, cls.__qualname__, cls.__module__
    return Follower


def guiders(pipe: Any) -> dict[str, Any]:
    """The components of a pipeline that combine the branches of its guidance, by name; most pipelines have none."""
    from diffusers.guiders.guider_utils import BaseGuidance

    return {name: part for name, part in vars(pipe).items() if isinstance(part, BaseGuidance)}


def twin_of(pipe: Any) -> Any:
    """A pipeline that shares every network with another, but whose scheduler, flags and guiders may be changed.

    It has no progress bar. Its loops count their steps by the scheduler that it is given.
    """
    twin = copy.copy(pipe)
    for name, guider in guiders(pipe).items():
        if getattr(guider, "adaptive_projected_guidance_momentum", None) is not None:
            raise PipelineError(
                f"{type(guider).__name__} keeps a running average over the steps, so the model's output depends on the "
                "steps before and cannot be asked for at any noise level. Set its adaptive_projected_guidance_momentum "
                "to None, or apply a policy that was searched without it."
            )
        setattr(twin, name, copy.deepcopy(guider))
    if not is_modular(pipe):
        twin.set_progress_bar_config(disable=True)
        return twin
    twin._blocks = following(pipe)
    for block in _blocks(twin._blocks):
        if hasattr(block, "set_progress_bar_config"):
            block.set_progress_bar_config(disable=True)
    return twin


def run(twin: Any, call: dict[str, Any]) -> Any:
    """Call a pipeline. What it returns has its latents or pictures first, as stock pipelines have them."""
    function = counting(type(twin).__call__, twin.scheduler)
    if not is_modular(twin):
        return function(twin, **call)
    latent = call.get("output_type") == "latent"
    # Few modular decoders can leave latents as they are. The state that comes back has them beside the pictures.
    state = function(twin, **{**call, "output": None, **({"output_type": "pt"} if latent else {})})
    names = ("latents",) if latent else ("images", "videos", "latents")
    found = [state.get(name) for name in names if state.get(name) is not None]
    if not found:
        raise PipelineError(
            f"this modular pipeline ends without {' or '.join(names)}; it has {', '.join(sorted(state.values))}. "
            "Give one of these names to what its last block makes."
        )
    return (found[0],)
