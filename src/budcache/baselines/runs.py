"""Running a pipeline under a caching method, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from budcache.baselines.base import Baseline, Native
from budcache.baselines.engine import Engine
from budcache.baselines.installed import Installed
from budcache.errors import PipelineError
from budcache.mask import Mask
from budcache.pipeline.arguments import arguments
from budcache.pipeline.parts import bare, denoisers
from budcache.pipeline.residual import SPLITS
from budcache.pipeline.scheduler import BudcacheScheduler
from budcache.policy import Policy

__all__ = ["Runs", "caching"]


@dataclass
class Runs:
    """What has really happened: one mask for each finished run, in order.

    A step counts as computed when the trunk ran for it in any guidance branch (only diffusers' and cache-dit's dynamic
    caches decide branch by branch); probe blocks, forecasts, embedders and heads do not count.
    """

    masks: list[Mask] = field(default_factory=list)

    @property
    def calls(self) -> list[int]:
        """Computed steps of each run."""
        return [mask.budget for mask in self.masks]


@contextmanager
def caching(pipe: Any, method: Baseline, steps: int | None = None) -> Iterator[Runs]:
    """Run a pipeline under a caching method for the length of a `with` block.

    Args:
        pipe: a pipeline whose trunk is known; it is as it was when the block is left, however that happens.
        method: the method, tuned or not.
        steps: K. Call the pipeline with `num_inference_steps` left out or equal to it.
    """
    steps = method.steps if steps is None else steps
    _check(pipe)
    runs, original = Runs(), pipe.scheduler
    engine = Engine(method if isinstance(method, Native) else None, steps, runs.masks)
    stand_in = _stand_in(pipe, steps, engine)
    with ExitStack() as undo:
        if isinstance(method, Installed):
            undo.enter_context(method.installed(pipe, steps, engine))
        else:
            undo.enter_context(engine.attached(pipe))
        pipe.scheduler = stand_in
        undo.callback(setattr, pipe, "scheduler", original)
        yield runs


def _check(pipe: Any) -> None:
    if getattr(pipe, "scheduler", None) is None or not denoisers(pipe):
        raise PipelineError(
            f"{type(pipe).__name__} is not a diffusers pipeline with a scheduler and a transformer. "
            "Pass the pipeline itself, not one of its parts."
        )
    if isinstance(pipe.scheduler, BudcacheScheduler):
        raise PipelineError("this pipeline carries a policy or a method already. Take that off first.")
    if getattr(pipe, "controlnet", None) is not None:
        raise PipelineError(
            "the methods skip the blocks into which a ControlNet adds its features, but the transformer adds them all "
            "the same, so they would count twice. Compare on the pipeline without it."
        )
    for module in map(bare, denoisers(pipe).values()):
        if type(module).__name__ not in SPLITS:
            raise PipelineError(
                f"the caching methods know the trunks of {', '.join(sorted(SPLITS))}, not of {type(module).__name__}. "
                "Choose a pipeline with one of these, or add its trunk to budcache.pipeline.residual.SPLITS."
            )


class _Steps(BudcacheScheduler):
    """Shows the pipeline all K steps and tells the engine where it is; a run starts afresh at `set_timesteps`."""

    def __init__(self, inner: Any, steps: int, engine: Engine, **settings: Any) -> None:
        super().__init__(inner, Policy(mask=Mask.full(steps), reuse="residual"), **settings)
        self.trunk = self.engine = engine
        engine.place = self
        self.at_start = engine.start

    def _step(self, model_output: Tensor, timestep: Any, sample: Tensor, *args: Any, **kwargs: Any) -> Any:
        if self._k is None:
            raise PipelineError(
                "this pipeline does not loop over scheduler.timesteps, so its steps cannot be followed. "
                "Compare on a pipeline that does, such as the text-to-image one of its family."
            )
        self.engine.stepped(last=self._k + 1 == self._end)
        return self.inner.step(model_output, timestep, sample, *args, **kwargs)


def _stand_in(pipe: Any, steps: int, engine: Engine) -> _Steps:
    known = arguments(pipe)
    default = known.get("num_inference_steps")
    strength = "strength" in known
    return _Steps(
        pipe.scheduler,
        steps,
        engine,
        default_steps=default if isinstance(default, int) and not strength else None,
        strength=strength,
    )
