"""A log in memory: events appended, each topic in one partition.

Appended(task(), response(), …) ──► a History for readers; tables() ──► what DuckDB reads of it
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import duckdb

from schemas.events import Coordinates, Event
from streams.arrow import decode
from streams.kafka.record import Record, TopicPartition, encoded
from streams.kafka.topics import topic_of, topics
from streams.settings.model import Settings, Topics
from streams.tools.query.sql_view import WHOLE
from streams.tools.query.views import columns, identifier, name_of

SETTINGS = Settings(topics=Topics(partitions=1, policy_partitions=1))


class Appended:
    """A history that grows: each topic in one partition, record n at second n."""

    def __init__(self, *events: Event) -> None:
        self.records: dict[str, list[Record]] = {}
        self.write(*events)

    def write(self, *events: Event) -> None:
        for event in events:
            topic = topic_of(type(event), SETTINGS.topics)
            there = self.records.setdefault(topic.name, [])
            key, payload = encoded(event, topic)
            there.append(Record(Coordinates(topic.name, 0, len(there)), len(there) * 1000, key, payload))

    def bounds(self, labels: Iterable[str]) -> dict[TopicPartition, tuple[int, int]]:
        names = [f"streamward.{label}" for label in labels]
        return {(name, 0): (0, len(self.records.get(name, []))) for name in names}

    def read(self, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> Iterator[Record]:
        for tp, start in starts.items():
            yield from self.records.get(tp[0], [])[start : ends[tp]]

    def fetch(self, wanted: Iterable[Coordinates]) -> dict[Coordinates, Record]:
        return {at: self.records[at.topic][at.offset] for at in wanted}

    def connect(self) -> duckdb.DuckDBPyConnection:
        """Return a connection with the view of every topic, in both schemas."""
        con = duckdb.connect()
        con.execute(f"SET TimeZone = 'UTC'; CREATE SCHEMA {WHOLE}; CREATE SCHEMA live")
        for label, topic in topics(SETTINGS.topics).items():
            decoded = decode.decode(topic.event, self.records.get(topic.name, []))
            assert not decoded.bad
            name = identifier(name_of(label))
            con.register(f"live_{name_of(label)}", decoded.table)
            listed = columns(label, decoded.table.schema.names)
            rows = f"SELECT {listed} FROM memory.main.live_{name_of(label)}"  # noqa: S608 - our names
            con.execute(f"CREATE VIEW {WHOLE}.{name} AS {rows}")
            con.execute(f"CREATE VIEW main.{name} AS FROM {WHOLE}.{name}")
        return con
