"""What a chart is: lines, points, labels and ticks. `svg.py` draws charts on pages, `plots.py` as PNG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["OURS", "Chart", "Line", "Mark", "Style", "ticks"]

OURS = "ours"  # the name of our colour


@dataclass(frozen=True)
class Style:
    """How a method looks in every chart: the name of a colour, and a shape and a dash for those who see no colours."""

    colour: str
    shape: str = "circle"
    dash: str = ""  # lengths of strokes and gaps in turn; without any the line is solid
    strong: bool = False


class Mark(NamedTuple):
    """A point of a line, its standard error, and what to read of it where it is chosen."""

    x: float
    y: float
    error: float | None = None
    label: str = ""
    note: str = ""


@dataclass(frozen=True)
class Line:
    """A line of a chart, from left to right."""

    title: str
    style: Style
    marks: tuple[Mark, ...]
    rival: bool = False  # the best of the others, whose errors matter as much as ours


@dataclass(frozen=True)
class Chart:
    """Lines, and points behind them.

    Args:
        x: what is counted to the right.
        y: what is counted upwards.
        lines: the first is drawn first, so the last lies above the others.
        dots: points by what they are.
        level: a value to mark by a line across.
        logarithmic: whether equal ratios have equal distances upwards; no value is then 0 or less.
        falling: whether lines are stairs: what was found stays until something better is.
        alone: whether every line is a single mark: they stand side by side in order, whatever their x.
        about: the chart in one sentence, for those who cannot see it.
        places: values to write to the right, where they have room; without any, round ones.
    """

    x: str
    y: str
    lines: tuple[Line, ...]
    dots: Mapping[str, Sequence[tuple[float, float]]]
    level: float | None = None
    logarithmic: bool = False
    falling: bool = False
    alone: bool = False
    about: str = ""
    places: tuple[float, ...] = ()

    @property
    def spread(self) -> tuple[list[float], list[float]]:
        """All values to the right and upwards, errors included."""
        xs = [mark.x for line in self.lines for mark in line.marks]
        ys = [y for line in self.lines for mark in line.marks for y in (_low(mark), _high(mark))]
        points = [point for those in self.dots.values() for point in those]
        level = [] if self.level is None else [self.level]
        return xs + [x for x, _ in points], ys + [y for _, y in points] + level


def _low(mark: Mark) -> float:
    return mark.y - (mark.error or 0.0)


def _high(mark: Mark) -> float:
    return mark.y + (mark.error or 0.0)


def ticks(low: float, high: float, wanted: int) -> list[float]:
    """Round values between two ends, about as many as wanted."""
    rough = (high - low) / max(1, wanted)
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * part for part in (1, 2, 5, 10) if power * part >= rough * 0.999)
    return [round(step * n, 10) for n in range(math.ceil(low / step), math.floor(high / step) + 1)]
