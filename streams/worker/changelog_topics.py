"""The topics in which stream workers keep the rows of their tables.

    tables, partitions ──► create ──► compacted topics, one per table; one that exists must have the right shape

Both drivers use the same ones, so a worker of one continues where a worker of the other was.
"""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka.admin import NewTopic

from streams.errors import SettingsError
from streams.kafka import admin
from streams.kafka.topics import row_bytes
from streams.settings.model import Settings

SEGMENT_BYTES = 16 * 2**20
"""Kafka does not compact the segment it writes to, and a worker that starts reads all of them: with Kafka's default of
1 GiB, every version of every row for days."""


def create(settings: Settings, counts: Mapping[str, int]) -> None:
    """Create these topics, given with their partition counts, and check those that exist.

    Raises LogError if the broker does not answer or refuses, SettingsError for a wrong partition count.
    """
    existing = admin.describe(settings)
    for name, partitions in counts.items():
        if existing.get(name, partitions) != partitions:
            raise SettingsError(
                f"changelog {name} has {existing[name]} partitions, expected {partitions}, as its source. Delete it "
                "together with the offsets of the group, or use another topics.prefix"
            )
    new = [
        NewTopic(
            name,
            num_partitions=partitions,
            replication_factor=settings.topics.replication,
            config={
                "cleanup.policy": "compact",
                "segment.bytes": str(max(SEGMENT_BYTES, row_bytes(settings.topics))),
                "max.message.bytes": str(row_bytes(settings.topics)),
            },
        )
        for name, partitions in counts.items()
        if name not in existing
    ]
    admin.create(settings, new)
