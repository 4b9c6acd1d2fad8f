"""Modular pipelines: what they do is in their blocks, and what they return is a state.

A stock pipeline is one function with one loop. A modular pipeline hands a state from block to block, and one of the
blocks loops over the timesteps. It meets its scheduler in the same two calls, so whoever stands in for the scheduler
needs nothing else; but the loop's counting and its progress bar belong to the block.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from budcache.errors import PipelineError
from budcache.pipeline.arguments import arguments, is_modular
from budcache.pipeline.counting import counting, named_as
from budcache.pipeline.scheduler import BudcacheScheduler
from budcache.pipeline.standin import counted
from budcache.pipeline.tie import Tie

__all__ = ["counting_blocks", "parts", "run"]


def counting_blocks(pipe: Any) -> Any:
    """A copy of a modular pipeline's blocks whose loops count the steps of the scheduler that stands in for its own.

    Their progress bars are as long as the calls that will be made. Where the pipeline's user names no number of steps,
    they take that of the policy that it carries.

    Args:
        pipe: the pipeline; it keeps the blocks that it has.
    """
    blocks = pipe.blocks  # diffusers gives a copy
    for block in parts(blocks):
        block.__class__ = _counting_block(block.__class__)
    blocks.tie = Tie(pipe)
    return blocks


def parts(block: Any) -> list[Any]:
    """A block and all blocks in it, each once; it may stand in several places."""
    found = {id(block): block}
    for part in block.sub_blocks.values():
        found |= {id(each): each for each in parts(part)}
    return list(found.values())


@functools.cache
def _counting_block(cls: Any) -> Any:
    """The class of a block, its loop counting. A class made on the way cannot be pickled, but it can be made again."""

    class Counting(cls):  # type: ignore[misc]
        tie: Tie | None = None
        planned_calls: int | None = None

        def __call__(self, components: Any, *args: Any, **kwargs: Any) -> Any:
            scheduler = getattr(components, "scheduler", None)
            self.planned_calls = getattr(scheduler, "planned_calls", None)
            with counted(scheduler if isinstance(scheduler, BudcacheScheduler) else None):
                return counting(cls.__call__)(self, components, *args, **kwargs)

        def progress_bar(self, iterable: Any = None, total: int | None = None) -> Any:
            return super().progress_bar(iterable, total if self.planned_calls is None else self.planned_calls)

        def __reduce_ex__(self, protocol: Any) -> Any:
            return _new_block, (cls,), vars(self)

        @property
        def inputs(self) -> list[Any]:
            scheduler = None if self.tie is None else getattr(self.tie.pipe, "scheduler", None)
            mine = {"num_inference_steps": scheduler.policy.steps} if isinstance(scheduler, BudcacheScheduler) else {}
            return [replace(each, default=mine.get(each.name, each.default)) for each in super().inputs]

    return named_as(Counting, cls)


def _new_block(cls: Any) -> Any:
    return object.__new__(_counting_block(cls))


def run(pipe: Any, call: dict[str, Any]) -> Any:
    """Call a pipeline whose scheduler is a stand-in. Latents or pictures are first in what it returns."""
    function = counting(type(pipe).__call__)
    if not is_modular(pipe):
        return function(pipe, **call)
    latent = call.get("output_type") == "latent"
    # Few modular decoders can leave latents as they are. The state that comes back has them beside the pictures.
    call = {**call, "output": None, **({"output_type": "pt"} if latent else {})}
    if "output_type" not in arguments(pipe):  # nothing is decoded
        del call["output_type"]
    state = function(pipe, **call)
    names = ("latents",) if latent else ("images", "videos", "latents")
    found = [state.get(name) for name in names if state.get(name) is not None]
    if not found:
        raise PipelineError(
            f"this modular pipeline ends without {' or '.join(names)}; it has {', '.join(sorted(state.values))}. "
            "Give one of these names to what its last block makes."
        )
    return (found[0],)
