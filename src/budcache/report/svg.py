"""Charts as SVG: where everything lies, in pixels. `templates/chart.html.jinja` draws it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from budcache.report.charts import Chart, Line, Style, ticks

__all__ = ["Placed", "legend", "placed"]

# The same chart twice: text in an SVG shrinks with it, so a phone gets one that was drawn narrow.
SIZES = {"wide": (880, 400), "narrow": (350, 300)}
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 16, 40
LETTER = 8.5  # pixels, a bold digit
MOST_DOTS = 1200  # of a long search; the lines lose nothing
CORNERS: dict[str, list[tuple[float, float]]] = {
    "square": [(-1, -1), (1, -1), (1, 1), (-1, 1)],
    "diamond": [(0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0)],
    "triangle": [(0, -1.3), (1.2, 0.9), (-1.2, 0.9)],
}


class Placed(NamedTuple):
    """A chart, and where everything in it lies, by size."""

    chart: Chart
    sizes: list[tuple[str, dict[str, Any]]]


def placed(chart: Chart) -> Placed:
    """A chart in all sizes."""
    return Placed(chart, [(name, _Field(chart, width, height).drawn()) for name, (width, height) in SIZES.items()])


def legend(lines: Iterable[Line]) -> list[tuple[Line, dict[str, Any]]]:
    """Lines, and the mark of each for a legend."""
    return [(line, _shape(13, 7, line.style)) for line in lines]


class _Field:
    """Where the values of a chart lie in a picture of a given size."""

    def __init__(self, data: Chart, width: int, height: int) -> None:
        self.data, self.width, self.height = data, width, height
        xs, ys = data.spread
        ys = [self._scaled(y) for y in ys]
        slack_x, slack_y = ((max(values) - min(values)) * 0.05 or 1.0 for values in (xs, ys))
        self.low_x, self.high_x = min(xs) - slack_x, max(xs) + slack_x
        self.low_y, self.high_y = min(ys) - slack_y, max(ys) + 1.6 * slack_y

    def drawn(self) -> dict[str, Any]:
        """All that the template needs, in pixels."""
        data = self.data
        points = [point for those in data.dots.values() for point in those]
        return {
            "width": self.width,
            "height": self.height,
            "left": LEFT,
            "right": self.width - RIGHT,
            "top": TOP - 5,
            "base": self.height - BOTTOM + 17,
            "middle": (LEFT + self.width - RIGHT) / 2,
            "rows": [
                (self._y(value), self._name(value)) for value in ticks(self.low_y, self.high_y, self.height // 55)
            ],
            "columns": [
                (self.x(value), f"{value:.10g}")
                for value in ticks(self.low_x, self.high_x, self.width // 75)
                if value >= 0
            ],
            "level": None if data.level is None else self.y(data.level),
            "dots": [(self.x(x), self.y(y)) for x, y in points[:: 1 + len(points) // MOST_DOTS]],
            "lines": [self._stairs(n, line) if data.falling else self._line(line) for n, line in enumerate(data.lines)],
        }

    def x(self, value: float) -> float:
        return round(LEFT + (value - self.low_x) / (self.high_x - self.low_x) * (self.width - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        return self._y(self._scaled(value))

    def _y(self, scaled: float) -> float:
        room = self.height - TOP - BOTTOM
        return round(self.height - BOTTOM - (scaled - self.low_y) / (self.high_y - self.low_y) * room, 1)

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.data.logarithmic else value

    def _name(self, tick: float) -> str:
        return f"{10**tick:.1g}" if self.data.logarithmic else f"{tick:.10g}"

    def _line(self, line: Line) -> dict[str, Any]:
        marks, free = list[dict[str, Any]](), math.inf
        for mark in reversed(line.marks):
            x, y, room = self.x(mark.x), self.y(mark.y), LETTER * len(mark.label) / 2
            labelled = line.style.strong and x + room < free  # from the right, as long as labels do not touch
            free = x - room if labelled else free
            error = mark.error or 0.0
            marks.append(
                {
                    "x": x,
                    "y": y,
                    "ends": (self.y(mark.y - error), self.y(mark.y + error)) if error else None,
                    "label": mark.label if labelled else "",
                    "note": mark.note,
                    "shape": _shape(x, y, line.style),
                }
            )
        path = "M" + "L".join(f"{mark['x']} {mark['y']}" for mark in reversed(marks))
        return {"style": line.style, "path": path, "marks": marks}

    def _stairs(self, number: int, line: Line) -> dict[str, Any]:
        (first, *_), (*_, last, end) = line.marks, line.marks
        path = f"M{self.x(first.x)} {self.y(first.y)}"
        path += "".join(f"H{self.x(mark.x)}V{self.y(mark.y)}" for mark in line.marks)
        return {
            "path": path,
            "note": line.note,
            "x": self.x(last.x),
            "y": self.y(last.y),
            "end": self.x(end.x) + 5,
            "label": end.label,
            "opacity": round(0.4 + 0.6 * (number + 1) / len(self.data.lines), 2),
        }


def _shape(x: float, y: float, style: Style) -> dict[str, Any]:
    """A mark: a circle, or the corners of something else."""
    size = 5.0 if style.strong else 3.8
    corners = [(x + size * dx, y + size * dy) for dx, dy in CORNERS.get(style.shape, ())]
    return {"x": x, "y": y, "size": size, "corners": " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)}
