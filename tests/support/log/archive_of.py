"""A log that a test makes up, as an archive: what reads topics reads it, and no broker runs.

{label: events} ──► records of partition 0 ──► segments, as `streamward admin archive sync` writes them
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from schemas.events import Event
from schemas.serde import encode
from streams.arrow.decode import DecodedRows, side_by_side
from streams.kafka.record import Record
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.tools.archive.segment_writer import RangeWriter
from streams.tools.archive.segments import ArchiveReader
from streams.tools.archive.tables import Change


def archived(settings: Settings, log: Mapping[str, Sequence[Event | bytes]], at_ms: Iterable[int]) -> None:
    """Write the events of each topic; the timestamps of all records follow from `at_ms`. Bytes are written as they are.

    A record has the key that its topic names; that of dead letters is empty.
    """
    clock = iter(at_ms)
    reader = ArchiveReader(settings)
    for label, events in log.items():
        topic = topics(settings.topics)[label]
        table = reader.table(label)
        table.create({0: 0})
        payloads = [event if isinstance(event, bytes) else encode(event) for event in events]
        keys = [str(getattr(event, topic.key, "")).encode() if topic.key else b"" for event in events]
        count = len(payloads)
        times = [next(clock) for _ in payloads]
        rows = DecodedRows(topic.name, [0] * count, list(range(count)), times, keys, list(payloads), [])
        reader.refresh()
        state = reader.state(label)
        assert state is not None
        writing = RangeWriter(settings, reader.store, label, 0)
        writing.add(rows)
        files = tuple(writing.write_files(0, count))
        assert table.commit(state, Change(added=files, nexts={0: count}))
        reader.refresh()


def archive_records(settings: Settings, log: Mapping[tuple[str, int], Sequence[Record]], sizes: Iterable[int]) -> None:
    """Write the records of each topic, given by label, and partition: as many to a segment as `sizes` says next."""
    reader, count = ArchiveReader(settings), iter(sizes)
    for label in dict.fromkeys(label for label, _ in log):
        topic, table = topics(settings.topics)[label], reader.table(label)
        partitions = [partition for other, partition in log if other == label]
        table.create(dict.fromkeys(partitions, 0))
        state = table.load()
        assert state is not None
        added = []
        for partition in partitions:
            records, first = log[label, partition], 0
            while first < len(records):
                some = records[first : first + next(count)]
                writing = RangeWriter(settings, reader.store, label, partition)
                writing.add(side_by_side(topic.name, some))
                added += writing.write_files(first, first + len(some))
                first += len(some)
        nexts = {partition: len(log[label, partition]) for partition in partitions}
        assert table.commit(state, Change(added=tuple(added), nexts=nexts))
