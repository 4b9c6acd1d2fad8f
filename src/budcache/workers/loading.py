"""Loading a pipeline in a worker, so that all of them compute the same to the last bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from budcache.errors import PipelineError

if TYPE_CHECKING:
    from budcache.workers.options import Source

__all__ = ["loaded"]


def loaded(source: Source, threads: int, gpus: float | None) -> Any:
    """The pipeline: from a user's function, which puts it onto its device; or by name, onto the GPU if it has one."""
    import torch

    from budcache.pipeline.placing import realigned

    torch.set_num_threads(threads)
    if callable(source):
        pipe = source()
        torch.set_num_threads(threads)  # whatever the function thought of it
    else:
        from budcache import models

        on_gpu = bool(gpus) and torch.cuda.is_available()
        pipe = models.load(source, dtype=torch.bfloat16 if on_gpu else torch.float32).to("cuda" if on_gpu else "cpu")
    if not hasattr(pipe, "scheduler"):
        raise PipelineError(
            f"the function that workers load by returned a {type(pipe).__name__}. Return a diffusers pipeline."
        )
    if hasattr(pipe, "set_progress_bar_config"):
        pipe.set_progress_bar_config(disable=True)
    return realigned(pipe)
