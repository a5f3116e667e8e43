"""Curves as a picture that needs no JavaScript: SVG, with the band of each behind its line.

    curves ──► at most MOST points each ──► scaled ──► <svg>; colours come from the style sheet, by number

Where JavaScript runs, uPlot draws the same curves instead, and all of their points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from streams.tools.views.policy_versions import Curve
from streams.tools.views.visible_text import visible

WIDTH, HEIGHT = 720, 280
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 10, 30
MOST = 400
"""Points of one line: more would not be seen."""
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

Point = tuple[int, float, float, float]


def svg(curves: Sequence[Curve], about: str) -> Markup:
    """Return the picture of curves over versions."""
    points = [point for curve in curves for point in curve.points]
    if not points:
        return Markup("")
    first, last = min(point[0] for point in points), max(point[0] for point in points)
    low, high = min(0.0, *(point[2] for point in points)), max(1.0, *(point[3] for point in points))

    def x(version: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * ((version - first) / (last - first) if last > first else 0.5)

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low)

    parts = [
        Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
            WIDTH, HEIGHT, visible(about)
        )
    ]
    for value in _ticks(low, high, 5):
        parts.append(GRID.format(LEFT, WIDTH - RIGHT, y(value), LEFT - 6, y(value) + 4, round(value, 6)))
    for version in sorted({round(one) for one in _ticks(first, last, 10)}):
        text = Markup('<text x="{:.1f}" y="{}" class="middle">{}</text>')
        parts.append(text.format(x(version), HEIGHT - 10, version))
    for number, curve in enumerate(curves):
        few, kind = thinned(curve.points), _kind(number)
        line = [(x(one[0]), y(one[1])) for one in few]
        band = [(x(one[0]), y(one[3])) for one in few] + [(x(one[0]), y(one[2])) for one in reversed(few)]
        parts.append(Markup('<polygon class="band {}" points="{}"/>').format(kind, _path(band)))
        parts.append(Markup('<polyline class="line {}" points="{}"/>').format(kind, _path(line)))
        if len(few) <= DOTTED:
            parts += [DOT.format(kind, x(p[0]), y(p[1]), visible(curve.name), p[0], p[1]) for p in few]
    return Markup("").join([*parts, Markup("</svg>")])


def legend(curves: Sequence[Curve]) -> Markup:
    """Return the names of curves with their colours."""
    items = [KEY.format(_kind(number), visible(curve.name)) for number, curve in enumerate(curves)]
    return Markup('<ul class="legend">{}</ul>').format(Markup("").join(items))


def _kind(number: int) -> str:
    return f"c{number % COLOURS}{' again' if number >= COLOURS else ''}"


def thinned(points: Sequence[Point]) -> list[Point]:
    """Return at most MOST points: of each stretch the mean, and the whole of its band."""
    if len(points) <= MOST:
        return [*points]
    size = math.ceil(len(points) / MOST)
    stretches = [points[at : at + size] for at in range(0, len(points), size)]
    return [
        (
            some[len(some) // 2][0],
            sum(one[1] for one in some) / len(some),
            min(one[2] for one in some),
            max(one[3] for one in some),
        )
        for some in stretches
    ]


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _ticks(low: float, high: float, about: int) -> list[float]:
    """Return round numbers between two, about as many as asked for.

    >>> _ticks(0.0, 1.0, 5)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    if high <= low:
        return [low]
    raw = (high - low) / about
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * many for many in (1, 2, 5, 10) if size * many >= raw * 0.999)
    numbers = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return [round(step * number, 10) for number in numbers]
