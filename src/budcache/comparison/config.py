"""What is compared, on what and how: checked before anything runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from budcache.aggregate import Care
from budcache.comparison.entry import FULL
from budcache.comparison.methods import AUTHORS, METHODS, OURS, UNTAUGHT, title
from budcache.comparison.settings import Settings
from budcache.errors import SearchError
from budcache.jobs.setup import check_call
from budcache.metrics import METRICS
from budcache.options import check_budgets, check_care
from budcache.policy import Ladder
from budcache.samples.samples import settings_of
from budcache.wording import nearest

__all__ = ["CompareConfig", "check_names", "check_timed", "prompt_of"]

OURS_TO_SAY: Mapping[str, str | None] = {
    "num_inference_steps": "steps",
    "output_type": None,
    "return_dict": None,
}  # and how to say it to us


@dataclass(frozen=True)
class CompareConfig:
    """What is compared, on what and how; a value that is refused where it makes no sense, before anything runs.

    Attributes:
        steps: K of the full run.
        budgets: model calls per sample, rising.
        samples: keyword arguments of the pipeline's `__call__`, one set per sample to measure on.
        calibration: likewise, to search, fit and tune on.
        folder: where everything is kept.
        methods: names from `METHODS` or of given policies, in the order of the table.
        metrics: names from `METRICS`.
        policies: ladders that are there already, by name.
        seed: of the searches.
        batch: samples at once while searching and tuning.
        settings: of other methods that were chosen already.
        timed: the methods whose speed is measured; None is all.
        fps: frames a second at which videos are shown.
        care: what our searches and the choice of others' settings go by, typical errors or the worst ones.
    """

    steps: int
    budgets: tuple[int, ...]
    samples: tuple[Mapping[str, Any], ...]
    calibration: tuple[Mapping[str, Any], ...]
    folder: Path
    methods: tuple[str, ...]
    metrics: tuple[str, ...]
    policies: Mapping[str, Ladder]
    seed: int
    batch: int
    settings: Settings | None = None
    timed: tuple[str, ...] | None = None
    fps: int = 16
    care: Care = "typical"

    def __post_init__(self) -> None:
        check_budgets(self.budgets, self.steps)
        check_care(self.care)
        for name, value in (("batch", self.batch), ("fps", self.fps)):
            if value < 1:
                raise SearchError(f"{name} must be at least 1, got {value}.")
        check_names((*self.methods, *(self.timed or ())), self.metrics, self.policies)
        check_timed(self.timed or (), self.methods)
        for name in self.policies:
            _check_name(name)
        if not self.samples:
            raise SearchError("there are no prompts to measure on. Give a few that are not used for calibration.")
        lacking = [name for name in self.methods if name not in (*self.policies, *UNTAUGHT)]
        if lacking and not self.calibration:
            raise SearchError(
                f"{title(lacking[0])} is brought to a budget on calibration prompts. Give some, other than those to "
                "measure on."
            )
        for name in self.metrics:
            blank = next((i for i, sample in enumerate(self.samples) if not prompt_of(sample)), None)
            if not METRICS[name].reference and blank is not None:
                raise SearchError(
                    f"{METRICS[name].title} looks at the prompt, but sample {blank} has none as text. Leave {name} out."
                )

    @property
    def titles(self) -> tuple[str, ...]:
        """What to call each sample: its prompt, if it has one."""
        return tuple(prompt_of(sample) or f"sample {number}" for number, sample in enumerate(self.samples))

    def check_pipeline(self, pipe: Any) -> None:
        """Refuse arguments that the pipeline does not take, before it runs."""
        check_call(pipe, (*self.samples, *self.calibration), "comparison", OURS_TO_SAY)
        moving = next((METRICS[name] for name in self.metrics if METRICS[name].moving), None)
        if moving is not None and not self.makes_videos(pipe):
            raise SearchError(
                f"{moving.title} is of videos, and {type(pipe).__name__} makes pictures here. Leave {moving.name} out."
            )

    def makes_videos(self, pipe: Any) -> bool:
        """Whether all samples will be videos: of more frames than one."""
        from budcache.pipeline.arguments import makes_videos

        return makes_videos(pipe) and all(settings_of(sample).get("frames") != 1 for sample in self.samples)


def check_names(methods: Iterable[str], metrics: Iterable[str], policies: Iterable[str] = ()) -> None:
    """Refuse methods and metrics that there are not: that can be said before a model is loaded."""
    for kind, names, known in (
        ("method", methods, tuple(dict.fromkeys((*METHODS, *policies)))),
        ("metric", metrics, tuple(METRICS)),
    ):
        for name in names:
            if name not in known:
                raise SearchError(f"there is no {kind} {name!r}. {nearest(name, known)}")


def check_timed(timed: Iterable[str], methods: Collection[str]) -> None:
    """Refuse to time who does not take part."""
    if stray := next((name for name in timed if name not in methods), None):
        raise SearchError(f"{stray!r} is to be timed, but does not take part. Add it to the methods, or leave it out.")


def _check_name(policy: str) -> None:
    """Refuse a name under which a policy's numbers would pass for those of something else."""
    searched = (*OURS, *AUTHORS)  # whose policies may be found elsewhere and given
    others = {FULL: "the full run", **{name: each for name, each in METHODS.items() if name not in searched}}
    for name, each in others.items():
        if policy == name or title(policy) == each:
            raise SearchError(f"a policy is called {policy!r}, which is {each}'s name. Choose another name.")


def prompt_of(sample: Mapping[str, Any]) -> str:
    """A sample's prompt as text; nothing where it has none, or one in another form."""
    found = sample.get("prompt")
    if isinstance(found, list | tuple) and len(found) == 1:
        found = found[0]
    return found if isinstance(found, str) else ""
