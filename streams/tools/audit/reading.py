"""Read the input of the audit: first the commits, then the ends, then the records up to them.

    consumer groups ──► commits ──► ends, effects before causes ──► records ──► Ledger ──► Report
                          older         └─ of dead-letters first, of tasks last     once, or every so often

This order makes it sound on a running system. The effects of a record below a commit were acknowledged before the
commit, so they are below the ends, which are read later; and the cause of an effect that was read is below an end that
was read after it. It commits nothing and joins no group.

If a consumer group was deleted, or reset to an earlier offset, the records that it had passed count as in flight.
"""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import TopologicalSorter

from streams.errors import check_policy
from streams.kafka import admin, times
from streams.kafka.offsets import positions
from streams.kafka.reader import read
from streams.kafka.record import TopicPartition
from streams.kafka.topics import SHAPES
from streams.kafka.transactions import unread_offsets
from streams.settings.model import Settings
from streams.tools.audit.facts import Reach
from streams.tools.audit.recount import Ledger
from streams.tools.audit.report import Report
from streams.topics.shape import EVERY_TOPIC, TopicShape

KEPT_WHOLE = ("whole", "place")


def effects_first(shapes: Mapping[str, TopicShape]) -> list[str]:
    """Return the topics that the audit reads, each before those with causes of its records."""
    read = [shape for shape in shapes.values() if shape.audit != "nothing"]
    causes = {
        shape.label: [
            cause.label
            for cause in read
            if cause is not shape
            if {cause.label, EVERY_TOPIC} & {*shape.causes} or shape.label in cause.effects
        ]
        for shape in read
    }
    return [*TopologicalSorter(causes).static_order()][::-1]


BACKWARDS = effects_first(SHAPES)
CLOCK_SKEW_MS = 60_000
"""Allowed clock difference between writers, when the log is cut by time."""


class Audit:
    """A recount that can be repeated: each continues where the one before ended."""

    def __init__(
        self, settings: Settings, *, policy: str | None = None, since_ms: int | None = None, settled: bool = False
    ) -> None:
        self._settings, self._policy, self._since_ms, self._settled = settings, policy, since_ms, settled
        self._ledger = Ledger(settings)
        self._begins: dict[TopicPartition, int] = {}
        self._position: dict[TopicPartition, int] = {}
        self._retained: frozenset[TopicPartition] = frozenset()
        self._gaps: dict[TopicPartition, list[range]] = {}
        self._unread: dict[TopicPartition, set[int]] = {}

    def look(self) -> Report:
        """Return the recount of the log as it is now.

        Raises NotFoundError if a topic or the policy does not exist, LogError if the broker does not answer or
        retention has deleted what was not yet read.
        """
        now_ms = times.now_ms()
        committed = commits(self._settings)
        ends: dict[TopicPartition, int] = {}
        lows: dict[TopicPartition, int] = {}
        for label in BACKWARDS:
            for tp, (low, high) in admin.offsets(self._settings, [label]).items():
                lows[tp], ends[tp] = low, high
        if not self._begins:
            self._begin(lows, ends)
        for record in read(self._settings, self._position, ends):
            self._ledger.take(record)
        self._position = dict(ends)
        if self._policy is not None:
            check_policy(self._policy, self._ledger.policies())
        self._look_at_gaps(ends)
        reach = Reach(
            committed=committed,
            begins=self._begins,
            ends=ends,
            unread=self._unread,
            retained=self._retained,
            since_ms=self._since_ms,
            now_ms=now_ms,
            settled=self._settled,
        )
        return self._ledger.report(reach, policy=self._policy)

    def _look_at_gaps(self, ends: dict[TopicPartition, int]) -> None:
        """Read what is in gaps that are new: markers and aborted records are no lost ones."""
        gaps = self._ledger.gaps(self._begins, ends)
        for tp, spans in gaps.items():
            if new := [span for span in spans if span not in self._gaps.get(tp, ())]:
                self._unread.setdefault(tp, set()).update(unread_offsets(self._settings.kafka, tp, new))
        self._gaps = gaps

    def _begin(self, lows: dict[TopicPartition, int], ends: dict[TopicPartition, int]) -> None:
        self._begins = dict(lows)
        if self._since_ms is not None:
            # every task, since a copy of an older one would look new; and small topics
            cut = [label for label in BACKWARDS if SHAPES[label].audit not in KEPT_WHOLE]
            found = admin.offsets_at(self._settings, cut, max(0, self._since_ms - CLOCK_SKEW_MS))
            self._begins |= {tp: ends[tp] if offset < 0 else offset for tp, offset in found.items()}
        self._retained = frozenset(tp for tp, low in lows.items() if low > 0 and self._begins[tp] == low)
        self._position = dict(self._begins)


def commits(settings: Settings) -> dict[tuple[str, str, int], int]:
    """Return the next offset of every consumer group of Streamward by (group without prefix, topic, partition).

    Raises LogError if the broker does not answer.
    """
    return {(at.group, at.topic, at.partition): at.committed for at in positions(settings)}
