"""What all jobs on a pipeline share: samples held open with their teachers run."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from budcache.errors import PipelineError, SearchError
from budcache.events import JobName, Watch
from budcache.options import whole
from budcache.policy import Origin, Reuse
from budcache.samples.samples import digest, seeded, settings_of_all
from budcache.wording import nearest, quote

if TYPE_CHECKING:
    from torch import Tensor

    from budcache.calibration.asking import Asked
    from budcache.calibration.calibration import Calibration
    from budcache.calibration.objectives import ObjectiveLike
    from budcache.numerics.shelf import Shelf
    from budcache.pipeline import PipelineModel
    from budcache.pipeline.about import About, Taken
    from budcache.workers import Workers

__all__ = ["Elsewhere", "Setup", "Taught", "Teaching", "about_of", "check_call", "placed", "shelf_of", "taken_of"]

Taught = Callable[[int], None]  # told after each full run how many sample-calls these have taken


# What a job itself tells the pipeline, and the option by which to tell the job.
STEPS_ARE_OURS: Mapping[str, str | None] = {"num_inference_steps": "steps"}


@dataclass(frozen=True)
class Teaching:
    """What of the full runs is kept; see `Calibration`."""

    finer: Tensor | None = None
    record: bool = False
    whole: bool = True


class Elsewhere(ABC):
    """A pipeline that is not in this process: jobs take it in the place of one that is."""

    @property
    @abstractmethod
    def about(self) -> About:
        """What there is to know of it."""

    @abstractmethod
    def switch(self, steps: int) -> int | None:
        """See `Setup`."""

    @abstractmethod
    def guided(self, sample: Mapping[str, Any]) -> bool:
        """See `Setup`."""

    @abstractmethod
    def finer_sigmas(self, setup: Setup, sample: Mapping[str, Any]) -> Tensor:
        """See `Setup`."""

    @abstractmethod
    def calibration(
        self, setup: Setup, calls: Sequence[Mapping[str, Any]], teaching: Teaching, taught: Taught | None
    ) -> AbstractContextManager[Asked]:
        """Runs of the pipeline, one for each call, held open there with their teachers run."""

    @abstractmethod
    def watched(self, watch: Watch, job: JobName) -> AbstractContextManager[None]:
        """Tell somebody what happens there."""


@contextmanager
def placed(pipe: Any, workers: Workers | None, watch: Watch, job: JobName, most: int) -> Iterator[Any]:
    """The pipeline that a job works on: the one that it was given, or one that workers hold.

    Args:
        pipe: a pipeline, here or elsewhere; for workers, what each of them is to load.
        workers: who is to hold it, if not this process.
        watch: who is told what happens there.
        job: which job it is.
        most: as many runs there are, and so workers that have something to do.
    """
    if workers is None and isinstance(pipe, str | os.PathLike):
        raise PipelineError(
            f"{quote(os.fspath(pipe))} is a name, not a pipeline. Load it with budcache.load: only workers take names."
        )
    with ExitStack() as stack:
        if workers is not None:
            pipe = stack.enter_context(workers.started(pipe, watch=watch, job=job, most=most))
        elif isinstance(pipe, Elsewhere):
            stack.enter_context(pipe.watched(watch, job))
        yield pipe


def about_of(pipe: Any) -> About:
    """What there is to know of a pipeline, here or elsewhere."""
    from budcache.pipeline.about import About

    return pipe.about if isinstance(pipe, Elsewhere) else About.of(pipe)


def taken_of(pipe: Any) -> Taken:
    """Which arguments a pipeline takes, here or elsewhere."""
    from budcache.pipeline.about import taken_by

    return pipe.about.taken if isinstance(pipe, Elsewhere) else taken_by(pipe)


def check_call(
    pipe: Any, samples: Iterable[Mapping[str, Any]], job: str, ours: Mapping[str, str | None] = STEPS_ARE_OURS
) -> None:
    """Refuse samples with arguments that the pipeline does not take, or that are not theirs to say, before it runs."""
    taken = taken_of(pipe)
    for name in dict.fromkeys(name for sample in samples for name in sample):
        if name in ours:
            instead = f"Give {ours[name]}= instead." if ours[name] else "Leave it out."
            raise PipelineError(f"{name} is what the {job} itself tells the pipeline. {instead}")
        if name not in taken.names and not taken.anything:
            raise PipelineError(f"{taken.kind} takes no argument {name!r}. {nearest(name, taken.names)}")


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
    ) -> Iterator[Asked]:
        """Hold the pipeline open on samples, teachers run; sample i has seed + i. See `Calibration`."""
        from budcache.numerics.memory import out_of_memory_as_error
        from budcache.samples.batch import batches, merge

        given = [seeded(sample, seed + i) for i, sample in enumerate(samples)]
        calls = [merge(part) if self.batch > 1 else dict(part[0]) for part in batches(given, self.batch)]
        with ExitStack() as stack, out_of_memory_as_error():
            if isinstance(self.pipe, Elsewhere):
                teaching = Teaching(self.finer_sigmas(samples[0]), record, whole)
                yield stack.enter_context(self.pipe.calibration(self, calls, teaching, taught))
                return
            runs = [stack.enter_context(self.opened(call)) for call in calls]
            finer = self.finer_sigmas(samples[0])
            yield self.taught(runs, Teaching(finer, record, whole), taught, spent=finer is not None)

    def opened(self, call: Mapping[str, Any]) -> PipelineModel:
        """The pipeline, held open on one batch."""
        from budcache.pipeline import PipelineModel

        model = PipelineModel(self.pipe, steps=self.steps, reuse=self.reuse, **call)
        if model.begin:
            model.close()
            raise SearchError("a search needs whole runs, but these start midway. Use strength=1.")
        return model

    def taught(
        self, runs: Sequence[PipelineModel], teaching: Teaching, taught: Taught | None = None, spent: int = 0
    ) -> Calibration:
        """Some runs with their teachers."""
        from budcache.calibration.calibration import Calibration
        from budcache.calibration.objectives import objective

        return Calibration(
            runs,
            objective=objective(self.objective, self.shelf),
            teacher_sigmas=teaching.finer,
            spent=spent,
            residual=self.reuse == "residual",
            record=teaching.record,
            taught=taught,
            shelf=self.shelf,
            whole=teaching.whole,
            switch=None if self.across else self.switch,
        )

    @cached_property
    def about(self) -> About:
        """What there is to know of the pipeline."""
        return about_of(self.pipe)

    @cached_property
    def switch(self) -> int | None:
        """The step at which a second expert takes over, if there is one."""
        from budcache.pipeline.experts import switch_of

        here = not isinstance(self.pipe, Elsewhere)
        return switch_of(self.pipe, self.steps) if here else self.pipe.switch(self.steps)

    def guided(self, samples: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the runs are likely to have two branches of guidance; for an estimate."""
        from budcache.pipeline.origin import expects_two

        if isinstance(self.pipe, Elsewhere):
            return self.pipe.guided(samples[0])
        return expects_two(self.pipe, samples[0])

    def finer_sigmas(self, sample: Mapping[str, Any]) -> Tensor | None:
        """The pipeline's own levels for a finer teacher, if there is to be one; to open the pipeline costs a call."""
        from budcache.pipeline import PipelineModel

        if self.teacher_steps is None or self.teacher_steps == self.steps:
            return None
        if isinstance(self.pipe, Elsewhere):
            return self.pipe.finer_sigmas(self, sample)
        with PipelineModel(self.pipe, steps=self.teacher_steps, **seeded(sample, 0)) as finer:
            return finer.sigmas

    def origin(self, samples: Sequence[Mapping[str, Any]], **more: Any) -> Origin:
        """What a policy that is made here will say of where it came from."""
        known = {"prompts": len(samples), "prompts_hash": digest(samples), "teacher_steps": self.teacher_steps}
        known["switch"] = self.switch
        return Origin(**{**dict(self.about.origin), **known, **settings_of_all(samples), **more})
