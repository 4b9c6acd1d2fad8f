"""What a metric is, and how the values of many samples become four numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from budcache.aggregate import standard_error
from budcache.errors import BudcacheError

__all__ = ["Frame", "Metric", "Summary", "absent", "summary"]

Frame = NDArray[np.floating[Any]]  # [H, W, 3], values from 0 to 1


class Metric(ABC):
    """One way to measure a sample.

    A subclass describes itself in its class attributes and measures one frame; this class deals with videos, shapes
    and missing references.
    """

    name: ClassVar[str]  # as typed on the command line
    title: ClassVar[str]  # as written over a column
    unit: ClassVar[str] = ""
    digits: ClassVar[int] = 3  # after the point, where it is printed
    higher: ClassVar[bool] = True  # is better
    reference: ClassVar[bool] = True  # compares with the full run; otherwise it looks at the picture and its prompt
    moving: ClassVar[bool] = False  # only videos have it

    def __init__(self, device: str = "cpu") -> None:
        self.device = device

    def prepare(self) -> None:  # noqa: B027  (most metrics have nothing to load)
        """Load what measuring needs, or raise an error that says what is missing."""

    def __call__(self, sample: Frame, reference: Frame | None = None, prompt: str = "") -> float:
        """Measure a picture [H, W, 3] or a video [F, H, W, 3], which is usually the mean over its frames."""
        frames, others = _frames(sample), None if reference is None else _frames(reference)
        if self.moving and len(frames) < 2:
            raise BudcacheError(
                f"{self.title} is of videos, and this is a picture. Measure two frames or more, or leave {self.name} "
                "out."
            )
        if not self.reference:
            return self.clip(frames, frames, prompt)
        if others is None:
            raise BudcacheError(
                f"{self.title} compares with a reference, but got none. Give the full run's picture, too."
            )
        if frames.shape != others.shape:
            raise BudcacheError(
                f"{self.title} needs pictures of one size, got {frames.shape} and {others.shape} as "
                "[frames, height, width, 3]. Draw both with the same settings."
            )
        return self.clip(frames, others, prompt)

    def clip(self, frames: Frame, reference: Frame, prompt: str) -> float:
        """Measure all frames of a video together; a picture is one frame."""
        return float(np.mean([self.frame(one, other, prompt) for one, other in zip(frames, reference, strict=True)]))

    @abstractmethod
    def frame(self, picture: Frame, reference: Frame, prompt: str) -> float:
        """Measure one frame; a metric that needs no reference is given the picture itself as one."""


class Summary(NamedTuple):
    """The values of many samples in four numbers: most users see the mean, somebody gets the tail."""

    mean: float
    error: float | None  # standard error of the mean; one sample has none
    tail: float  # the 5th percentile from the bad side
    worst: float


def summary(values: Sequence[float], higher: bool = True) -> Summary:
    """Mean, standard error, bad tail and worst of values of which the higher (or the lower) are better."""
    if not values:
        raise BudcacheError("there are no values to summarise. Measure at least one sample.")
    return Summary(
        float(np.mean(values)),
        standard_error(values),
        float(np.percentile(values, 5 if higher else 95)),
        float(min(values) if higher else max(values)),
    )


def absent(metric: str, what: str, remedy: str) -> BudcacheError:
    """The error of a metric whose library or weights are not here."""
    return BudcacheError(f"{metric} needs {what}. {remedy}")


def _frames(sample: Frame) -> Frame:
    """A picture as a video of one frame."""
    frames = np.asarray(sample)
    frames = frames[None] if frames.ndim == 3 else frames
    if frames.ndim != 4 or frames.shape[-1] != 3 or 0 in frames.shape:
        raise BudcacheError(
            f"a picture is an array [height, width, 3] and a video [frames, height, width, 3], got {frames.shape}. "
            "Pass it with channels last and without a batch."
        )
    return frames
