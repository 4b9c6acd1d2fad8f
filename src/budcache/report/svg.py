"""Charts as SVG: where everything lies, in pixels. `templates/chart.html.jinja` draws it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from budcache.report.chart import Chart, Line, Mark, Style, ticks

__all__ = ["Placed", "apart", "placed"]

# The same chart twice: text in an SVG shrinks with it, so a phone gets one that was drawn narrow.
SIZES = {"wide": (920, 440, 204), "narrow": (350, 380, 126)}  # width, least height, most for the names at the right
LEFT, TOP, BOTTOM = 46, 26, 42
GAP = 15  # from one name to the next
BEFORE = 22  # from the end of the lines to their names, and some more behind these
LETTER, BOLD = 6.5, 8.5  # pixels: of a name, and of a figure or name that is bold
FIGURE = 36  # from one figure below the chart to the next
MOST_DOTS = 1200  # of a long search; the lines lose nothing
CORNERS: dict[str, list[tuple[float, float]]] = {
    "square": [(-1, -1), (1, -1), (1, 1), (-1, 1)],
    "diamond": [(0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0)],
    "triangle": [(0, -1.3), (1.2, 0.9), (-1.2, 0.9)],
    "wedge": [(0, 1.3), (1.2, -0.9), (-1.2, -0.9)],
    "cross": [
        *((-0.5, -1.4), (0.5, -1.4), (0.5, -0.5), (1.4, -0.5), (1.4, 0.5), (0.5, 0.5)),
        *((0.5, 1.4), (-0.5, 1.4), (-0.5, 0.5), (-1.4, 0.5), (-1.4, -0.5), (-0.5, -0.5)),
    ],
}


class Placed(NamedTuple):
    """A chart, and where everything in it lies, by size."""

    chart: Chart
    sizes: list[tuple[str, dict[str, Any]]]


def placed(chart: Chart) -> Placed:
    """A chart in all sizes."""
    return Placed(chart, [(name, _Field(chart, *size).drawn()) for name, size in SIZES.items()])


def apart(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places near those that are wanted, in the same order, a gap apart at least, from `low` to `high` if they fit."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    # Without the gaps before it, a place need only be no smaller than the one before: those that would be are pooled.
    pools: list[tuple[float, int]] = []  # the mean of what its members want, and how many they are
    for rank, i in enumerate(order):
        mean, count = wanted[i] - rank * gap, 1
        while pools and pools[-1][0] >= mean:
            other, others = pools.pop()
            mean, count = (mean * count + other * others) / (count + others), count + others
        pools.append((mean, count))
    most = high - gap * (len(wanted) - 1)
    flat = [max(low, min(most, mean)) for mean, count in pools for _ in range(count)]
    found = [0.0] * len(wanted)
    for rank, i in enumerate(order):
        found[i] = flat[rank] + rank * gap
    return found


class _Field:
    """Where the values of a chart lie in a picture of a given size."""

    def __init__(self, data: Chart, width: int, height: int, most: int) -> None:
        self.data, self.width = data, width
        self.names = [line.marks[-1].label if data.falling else line.title for line in data.lines]
        wanted = [len(name) * _letter(line) for name, line in zip(self.names, data.lines, strict=True)]
        self.room = min(most - BEFORE, math.ceil(max(wanted, default=0)))
        self.right = width - self.room - BEFORE
        self.height = max(height, TOP + BOTTOM + GAP * len(data.lines))
        xs, ys = data.spread
        ys = [self._scaled(y) for y in ys]
        slack_x, slack_y = ((max(values) - min(values)) * 0.05 or 1.0 for values in (xs, ys))
        self.low_x, self.high_x = min(xs) - slack_x, max(xs) + (0 if data.falling else slack_x / 2)
        self.low_y, self.high_y = min(ys) - slack_y, max(ys) + 1.6 * slack_y

    def drawn(self) -> dict[str, Any]:
        """All that the template needs, in pixels."""
        data = self.data
        points = [point for those in data.dots.values() for point in those]
        ends = [self.y(line.marks[-1].y) for line in data.lines]
        levels = apart(ends, GAP, TOP, self.height - BOTTOM)
        return {
            "width": self.width,
            "height": self.height,
            "left": LEFT,
            "right": self.right,
            "top": TOP - 14,
            "base": self.height - BOTTOM + 17,
            "middle": (LEFT + self.right) / 2,
            "rows": [
                (self._y(value), self._name(value)) for value in ticks(self.low_y, self.high_y, self.height // 55)
            ],
            "columns": [(self.x(value), f"{value:.10g}") for value in self._whole()],
            "level": None if data.level is None else self.y(data.level),
            "dots": [(self.x(x), self.y(y)) for x, y in points[:: 1 + len(points) // MOST_DOTS]],
            "lines": [
                {**(self._stairs(n, line) if data.falling else self._line(line)), "end": self._end(line, name, level)}
                for n, (line, name, level) in enumerate(zip(data.lines, self.names, levels, strict=True))
            ],
        }

    def _whole(self) -> list[float]:
        """Values to write below the chart: there are no halves of calls, and none below zero."""
        if self.data.alone:
            return []
        measured = [self.x(value) for value in self.data.places]
        if measured and all(right - left >= FIGURE for left, right in pairwise(sorted(measured))):
            return list(self.data.places)
        most = min((self.right - LEFT) // FIGURE, math.ceil(self.high_x - self.low_x))
        return [value for value in ticks(self.low_x, self.high_x, most) if value >= 0 and value == int(value)]

    def x(self, value: float) -> float:
        return round(LEFT + (value - self.low_x) / (self.high_x - self.low_x) * (self.right - LEFT), 1)

    def _at(self, line: Line, mark: Mark) -> float:
        """Where a mark stands; lines of one mark each stand side by side in order of size."""
        if not self.data.alone:
            return self.x(mark.x)
        place = sorted(self.data.lines, key=lambda each: each.marks[0].y).index(line)
        return round(LEFT + (place + 0.7) / len(self.data.lines) * (self.right - LEFT), 1)

    def y(self, value: float) -> float:
        return self._y(self._scaled(value))

    def _y(self, scaled: float) -> float:
        room = self.height - TOP - BOTTOM
        return round(self.height - BOTTOM - (scaled - self.low_y) / (self.high_y - self.low_y) * room, 1)

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.data.logarithmic else value

    def _name(self, tick: float) -> str:
        return f"{10**tick:.1g}" if self.data.logarithmic else f"{tick:.10g}"

    def _end(self, line: Line, name: str, level: float) -> dict[str, Any]:
        """A line's name, and the thin line that leads to it from the line's end."""
        last = line.marks[-1]
        x, y = self._at(line, last), self.y(last.y)
        start, at = min(x + 7, self.right), self.right + 12
        letters = int(self.room / _letter(line))
        text = name if len(name) <= letters else name[: letters - 1].rstrip() + "…"
        lead = f"M{start} {y}L{max(start, self.right)} {y}L{at} {level:.1f}"
        return {"x": at + 4, "y": round(level + 4, 1), "text": text, "lead": lead}

    def _line(self, line: Line) -> dict[str, Any]:
        marks, free = list[dict[str, Any]](), math.inf
        for mark in reversed(line.marks):
            x, y, room = self._at(line, mark), self.y(mark.y), BOLD * len(mark.label) / 2
            labelled = line.style.strong and x + room < free  # from the right, as long as figures do not touch
            free = x - room if labelled else free
            label = mark.label if labelled else ""
            ends = self._ends(mark)
            marks.append(
                {"x": x, "y": y, "ends": ends, "label": label, "note": mark.note, "shape": _shape(x, y, line.style)}
            )
        path = "M" + "L".join(f"{mark['x']} {mark['y']}" for mark in reversed(marks))
        band = self._band(line)
        return {
            "style": line.style,
            "title": line.title,
            "rival": line.rival,
            "path": path,
            "band": band,
            "marks": marks,
        }

    def _ends(self, mark: Mark) -> tuple[float, float] | None:
        return (self.y(mark.y - mark.error), self.y(mark.y + mark.error)) if mark.error else None

    def _band(self, line: Line) -> str:
        """The standard error along the line: there along its upper side, back along the lower; a point has whiskers."""
        if len(line.marks) < 2:
            return ""
        errors = [(self.x(mark.x), self._ends(mark) or (self.y(mark.y),) * 2) for mark in line.marks]
        there = [f"{x} {high}" for x, (_, high) in errors]
        back = [f"{x} {low}" for x, (low, _) in reversed(errors)]
        return "M" + "L".join(there + back) + "Z"

    def _stairs(self, number: int, line: Line) -> dict[str, Any]:
        """A line that falls in steps: a point where each begins; its last mark only leads it on to the end."""
        first, *_ = line.marks
        path = f"M{self.x(first.x)} {self.y(first.y)}"
        path += "".join(f"H{self.x(mark.x)}V{self.y(mark.y)}" for mark in line.marks)
        points = [{"x": self.x(mark.x), "y": self.y(mark.y), "note": mark.note} for mark in line.marks[:-1]]
        opacity = round(0.55 + 0.45 * (number + 1) / len(self.data.lines), 2)
        # Newest first, so that a tap on the line reads the best that was found.
        return {"title": line.title, "path": path, "marks": points[::-1], "opacity": opacity}


def _letter(line: Line) -> float:
    return BOLD if line.style.strong else LETTER


def _shape(x: float, y: float, style: Style) -> dict[str, Any]:
    """A mark: a circle, or the corners of something else."""
    size = 5.0 if style.strong else 3.8
    corners = [(x + size * dx, y + size * dy) for dx, dy in CORNERS.get(style.shape, ())]
    return {"x": x, "y": y, "size": size, "corners": " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)}
