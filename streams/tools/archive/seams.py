"""Check that a log is the archived one: it has the last archived record, unless retention has deleted it.

A recreated topic has the same name and begins at offset 0 again. Once it has as many records as its archive, offsets
cannot distinguish the two, and another log would continue the archive.
"""

from __future__ import annotations

from collections.abc import Mapping

from schemas.events import Coordinates
from streams.errors import LogError
from streams.kafka.history import History
from streams.kafka.record import Record, TopicPartition
from streams.tools.archive.segments import ArchiveReader, fingerprint


def check_seams(archive: ArchiveReader, log: History, bounds: Mapping[TopicPartition, tuple[int, int]]) -> None:
    """Raise LogError if one of these partitions of the log is not the one that was archived.

    `bounds` has the first offset of each in the log, and the one after its last.
    """
    lasts: dict[Coordinates, Record] = {}
    for (topic, partition), (low, high) in bounds.items():
        last = archive.last(archive.label(topic), partition)
        if last is not None and low <= last.at.offset < high:
            lasts[last.at] = last
    for position, record in log.fetch(lasts).items():
        if fingerprint(record) != fingerprint(lasts[position]):
            raise LogError(
                f"{position}: the log holds another record here than the archive in {archive.location}: the topic was "
                "recreated. Read one of them with --source archive or --source log, or set archive.store to another "
                "place for the new log"
            )
