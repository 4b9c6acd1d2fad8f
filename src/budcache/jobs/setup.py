"""What all jobs on a pipeline share: samples held open with their teachers run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from budcache.errors import PipelineError, SearchError
from budcache.options import whole
from budcache.policy import Origin, Reuse
from budcache.samples.samples import digest, seeded, settings_of_all
from budcache.wording import nearest

if TYPE_CHECKING:
    from torch import Tensor

    from budcache.calibration.calibration import Calibration
    from budcache.calibration.objectives import ObjectiveLike
    from budcache.numerics.shelf import Shelf

__all__ = ["Setup", "Taught", "check_call", "shelf_of"]

Taught = Callable[[int], None]  # told after each full run how many sample-calls these have taken


# What a job itself tells the pipeline, and the option by which to tell the job.
STEPS_ARE_OURS: Mapping[str, str | None] = {"num_inference_steps": "steps"}


def check_call(
    pipe: Any, samples: Iterable[Mapping[str, Any]], job: str, ours: Mapping[str, str | None] = STEPS_ARE_OURS
) -> None:
    """Refuse samples with arguments that the pipeline does not take, or that are not theirs to say, before it runs."""
    from budcache.pipeline.arguments import arguments, is_modular

    known, parameters = arguments(pipe), inspect.signature(type(pipe).__call__).parameters.values()
    takes_any = not is_modular(pipe) and any(each.kind is each.VAR_KEYWORD for each in parameters)
    for name in dict.fromkeys(name for sample in samples for name in sample):
        if name in ours:
            instead = f"Give {ours[name]}= instead." if ours[name] else "Leave it out."
            raise PipelineError(f"{name} is what the {job} itself tells the pipeline. {instead}")
        if name not in known and not takes_any:
            raise PipelineError(f"{type(pipe).__name__} takes no argument {name!r}. {nearest(name, known)}")


def shelf_of(state_memory: int) -> Shelf:
    """A place for the states of one job, with so much main memory."""
    from budcache.numerics.shelf import Shelf

    return Shelf(state_memory)


@dataclass(frozen=True)
class Setup:
    """A pipeline, and how its runs are to be imitated."""

    pipe: Any
    steps: int
    reuse: Reuse = "output"
    batch: int = 1
    objective: ObjectiveLike = "latent"
    teacher_steps: int | None = None  # None: the full run is the teacher
    shelf: Shelf | None = None  # where states wait; None is main memory
    across: bool = False  # whether rows may look back on outputs of another expert (Wan 2.2)

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "teacher_steps"):  # numpy's whole numbers cannot be written into files
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole(name, getattr(self, name)))

    @contextmanager
    def calibration(
        self,
        samples: Sequence[Mapping[str, Any]],
        seed: int,
        taught: Taught | None = None,
        record: bool = False,
        whole: bool = True,
    ) -> Iterator[Calibration]:
        """Hold the pipeline open on samples, teachers run; sample i has seed + i. See `Calibration`."""
        from budcache.calibration.calibration import Calibration
        from budcache.calibration.objectives import objective
        from budcache.numerics.memory import out_of_memory_as_error
        from budcache.pipeline import PipelineModel
        from budcache.samples.batch import batches, merge

        given = [seeded(sample, seed + i) for i, sample in enumerate(samples)]
        with ExitStack() as stack, out_of_memory_as_error():
            runs = []
            for part in batches(given, self.batch):
                call = merge(part) if self.batch > 1 else dict(part[0])
                model = PipelineModel(self.pipe, steps=self.steps, reuse=self.reuse, **call)
                runs.append(stack.enter_context(model))
                if model.begin:
                    raise SearchError("a search needs whole runs, but these start midway. Use strength=1.")
            finer = self.finer_sigmas(samples[0])
            yield Calibration(
                runs,
                objective=objective(self.objective, self.shelf),
                teacher_sigmas=finer,
                spent=0 if finer is None else 1,
                residual=self.reuse == "residual",
                record=record,
                taught=taught,
                shelf=self.shelf,
                whole=whole,
                switch=None if self.across else self.switch,
            )

    @cached_property
    def switch(self) -> int | None:
        """The step at which a second expert takes over, if there is one."""
        from budcache.pipeline.experts import switch_of

        return switch_of(self.pipe, self.steps)

    def finer_sigmas(self, sample: Mapping[str, Any]) -> Tensor | None:
        """The pipeline's own levels for a finer teacher, if there is to be one; to open the pipeline costs a call."""
        from budcache.pipeline import PipelineModel

        if self.teacher_steps is None or self.teacher_steps == self.steps:
            return None
        with PipelineModel(self.pipe, steps=self.teacher_steps, **seeded(sample, 0)) as finer:
            return finer.sigmas

    def origin(self, samples: Sequence[Mapping[str, Any]], **more: Any) -> Origin:
        """What a policy that is made here will say of where it came from."""
        from budcache.pipeline import describe

        known = {"prompts": len(samples), "prompts_hash": digest(samples), "teacher_steps": self.teacher_steps}
        known["switch"] = self.switch
        return describe(self.pipe, **{**known, **settings_of_all(samples), **more})
