"""Curves as a picture that needs no JavaScript: SVG, with the band of each behind its line.

    curves ──► at most MAX_POINTS points each ──► scaled ──► <svg>; colours come from the style sheet, by number

Where JavaScript runs, uPlot draws the same curves instead, and all of their points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from streams.tools.views.policy_versions import Curve, CurvePoint
from streams.tools.views.visible_text import visible

LARGE, SMALL = (720, 280), (360, 160)
"""Width and height of a picture."""
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 10, 30
MAX_POINTS = 400
"""Points of one line: more cannot be told apart."""
DOTTED = 60
"""Points of one line up to which each has a dot."""
COLOURS = 6
"""Colours in the style sheet; a seventh curve has the first again, and dashes."""

GRID = Markup(
    '<line class="grid" x1="{0}" x2="{1}" y1="{2:.1f}" y2="{2:.1f}"/>'
    '<text x="{3}" y="{4:.1f}" class="ends">{5:g}</text>'
)
DOT = Markup('<circle class="dot {}" cx="{:.1f}" cy="{:.1f}" r="3"><title>{} of version {}: {:.4g}</title></circle>')
KEY = Markup(
    '<li><svg viewBox="0 0 20 8" aria-hidden="true"><line class="line {}" x1="1" x2="19" y1="4" y2="4"/></svg>{}</li>'
)


def svg(curves: Sequence[Curve], about: str, *, small: bool = False) -> Markup:
    """Return the picture of curves over versions; a small one has no dots, and reaches as far as its values do."""
    points = [point for curve in curves for point in curve.points]
    if not points:
        return Markup("")
    first, last = min(point.version for point in points), max(point.version for point in points)
    low, high = min(0.0, *(point.low for point in points)), max(point.high for point in points)
    high = max(high, 0.0 if small else 1.0)
    high = high if high > low else 1.0
    width, height = SMALL if small else LARGE

    def x(version: float) -> float:
        return LEFT + (width - LEFT - RIGHT) * ((version - first) / (last - first) if last > first else 0.5)

    def y(value: float) -> float:
        return TOP + (height - TOP - BOTTOM) * (high - value) / (high - low)

    parts = [
        Markup('<svg class="chart{}" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
            " small" if small else "", width, height, visible(about)
        )
    ]
    for value in _ticks(low, high, 3 if small else 5):
        parts.append(GRID.format(LEFT, width - RIGHT, y(value), LEFT - 6, y(value) + 4, round(value, 6)))
    for version in sorted({round(tick) for tick in _ticks(first, last, 5 if small else 10)}):
        text = Markup('<text x="{:.1f}" y="{}" class="middle">{}</text>')
        parts.append(text.format(x(version), height - 10, version))
    for number, curve in enumerate(curves):
        drawn, kind = thin(curve.points), _kind(number)
        line = [(x(point.version), y(point.value)) for point in drawn]
        upper = [(x(point.version), y(point.high)) for point in drawn]
        lower = [(x(point.version), y(point.low)) for point in drawn]
        parts.append(Markup('<polygon class="band {}" points="{}"/>').format(kind, _path(upper + lower[::-1])))
        parts.append(Markup('<polyline class="line {}" points="{}"/>').format(kind, _path(line)))
        if len(drawn) <= DOTTED and not small:
            for point, (left, top) in zip(drawn, line, strict=True):
                parts.append(DOT.format(kind, left, top, visible(curve.name), point.version, point.value))
    return Markup("").join([*parts, Markup("</svg>")])


def legend(curves: Sequence[Curve]) -> Markup:
    """Return the names of curves with their colours."""
    items = [KEY.format(_kind(number), visible(curve.name)) for number, curve in enumerate(curves)]
    return Markup('<ul class="legend">{}</ul>').format(Markup("").join(items))


def _kind(number: int) -> str:
    return f"c{number % COLOURS}{' again' if number >= COLOURS else ''}"


def thin(points: Sequence[CurvePoint]) -> list[CurvePoint]:
    """Return at most MAX_POINTS points: of each stretch the mean, and the whole of its band."""
    if len(points) <= MAX_POINTS:
        return [*points]
    size = math.ceil(len(points) / MAX_POINTS)
    stretches = [points[start : start + size] for start in range(0, len(points), size)]
    return [
        CurvePoint(
            stretch[len(stretch) // 2].version,
            sum(point.value for point in stretch) / len(stretch),
            min(point.low for point in stretch),
            max(point.high for point in stretch),
        )
        for stretch in stretches
    ]


def uplot_data(curves: Sequence[Curve]) -> dict[str, Any]:
    """Return curves as uPlot takes them: one row of versions, and for each curve its values at them."""
    versions = sorted({point.version for curve in curves for point in curve.points})
    data = []
    for curve in curves:
        by_version = {point.version: point for point in curve.points}
        points = [by_version.get(version) for version in versions]
        data.append(
            {
                "name": curve.name,
                "mean": [None if point is None else point.value for point in points],
                "low": [None if point is None else point.low for point in points],
                "high": [None if point is None else point.high for point in points],
            }
        )
    return {"x": versions, "curves": data}


def bar_width(advantage: float, largest: float) -> int:
    """Return how long an advantage's bar is, of 100."""
    return 0 if not largest or not math.isfinite(advantage) else round(100 * abs(advantage) / largest)


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _ticks(low: float, high: float, count: int) -> list[float]:
    """Return about `count` round numbers between two.

    >>> _ticks(0.0, 1.0, 5)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    if high <= low:
        return [low]
    raw = (high - low) / count
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= raw * 0.999)
    numbers = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return [round(step * number, 10) for number in numbers]
