"""Curves as SVG, without JavaScript, with a band around each line.

    curves ──► placed over versions or time ──► at most MAX_POINTS points each ──► scaled ──► <svg>
                                           └──► at most MAX_DATA points each   ──► JSON, for uPlot

Colours come from the style sheet, by number. Where JavaScript runs, uPlot draws the same curves instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from markupsafe import Markup

from plugins.page.views.curves import COLOURS
from streams.output import moment
from streams.tools.views.curve import Curve, CurveChart, CurvePoint, Over
from streams.tools.views.visible_text import visible

WIDTH, HEIGHT = 440, 220
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 10, 26
MAX_POINTS = 400
"""Maximum points of a line in SVG: more would touch each other."""
MAX_DATA = 2000
"""Maximum points of a line in uPlot."""
DOTTED = 60
"""Lines with at most so many points have a dot at each."""
TIME_STEPS_S = (1, 5, 15, 60, 300, 900, 3600, 10_800, 43_200, 86_400, 604_800, 2_592_000)
"""Possible distances between two marks of a time axis."""
MOST_MARKS = 12
LONGEST_NAME = 48
"""Characters of a curve's name in a legend."""
SMALLEST = 1e-300
"""Of a distance that can be divided by marks."""

GRID = Markup(
    '<line class="grid" x1="{0}" x2="{1}" y1="{2:.1f}" y2="{2:.1f}"/><text x="{3}" y="{4:.1f}" class="ends">{5}</text>'
)
MARK = Markup('<text x="{:.1f}" y="{}" class="middle">{}</text>')
DOT = Markup('<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="3"><title>{}</title></circle>')
LINKED_DOT = Markup('<a href="{}" tabindex="-1" aria-label="{}">{}</a>')
KEY = Markup(
    '<li title="{1}"><svg viewBox="0 0 20 8" aria-hidden="true">'
    '<line class="line {0}" x1="1" x2="19" y1="4" y2="4"/></svg>{2}</li>'
)


class PlacedPoint(NamedTuple):
    """A point and its coordinates."""

    x: float
    point: CurvePoint


class Scales(NamedTuple):
    """The ends of both axes."""

    first: float
    last: float
    low: float
    high: float

    @classmethod
    def of(cls, lines: Sequence[Sequence[PlacedPoint]], *, is_share: bool) -> Scales:
        """Return scales that contain every point; a share goes from 0 to 1."""
        placed = [entry for line in lines for entry in line]
        low, high = (0.0, 1.0) if is_share else value_range([entry.point for entry in placed])
        return cls(min(entry.x for entry in placed), max(entry.x for entry in placed), low, high)

    def x(self, value: float) -> float:
        """Return the distance of a value from the left."""
        share = (value - self.first) / (self.last - self.first) if self.last > self.first else 0.5
        return LEFT + (WIDTH - LEFT - RIGHT) * share

    def y(self, value: float) -> float:
        """Return the distance of a value from the top."""
        return TOP + (HEIGHT - TOP - BOTTOM) * (self.high - value) / (self.high - self.low)


def svg(chart: CurveChart, about: str, over: Over = "version", base: str | None = None) -> Markup:
    """Return a chart as SVG. Its dots link to pages of groups under `base`; None: no links."""
    lines = [thin(place_points(curve, over), MAX_POINTS) for curve in chart.curves]
    if not any(lines):
        return Markup("")
    scales = Scales.of(lines, is_share=chart.figure.is_share)
    parts = [Markup('<svg class="chart" viewBox="0 0 {} {}" role="{}" aria-label="{}">').format(
        WIDTH, HEIGHT, "img" if base is None else "group", visible(about)
    )]  # fmt: skip
    for value in ticks(scales.low, scales.high, 4):
        top = scales.y(value)
        parts.append(GRID.format(LEFT, WIDTH - RIGHT, top, LEFT - 6, top + 4, f"{round(value, 9):g}"))
    for value, text in _marks(scales.first, scales.last, over):
        parts.append(MARK.format(scales.x(value), HEIGHT - 8, text))
    for curve, line in zip(chart.curves, lines, strict=True):
        parts += _draw_line(line, scales, _kind(curve))
        if len(line) <= DOTTED:
            name, link = visible(curve.name or chart.figure.title), groups_link(chart, curve, base)
            parts += [_draw_dot(entry, scales, f"dot {_kind(curve)}", name, link) for entry in line]
    return Markup("").join([*parts, Markup("</svg>")])


def _draw_dot(entry: PlacedPoint, scales: Scales, kind: str, name: str, link: str | None) -> Markup:
    """Return a point with a tooltip and a link to its groups."""
    title = f"{name} of version {entry.point.version}: {entry.point.value:.4g}"
    dot = DOT.format(kind, scales.x(entry.x), scales.y(entry.point.value), title)
    return dot if link is None else LINKED_DOT.format(f"{link}{entry.point.version}", title, dot)


def _draw_line(line: Sequence[PlacedPoint], scales: Scales, kind: str) -> list[Markup]:
    """Return a line, and its band if it has one."""
    paths = [
        [(scales.x(entry.x), scales.y(value)) for entry, value in zip(line, values, strict=True)]
        for values in zip(*((entry.point.value, entry.point.low, entry.point.high) for entry in line), strict=True)
    ]
    drawing = [Markup('<polyline class="line {}" points="{}"/>').format(kind, _path(paths[0]))] if paths else []
    if any(entry.point.low != entry.point.high for entry in line):
        band = Markup('<polygon class="band {}" points="{}"/>').format(kind, _path(paths[2] + paths[1][::-1]))
        drawing.insert(0, band)
    return drawing


