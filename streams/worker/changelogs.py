"""Check whether a table's changelog still holds everything that was written to it.

    publish acknowledged ──► Changelogs ──► note, in the metadata of each commit
    commit's note, the broker's bounds ──► distrust ──► None: continue from the commit
                                                    └─► why: read the source topics from their start

A commit says "the events before this offset are done", and the resulting state is only in the changelogs. If one was
cut or recreated, a worker that continues from the commit has silently lost half-read groups. So each commit notes how
far the changelogs of its partition reach. Untrusted state is not discarded: a surviving row is an older state of its
key, and reading everything again restores each row. After each recovery a new note is accepted, and committed together
with the rewound offsets. So a crash in the middle of a rebuild continues from what was rebuilt, and a changelog that
was cut once is rebuilt once.

Pure bookkeeping, without a clock and without Kafka; `seek.py` uses it. Not detected: a changelog that was recreated and
has grown past the note unseen, and one of commits without a note, unless all of the partition's are empty.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from schemas import json_text
from streams.kafka import topic_ids
from streams.kafka.record import TopicPartition

FORMAT = 1
"""Version of the note. A note of another version is ignored."""


END = "\0"
"""Ends a note. librdkafka 2.16 copies a commit's metadata without a final NUL, and its Python client reads up to the
next NUL in memory."""


class Extent(NamedTuple):
    """The bounds of one changelog partition."""

    start: int
    """Its first offset. A compacted topic never moves it by itself."""
    end: int
    """The offset after the last record."""


class Changelogs:
    """The end of each changelog partition of one worker."""

    def __init__(self) -> None:
        self.notes: Mapping[TopicPartition, str] = {}
        """The metadata of the commits, by source partition, as of the last seek."""
        self._extents: dict[TopicPartition, Extent] = {}
        self._last: dict[TopicPartition, int] = {}

    def accept(self, extents: Mapping[TopicPartition, Extent]) -> None:
        """From here on, note that exactly these changelogs are owned, and their ends."""
        self._extents = dict(extents)
        self._last.clear()

    def acknowledged(self, tp: TopicPartition, offset: int) -> str | None:
        """Register a record that was written to a changelog; return why that is impossible, or None."""
        last = self._last.get(tp, -1)
        if offset <= last:
            return f"{tp[0]}[{tp[1]}]: a record was written at {offset}, though {last} had been written"
        self._last[tp] = offset
        extent = self._extents.get(tp)
        if extent is not None and offset >= extent.end:
            self._extents[tp] = extent._replace(end=offset + 1)
        return None

    def reach(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end of each of these changelog partitions, as written or accepted here."""
        return {tp: self._extents[tp].end for tp in tps if tp in self._extents}

    def note(self, partition: int, topic_id: str = "") -> str:
        """Return the note for a commit of a source partition with this number, and the id of its topic.

        Called from the consumer's thread.
        """
        extents = sorted(self._extents.copy().items())
        reach = {topic: list(extent) for (topic, number), extent in extents if number == partition}
        note = ({"v": FORMAT, "changelogs": reach} if reach else {}) | ({topic_ids.KEY: topic_id} if topic_id else {})
        return json.dumps(note, separators=(",", ":")) + END if note else ""


def read_note(metadata: str) -> dict[str, Extent]:
    """Return the note of a commit, by changelog topic; nothing without a readable note."""
    try:
        note = json_text.parse(metadata.rstrip(END))
        if note["v"] != FORMAT:
            return {}
        return {topic: Extent(int(start), int(end)) for topic, (start, end) in note["changelogs"].items()}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):  # int(inf) overflows
        return {}


def distrust(extents: Mapping[str, Extent], notes: Iterable[str], *, committed: bool) -> dict[str, str]:
    """Return, by changelog topic, why it cannot be trusted; nothing if all can.

    `extents` are the changelogs of one partition number as they are now, `notes` the metadata of the commits of the
    source partitions that feed them, `committed` whether any of those has a commit.
    """
    expected: dict[str, Extent] = {}
    for metadata in notes:
        for topic, extent in read_note(metadata).items():
            earlier = expected.get(topic, extent)
            expected[topic] = Extent(max(earlier.start, extent.start), max(earlier.end, extent.end))
    if not expected and committed and extents and all(extent.end == 0 for extent in extents.values()):
        return dict.fromkeys(extents, "is empty, though its sources have commits")
    reasons = {topic: _difference(expected[topic], extent) for topic, extent in extents.items() if topic in expected}
    return {topic: reason for topic, reason in reasons.items() if reason is not None}


def _difference(expected: Extent, actual: Extent) -> str | None:
    if actual.end < expected.end:
        recreated = " (it was recreated or emptied)" if actual.end == 0 else ""
        return f"ends at {actual.end}, but {expected.end - 1} had been written{recreated}"
    if actual.start > expected.start:
        return f"begins at {actual.start}, but began at {expected.start} before"
    return None
