"""Detect that a stream worker makes no progress.

one observation ──► StallDetector ──► why to end the process (streams/processes/watchdog.py)
"""

from __future__ import annotations

from typing import Any, NamedTuple

from streams.kafka.record import TopicPartition


class Sight(NamedTuple):
    """One observation of a worker."""

    committed: dict[TopicPartition, int]
    """The next offset to work on, per source partition owned."""
    lagging: frozenset[TopicPartition]
    """Owned partitions with records from `committed` on."""
    holes: dict[TopicPartition, int]
    """First offset that was acknowledged after one that was not, per partition."""
    rebalancing: bool
    recovered: dict[TopicPartition, int]
    """Offset reached per changelog."""


class StallDetector:
    """Tracks how long each part has made no progress. Pure: `look` gets the seconds."""

    def __init__(self, *, hole_s: float, stuck_s: float) -> None:
        self._hole_s, self._stuck_s = hole_s, stuck_s
        self._still_s: dict[Any, tuple[Any, float]] = {}

    def look(self, sight: Sight, passed_s: float) -> tuple[str | None, str | None]:
        """Return (why to end the process now, why to end it if the broker answers); None if all is well."""
        states: dict[Any, Any] = {}
        if sight.rebalancing:
            states["rebalance"] = sight.recovered
        else:
            states |= {("hole", tp): (sight.committed.get(tp), offset) for tp, offset in sight.holes.items()}
            states |= {("lag", tp): sight.committed[tp] for tp in sight.lagging}
        still_s: dict[Any, tuple[Any, float]] = {}
        for subject, state in states.items():
            previous, seconds = self._still_s.get(subject, (None, 0.0))
            still_s[subject] = (state, seconds + passed_s if previous == state else 0.0)
        self._still_s = still_s
        return self._hole(), self._stall()

    def _hole(self) -> str | None:
        for subject, (state, seconds) in self._still_s.items():
            if subject[0] == "hole" and seconds > self._hole_s:
                return f"{_record(subject[1], state[0])} is not done, though {state[1]} is, for {seconds:.0f} s"
        return None

    def _stall(self) -> str | None:
        for subject, (state, seconds) in self._still_s.items():
            if seconds <= self._stuck_s:
                continue
            if subject == "rebalance":
                return f"a rebalance has made no progress for {seconds:.0f} s; changelogs are read up to {state}"
            if subject[0] == "lag":
                return f"{_record(subject[1], state)} has waited for {seconds:.0f} s"
        return None


def _record(tp: TopicPartition, offset: int) -> str:
    return f"{tp[0]}[{tp[1]}]@{offset}"