def legend(curves: Sequence[Curve]) -> Markup:
    """Return the names of curves with their colours; empty for a single curve without a name."""
    if [curve.name for curve in curves] == [""]:
        return Markup("")
    items = [KEY.format(_kind(curve), visible(curve.name), line_name(curve)) for curve in curves]
    return Markup('<ul class="legend">{}</ul>').format(Markup("").join(items))


def line_name(curve: Curve) -> str:
    """Return the name of a curve as a legend has room for."""
    return visible(curve.name if len(curve.name) <= LONGEST_NAME else f"{curve.name[: LONGEST_NAME - 1]}…")


def groups_link(chart: CurveChart, curve: Curve, base: str | None) -> str | None:
    """Return the link of a point up to its version, None without one: what a version answered leads to it next to the
    version before, and what it was made of to those groups.
    """
    if base is None or curve.policy is None or not chart.figure.groups:
        return None
    policy = quote(curve.policy, safe="")
    return (
        f"{base}/groups?policy={policy}&made="
        if chart.figure.groups == "made"
        else f"{base}/compare?policy={policy}&b="
    )


def place_points(curve: Curve, over: Over) -> list[PlacedPoint]:
    """Return the points of a curve with coordinates, from left to right."""
    return sorted((PlacedPoint(curve.x(point, over), point) for point in curve.points), key=lambda entry: entry.x)


def thin(line: Sequence[PlacedPoint], most: int) -> list[PlacedPoint]:
    """Return at most `most` points: for each stretch the mean, and the whole of its band."""
    if len(line) <= most:
        return [*line]
    size = math.ceil(len(line) / most)
    return [_mean_point(line[start : start + size]) for start in range(0, len(line), size)]


def _mean_point(stretch: Sequence[PlacedPoint]) -> PlacedPoint:
    middle = stretch[len(stretch) // 2]
    points = [entry.point for entry in stretch]
    mean = sum(point.value for point in points) / len(points)
    low, high = min(point.low for point in points), max(point.high for point in points)
    return middle._replace(point=middle.point._replace(value=mean, low=low, high=high))


def uplot_data(chart: CurveChart, over: Over, base: str) -> dict[str, Any]:
    """Return a chart as uPlot takes it: one row of x, and for each curve its values there.

    Without a band `low` and `high` are omitted; `versions` and `groups` belong to the values.
    """
    lines = [{entry.x: entry.point for entry in thin(place_points(curve, over), MAX_DATA)} for curve in chart.curves]
    places = sorted({x for line in lines for x in line})
    curves = []
    for curve, line in zip(chart.curves, lines, strict=True):
        points = [line.get(x) for x in places]
        names = {"mean": "value", "versions": "version"}
        if any(point.low != point.high for point in line.values()):
            names |= {"low": "low", "high": "high"}
        columns = {
            key: [None if point is None else getattr(point, name) for point in points] for key, name in names.items()
        }
        look = {"colour": curve.colour % COLOURS, "dashed": curve.is_dashed}
        curves.append({"name": line_name(curve), "groups": groups_link(chart, curve, base), **look, **columns})
    return {"x": places, "curves": curves, "share": chart.figure.is_share}


def bar_width(advantage: float, largest: float) -> int:
    """Return the length of an advantage's bar, in percent."""
    return 0 if not largest or not math.isfinite(advantage) else round(100 * abs(advantage) / largest)


def value_range(points: Sequence[CurvePoint]) -> tuple[float, float]:
    """Return the ends of an axis that holds these points.

    0 is included unless the values are far from it and differ: nearly equal values make a level line.
    """
    low, high = min(point.low for point in points), max(point.high for point in points)
    if low == high == 0:
        return 0.0, 1.0
    is_level = high - low < max(abs(low), abs(high)) / 500
    if low >= 0 and (is_level or low < 0.6 * high):
        return 0.0, high * 1.04
    room = (high - low) * 0.04
    return (low * 1.04, 0.0) if is_level else (low - room, high + room)


def _kind(curve: Curve) -> str:
    """Return the CSS classes of a curve."""
    return f"c{curve.colour % COLOURS}{' again' if curve.is_dashed else ''}"


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


# --- marks of the axes ------------------------------------------------------------------------------------------------


def _marks(first: float, last: float, over: Over) -> list[tuple[float, str]]:
    """Return the positions and labels of an axis's marks."""
    if over == "time":
        return _time_marks(first, last)
    values = ticks(first, last, 6)
    if over == "version":
        return [(value, str(value)) for value in sorted({round(value) for value in values})]
    return [(value, f"{value:g} h") for value in values]


def _time_marks(first: float, last: float) -> list[tuple[float, str]]:
    """Return the marks of a time axis: days, minutes or seconds, whichever differ."""
    step = next((step for step in TIME_STEPS_S if (last - first) / step <= 5), TIME_STEPS_S[-1])
    start, end = (5, 10) if step >= 86_400 else (11, 16) if step >= 60 else (11, 19)
    places = [float(step * number) for number in range(math.ceil(first / step), math.floor(last / step) + 1)] or [first]
    return [(place, moment(round(1000 * place))[start:end]) for place in places[:MOST_MARKS]]


def ticks(low: float, high: float, count: int) -> list[float]:
    """Return about `count` round numbers between two.

    >>> ticks(0.0, 1.0, 5)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    raw = (high - low) / count
    if raw < SMALLEST:
        return [low]
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw * 0.999)
    numbers = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return [round(step * number, 10) for number in numbers]
