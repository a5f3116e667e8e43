"""Tell the rows of a zombie in a changelog from those of the partition's owners.

    rows of a changelog, each with the generation of the group in which it was written ──► Fence ──► valid, or stale

Generations only grow, and a partition has one owner in each. So a row of an older generation than a row before it was
written by a worker that had unknowingly lost the partition.
"""

from __future__ import annotations

from typing import Any

GENERATION = "generation"
"""Header with the generation of the group in which the row was written, decimal."""


class Fence:
    """Tells rows of a zombie from others, partition by partition."""

    def __init__(self) -> None:
        self._newest: dict[int, tuple[int, int]] = {}
        """By partition: the last offset read, and the newest generation up to there."""

    def admits(self, partition: int, offset: int, generation: int | None) -> bool:
        """Return whether a row is valid; rows are given in order. One without a generation (None) always is."""
        last, newest = self._newest.get(partition, (-1, 0))
        if offset <= last:  # read again from the start
            newest = 0
        self._newest[partition] = (offset, max(newest, generation or 0))
        return generation is None or generation >= newest

    def generation(self, partition: int, current: int) -> int:
        """Return the generation to put on a row that is written now.

        The current one; but a group that was deleted begins again at 1, and its rows must then count as newer than
        those that were read.
        """
        newest = self._newest.get(partition, (-1, 0))[1]
        return current if current >= newest else newest + 1


def generation_of(headers: Any) -> int | None:
    """Return the generation in a row's headers; None if it is missing or unreadable."""
    value = dict(headers or ()).get(GENERATION, b"")
    return int(value) if value.isdigit() else None
