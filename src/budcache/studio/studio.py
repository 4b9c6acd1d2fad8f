"""The studio as a value: the model's runner, the project, and what the tabs ask of both. It knows nothing of pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from budcache.jobs.watching import duration
from budcache.mask import Mask
from budcache.policy import Ladder, Policy
from budcache.studio.drawing import Album, Drawing
from budcache.studio.job import Kind
from budcache.studio.project import Project
from budcache.studio.runner import Body, Runner

__all__ = ["UNIFORM", "Studio"]

UNIFORM = "uniform masks"  # a ladder that is always there: evenly spaced steps, without a search
STEPS = 28  # of a full run, where neither a ladder nor the pipeline says how many


class Studio:
    """What is behind the page.

    Args:
        model: its name, as it was typed.
        load: loads the pipeline; called once, in the runner's thread.
        project: the folder.
        call: arguments of the pipeline that everything has in common: sizes, guidance.
        steps: K of the full run; None is that of the newest ladder, or the pipeline's own.
        policy: a ladder to begin with, and its name.
    """

    def __init__(
        self,
        model: str,
        load: Callable[[], Any],
        project: Path,
        *,
        call: Mapping[str, Any] | None = None,
        steps: int | None = None,
        policy: tuple[str, Ladder] | None = None,
        fps: int = 16,
    ) -> None:
        from budcache.studio import comparing, searching

        self.model, self.call, self.fps = model, dict(call or {}), fps
        self.project = Project(project, model)
        if policy is not None:
            self.project.keep(*policy)
        self.album = Album(self.project.pictures, self.call, fps)
        self._steps, self._load = steps, load
        self.own_steps: int | None = None  # the pipeline's own
        self.videos = False
        bodies: dict[Kind, Body] = {"search": searching.body(self), "compare": comparing.body(self)}
        self.runner: Runner[Drawing] = Runner(self._loaded, bodies, self.album.draw, self.project.jobs)

    def _loaded(self) -> Any:
        from budcache.pipeline.arguments import arguments, makes_videos

        pipe = self._load()
        pipe.set_progress_bar_config(disable=True)
        own = arguments(pipe).get("num_inference_steps")
        self.own_steps = own if isinstance(own, int) else None
        self.videos = makes_videos(pipe)
        self.album.recognise(pipe)
        return pipe

    def close(self) -> None:
        """End everything; jobs that ran can be resumed when the project is opened again."""
        self.runner.close()
        self.project.close()

    @property
    def steps(self) -> int:
        """K of the full run, as far as that is known."""
        newest = next(iter(self.project.ladders), None)
        ladder = None if newest is None else self.project.ladder(newest)
        return self._steps or (ladder.steps if ladder else None) or self.own_steps or STEPS

    @property
    def batch(self) -> int:
        """Samples at once while searching; the embedded models are small."""
        from budcache.models import EMBEDDED

        return 8 if self.model in EMBEDDED else 1

    def worth(self, sample_calls: int) -> str:
        """Sample-calls as people read them: in time, too, where a full run has been timed."""
        each = self.album.seconds_per_call
        time = "" if each is None else f", up to {duration(sample_calls * each)} here"
        return f"about {sample_calls:,} sample-calls{time}"

    # Ladders

    @property
    def ladders(self) -> list[str]:
        """The ladders that can be looked at, the newest first."""
        return [*self.project.ladders, UNIFORM]

    def ladder(self, name: str | None) -> Ladder:
        """A ladder by its name; one that is not there any more is the uniform one."""
        found = None if name is None else self.project.ladder(name)
        return found or uniform(self.steps)


def uniform(steps: int) -> Ladder:
    """Evenly spaced masks with plain reuse: what there is before any search."""
    budgets = [budget for budget in range(2, 13) if budget < steps] or [1]
    return Ladder.of([Policy(mask=Mask.uniform(steps, budget)) for budget in budgets])
