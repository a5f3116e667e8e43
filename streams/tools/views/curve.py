"""A chart as data: a figure, and its curves by version or by time. A plugin makes one, and the page draws it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Over = Literal["version", "time", "hours"]
"""The horizontal axis of curves; hours: since the first point of their policy."""
GroupsOf = Literal["answered", "made", ""]
"""The groups that a point is computed from: its version answered them, or was made of them; or none."""


class CurvePoint(NamedTuple):
    """A value of one version, and the ends of its band."""

    version: int
    value: float
    low: float
    high: float
    time_ms: int = 0
    """Of the newest record that it was made of."""

    def without_band(self) -> CurvePoint:
        """Return the value alone."""
        return self._replace(low=self.value, high=self.value)


@dataclass(frozen=True, slots=True)
class Curve:
    """A line, with a band."""

    name: str
    """Different from the other lines of its chart; `` for the only one."""
    points: list[CurvePoint] = field(default_factory=list)
    policy: str | None = None
    """The policy of the groups that a point is computed from; None: they are in another log."""
    start_ms: int = 0
    """When the first point of its policy was made."""
    colour: int = 0
    """The number of its colour: that of its policy where there are several, in every chart."""
    is_dashed: bool = False
    """Whether another curve has its colour."""

    def x(self, point: CurvePoint, over: Over) -> float:
        """Return where a point is: its version, its time in seconds, or the hours since the start."""
        if over == "version":
            return point.version
        return point.time_ms / 1000 if over == "time" else (point.time_ms - self.start_ms) / 3_600_000


class Figure(NamedTuple):
    """The figure of a chart."""

    key: str
    title: str
    about: str = ""
    """A sentence on its values."""
    groups: GroupsOf = ""
    is_share: bool = False
    """Whether its values are from 0 to 1."""


@dataclass(frozen=True, slots=True)
class CurveChart:
    """Curves of one figure."""

    figure: Figure
    curves: list[Curve]


HELD_OUT = Figure(
    "held_out", "Held-out score", "Right answers on tasks that are never trained on, with Wilson's 95 % interval.",
    is_share=True,
)  # fmt: skip
