"""The studio as a value: the model's runner, the project, and what the tabs ask of both. It knows nothing of pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from budcache.jobs.watching import duration
from budcache.mask import Mask
from budcache.policy import Ladder, Policy
from budcache.studio.drawing import Album, Drawing
from budcache.studio.job import Kind
from budcache.studio.project import Project
from budcache.studio.runner import Body, Runner
from budcache.studio.settings import grain, usual

if TYPE_CHECKING:
    import torch

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
        policy: a ladder to begin with, and its name. Nothing that is there is replaced: see `policy`.
        lora: how the pipeline is loaded, as `budcache.load` is told; for exports of all of it.
        lora_scale: likewise.

    Attributes:
        policy: the name that the given ladder has in the project, if one was given.
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
        lora: str | None = None,
        lora_scale: float = 1.0,
        fps: int = 16,
    ) -> None:
        from budcache.studio import comparing, searching

        self.model, self.call, self.fps = model, dict(call or {}), fps
        self.project = Project(project, model)
        self.lora, self.lora_scale = lora, lora_scale
        self.dtype: torch.dtype | None = None  # known once it is loaded
        self.policy = None if policy is None else self._begin_with(*policy)
        self.album = Album(self.project.pictures, self.call, fps)
        self._steps, self._load = steps, load
        self.own_steps: int | None = None  # the pipeline's own
        self.videos = False
        self.takes: frozenset[str] | None = None  # the arguments that it has
        self.usual: dict[str, Any] = {}  # what it takes for settings that are left out
        self.grain = 1  # pixels that sizes are multiples of
        bodies: dict[Kind, Body] = {"search": searching.body(self), "compare": comparing.body(self)}
        self.runner: Runner[Drawing] = Runner(
            self._loaded, bodies, self.album.draw, self.project.jobs, lambda: self.project.ladders
        )

    def _begin_with(self, name: str, ladder: Ladder) -> str:
        """Keep a ladder, and look at it first, whatever was looked at last."""
        here = self.project.add(name, ladder)
        last = self.project.remembered("look")
        if last:
            self.project.remember("look", {**last, "ladder": here})
        return here

    def _loaded(self) -> Any:
        from budcache.pipeline.arguments import arguments, makes_videos

        pipe = self._load()
        pipe.set_progress_bar_config(disable=True)
        known = arguments(pipe)
        own = known.get("num_inference_steps")
        self.own_steps = own if isinstance(own, int) else None
        self.takes, self.videos, self.usual = frozenset(known), makes_videos(pipe), usual(pipe, self.call)
        self.grain, self.dtype = grain(pipe), getattr(pipe, "dtype", None)
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
