"""What a metric is, and how the values of many samples become three numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from budcache.errors import BudcacheError

__all__ = ["Frame", "Metric", "Summary", "absent", "summary"]

Frame = NDArray[np.floating[Any]]  # [H, W, 3], values from 0 to 1


class Metric(ABC):
    """One way to measure a sample.

    A subclass says what it is in its class attributes and measures one frame; videos, shapes and missing references
    are dealt with here.
    """

    name: ClassVar[str]  # as typed on the command line
    title: ClassVar[str]  # as written over a column
    unit: ClassVar[str] = ""
    digits: ClassVar[int] = 3  # after the point, where it is printed
    higher: ClassVar[bool] = True  # is better
    reference: ClassVar[bool] = True  # whether it compares with the full run; else it looks at picture and prompt

    def __init__(self, device: str = "cpu") -> None:
        self.device = device

    def prepare(self) -> None:  # noqa: B027  (most have nothing to load)
        """Load what measuring needs, or say in one sentence what is missing."""

    def __call__(self, sample: Frame, reference: Frame | None = None, prompt: str = "") -> float:
        """Measure a picture [H, W, 3], or a video [F, H, W, 3] as the mean over its frames."""
        frames, others = _frames(sample), None if reference is None else _frames(reference)
        if not self.reference:
            return float(np.mean([self.frame(frame, frame, prompt) for frame in frames]))
        if others is None:
            raise BudcacheError(f"{self.title} compares with a reference. Give the full run's picture, too.")
        if frames.shape != others.shape:
            raise BudcacheError(
                f"{self.title} needs pictures of one size, got {frames.shape} and {others.shape} as "
                "[frames, height, width, 3]. Draw both with the same settings."
            )
        return float(np.mean([self.frame(frame, other, prompt) for frame, other in zip(frames, others, strict=True)]))

    @abstractmethod
    def frame(self, picture: Frame, reference: Frame, prompt: str) -> float:
        """Measure one frame; without a need for it, `reference` is the picture itself."""


class Summary(NamedTuple):
    """Many values as three: most users see the mean, somebody gets the tail."""

    mean: float
    tail: float  # the 5th percentile from the bad side
    worst: float


def summary(values: Sequence[float], higher: bool = True) -> Summary:
    """Mean, bad tail and worst of values of which the higher (or the lower) are better."""
    if not values:
        raise BudcacheError("there are no values to sum up. Measure at least one sample.")
    return Summary(
        float(np.mean(values)),
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
            f"a picture is an array [height, width, 3] and a video [frames, height, width, 3], got {frames.shape}."
        )
    return frames
