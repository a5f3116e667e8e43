"""How far questions have moved from those of a reference: a profile of each set, and a distance per column.

    rows ──► Profile: rows by column and bin ──► of two sets ──► distance of each column, and its bound

    distance = ½ Σ |p_b - q_b|       total variation: the share of rows that would have to move
    bound    = ½ Σ √(m_b (1 - m_b) s) + √(s ln(columns / 0.01) / 2)        s = 1/n_p + 1/n_q, m: both sets together

The first term is about the mean distance by chance alone; by McDiarmid's inequality, chance exceeds it by the second
term in at most one comparison of a hundred, over all columns. A profile is a few numbers, so it fits in an event, and a
later set can be compared without the rows.

Assumes independent rows, and that each comparison is looked at once. Not detected: a change of topic with the same
length, script and scenario; and a drift so slow that each step could be chance.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from plugins.data.cleaning.row_shapes import question_of
from plugins.data.cleaning.steps import script_of

ERROR = 0.01
"""Probability that chance alone is called drift, over all columns."""
Profile = Mapping[str, int]
"""Rows by `column:bin`."""


@dataclass(frozen=True, slots=True)
class ColumnDrift:
    """One column of two sets."""

    column: str
    distance: float
    bound: float

    @property
    def has_moved(self) -> bool:
        """Whether chance alone would rarely make this distance."""
        return self.distance > self.bound

    def plain(self) -> dict[str, Any]:
        """Return it as a row."""
        return {
            "column": self.column,
            "distance": round(self.distance, 4),
            "bound": round(self.bound, 4),
            "moved": self.has_moved,
        }

    def __str__(self) -> str:
        return f"{self.column} moved by {self.distance:.2f}, chance alone by at most {self.bound:.2f}"


def profile(rows: Iterable[tuple[Mapping[str, Any], str | None]]) -> dict[str, int]:
    """Return the profile of rows, each with its scenario if it has one.

    >>> profile([({"question": "1 + 1 ="}, None), ({"question": "And why is 4 + 7 the same as 7 + 4?"}, "why")])
    {'question_characters:32': 1, 'question_characters:4': 1, 'scenario:why': 1, 'script:latin': 1, 'script:none': 1}
    """
    counts: Counter[str] = Counter()
    for fields, scenario in rows:
        question = question_of(fields)
        counts[f"question_characters:{_floor(len(question))}"] += 1
        counts[f"script:{script_of(question)}"] += 1
        if scenario is not None:
            counts[f"scenario:{scenario}"] += 1
        for name in ("messages", "tools"):
            if isinstance(listed := fields.get(name), list):
                counts[f"{name}:{_floor(len(listed))}"] += 1
    return dict(sorted(counts.items()))


def drift(reference: Profile, current: Profile) -> list[ColumnDrift]:
    """Return the drift of each column that both have."""
    sides = [_columns(one) for one in (reference, current)]
    shared = sorted(sides[0].keys() & sides[1].keys())
    return [_drift(column, sides[0][column], sides[1][column], len(shared)) for column in shared]


def drift_figures(columns: Iterable[ColumnDrift]) -> dict[str, float]:
    """Return the distances and their bounds as an event has them."""
    figures: dict[str, float] = {}
    for column in columns:
        figures |= {column.column: column.distance, f"{column.column}.bound": column.bound}
    return figures


def _drift(column: str, before: Counter[str], after: Counter[str], columns: int) -> ColumnDrift:
    first, second = before.total(), after.total()
    spread = 1 / first + 1 / second
    distance = by_chance = 0.0
    for name in before | after:
        mean = (before[name] + after[name]) / (first + second)
        distance += abs(before[name] / first - after[name] / second) / 2
        by_chance += math.sqrt(mean * (1 - mean) * spread) / 2
    return ColumnDrift(column, distance, by_chance + math.sqrt(spread * math.log(columns / ERROR) / 2))


def _columns(rows: Profile) -> dict[str, Counter[str]]:
    columns: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name, count in rows.items():
        column, _, place = name.partition(":")
        if count > 0:
            columns[column][place] += count
    return dict(columns)


def _floor(number: int) -> int:
    """Return the largest power of two that is not above a number.

    >>> [_floor(number) for number in (0, 1, 3, 4, 1000)]
    [0, 1, 2, 4, 512]
    """
    return 1 << (number.bit_length() - 1) if number else 0
