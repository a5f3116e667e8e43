"""Whether a stream worker makes progress, and its end if it does not.

    what one look shows ──► StallDetector ──► why to end the process ──► give_up: log, exit 75

A restarted worker reads again from its last commit, so ending it is always safe; one that looks healthy and does
nothing is not. The seconds are given, so a process that was suspended and resumed is not mistaken for a stuck one.
"""

from __future__ import annotations

import logging
import os
from typing import Any, NamedTuple, NoReturn

from streams.errors import EXIT_RESTART
from streams.kafka.record import TopicPartition

log = logging.getLogger("streamward.worker")


def give_up(why: str) -> NoReturn:
    """Log why and end the process with EXIT_RESTART, at once: nothing still running could be trusted."""
    log.critical("%s. Ending this process with exit code %d; restart it", why, EXIT_RESTART)
    for handler in [*log.handlers, *logging.getLogger().handlers]:
        handler.flush()
    os._exit(EXIT_RESTART)


class Sight(NamedTuple):
    """What one look at a worker shows."""

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
    """How long each thing has made no progress. Pure: the seconds are given to `look`."""

    def __init__(self, *, hole_s: float, stuck_s: float) -> None:
        self._hole_s, self._stuck_s = hole_s, stuck_s
        self._still_s: dict[Any, tuple[Any, float]] = {}

    def look(self, sight: Sight, passed_s: float) -> tuple[str | None, str | None]:
        """Return (why to end the process now, why to end it if the broker answers); None where all is well."""
        hole = stuck = None
        seen: dict[Any, Any] = {}
        if sight.rebalancing:
            seen["rebalance"] = sight.recovered
        else:
            seen |= {("hole", tp): (sight.committed.get(tp), first) for tp, first in sight.holes.items()}
            seen |= {("lag", tp): sight.committed[tp] for tp in sight.lagging}
        still: dict[Any, tuple[Any, float]] = {}
        for what, state in seen.items():
            before, since = self._still_s.get(what, (None, 0.0))
            still[what] = (state, since + passed_s if before == state else 0.0)
        self._still_s = still
        for what, (state, seconds) in still.items():
            if what[0] == "hole" and seconds > self._hole_s:
                hole = f"{_at(what[1], state[0])} is not done, though {state[1]} is, for {seconds:.0f} s"
            elif what == "rebalance" and seconds > self._stuck_s:
                stuck = f"a rebalance has made no progress for {seconds:.0f} s; changelogs are read up to {state}"
            elif what[0] == "lag" and seconds > self._stuck_s:
                stuck = f"{_at(what[1], state)} has waited for {seconds:.0f} s"
        return hole, stuck


def _at(tp: TopicPartition, offset: int) -> str:
    return f"{tp[0]}[{tp[1]}]@{offset}"
