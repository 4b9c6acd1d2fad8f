"""Running a pipeline under a caching method, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from budcache.baselines.base import Baseline, Native
from budcache.baselines.engine import Engine
from budcache.baselines.installed import Installed
from budcache.baselines.solvers import Solver
from budcache.baselines.tally import EveryStep, Tally
from budcache.errors import PipelineError
from budcache.mask import Computed, Mask
from budcache.pipeline.parts import denoisers
from budcache.pipeline.steps import check_free, followed
from budcache.pipeline.trunk import SPLITS, unknown

__all__ = ["Runs", "caching"]


@dataclass
class Runs:
    """What has really happened in each finished run, in order.

    What counts is whether the trunk ran; probe blocks, forecasts, embedders and heads do not count.
    """

    finished: list[Computed] = field(default_factory=list)

    @property
    def masks(self) -> list[Mask]:
        """The steps of each run that were computed, in any guidance branch."""
        return [run.mask for run in self.finished]

    @property
    def calls(self) -> list[float]:
        """Model calls of each run; where one of two guidance branches was computed at a step, that is half a call."""
        return [run.calls for run in self.finished]


@contextmanager
def caching(pipe: Any, method: Baseline, steps: int | None = None) -> Iterator[Runs]:
    """Run a pipeline under a caching method, or with fewer steps of another solver, in a `with` block.

    Args:
        pipe: a pipeline, for caches one whose trunk is known; it is as it was when the block is left, however that
            happens.
        method: the method, tuned or not.
        steps: K. Call the pipeline with `num_inference_steps` left out or equal to it; for fewer steps of another
            solver, to their number.
    """
    steps = method.steps if steps is None else steps
    _check(pipe, method)
    tally = EveryStep() if method.whole else Tally()
    with ExitStack() as undo:
        if isinstance(method, Solver):
            undo.enter_context(method.solving(pipe, tally))
        elif isinstance(method, Native):
            engine = Engine(method, steps, tally)
            undo.enter_context(engine.attached(pipe))
            undo.enter_context(followed(pipe, steps, engine))
        elif isinstance(method, Installed):
            undo.enter_context(method.installed(pipe, steps, tally))
            undo.enter_context(followed(pipe, steps, tally))
        else:
            raise PipelineError(
                f"{type(method).__name__} is neither a Native method nor an Installed one, so there is no telling how "
                "to run it. Derive it from budcache.baselines.Native."
            )
        yield Runs(tally.runs)


def _check(pipe: Any, method: Baseline) -> None:
    if getattr(pipe, "scheduler", None) is None or not denoisers(pipe):
        raise PipelineError(
            f"{type(pipe).__name__} is not a diffusers pipeline with a scheduler and a transformer. "
            "Pass the pipeline itself, not one of its parts."
        )
    check_free(pipe)
    if method.whole:
        return
    if getattr(pipe, "controlnet", None) is not None:
        raise PipelineError(
            "the methods skip the blocks into which a ControlNet adds its features, but the transformer adds them all "
            "the same, so they would count twice. Compare on the pipeline without it."
        )
    if name := unknown(pipe):
        raise PipelineError(
            f"the caching methods know the trunks of {', '.join(sorted(SPLITS))}, not of {name}. "
            "Choose a pipeline with one of these, or add its trunk to budcache.pipeline.trunk.SPLITS."
        )
