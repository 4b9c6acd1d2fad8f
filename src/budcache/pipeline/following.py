"""Pipelines that follow a scheduler which stands in for their own, in everything that counts steps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from budcache.errors import PipelineError
from budcache.pipeline.arguments import is_modular
from budcache.pipeline.counting import counting_guider, counting_pipeline, guiders, stock_class
from budcache.pipeline.modular import counting_blocks, parts

__all__ = ["follow", "twin_of"]


def follow(pipe: Any) -> Callable[[], None]:
    """Let a pipeline, its guiders and a modular pipeline's blocks count the steps of a policy that it carries.

    Under any other scheduler they count as ever.

    Args:
        pipe: the pipeline; these parts of it are replaced by copies, and its class by one that counts.

    Returns:
        How to give the pipeline its own parts back, but for those that the user has set since then.
    """
    before = guiders(pipe)
    ours = {name: counting_guider(guider) for name, guider in before.items()}
    if is_modular(pipe):
        before["_blocks"], ours["_blocks"] = pipe._blocks, counting_blocks(pipe)
    else:
        before["__class__"], ours["__class__"] = stock_class(pipe.__class__), counting_pipeline(pipe.__class__)
    for name, part in ours.items():
        setattr(pipe, name, part)

    def undo() -> None:
        for name, part in before.items():
            if getattr(pipe, name, None) is ours[name]:
                setattr(pipe, name, part)

    return undo


def twin_of(pipe: Any) -> Any:
    """A pipeline that shares every network with another, but whose scheduler, flags and guiders are its own.

    It shows no progress bar. Its loops, or those of its blocks, count the steps of the scheduler it is given.
    """
    twin = copy.copy(pipe)
    for name, guider in guiders(pipe).items():
        if getattr(guider, "adaptive_projected_guidance_momentum", None) is not None:
            raise PipelineError(
                f"{type(guider).__name__} adds up what it saw at earlier steps, so the model's output at one noise "
                "level depends on which steps came before, and no mask can be judged by it. "
                f"Set pipe.{name}.adaptive_projected_guidance_momentum = None."
            )
        setattr(twin, name, copy.deepcopy(guider))
    if is_modular(pipe):
        twin._blocks = counting_blocks(pipe)
    else:
        twin.__class__ = counting_pipeline(pipe.__class__)
    for part in parts(twin._blocks) if is_modular(pipe) else [twin]:
        if hasattr(part, "set_progress_bar_config"):
            part.set_progress_bar_config(disable=True)
    return twin
