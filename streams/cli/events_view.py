"""Print events one by one; imported late, since it needs the schemas.

    TailedRecord ──► {"topic", "partition", "offset", "timestamp", "event" or "poison"}        jsonl: all fields
         └─► time  partition@offset  the columns of its event                       table

With several topics in one table each line names its fields, since no header fits them all.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from schemas.conventions import has_scores
from schemas.events import AdvantagedGroup
from schemas.serde import Poison
from streams.kafka.times import TailedRecord
from streams.kafka.topics import SHAPES
from streams.output import Column, Lines, json_line, moment


def json_of(tailed: TailedRecord) -> str:
    """Return a record as one line of JSON."""
    coordinates, event = tailed.record.at, tailed.event
    line: dict[str, Any] = {
        "topic": coordinates.topic,
        "partition": coordinates.partition,
        "offset": coordinates.offset,
        "timestamp": tailed.record.timestamp_ms,
    }
    if isinstance(event, Poison):
        line["poison"] = {"reason": event.reason, "error": event.error}
    else:
        line["event"] = event
    if isinstance(event, AdvantagedGroup) and not has_scores(event):
        line["event"] = asdict(event) | {"reward_mean": None, "reward_std": None}
    return json_line(line)


class EventLines:
    """A table of records that grows at its end."""

    def __init__(self, *, many_topics: bool) -> None:
        """`many_topics`: whether records of more than one topic will come."""
        self._many_topics = many_topics
        self._lines: Lines | None = None
        self._leading = (
            Column("time", lambda tailed: moment(tailed.record.timestamp_ms), 24),
            Column("at", lambda tailed: _coordinates(tailed, many_topics), 22 if many_topics else 8),
        )

    def add(self, tailed: TailedRecord) -> None:
        """Print one record."""
        if self._lines is None:
            self._lines = Lines(self._columns(tailed))
        if isinstance(tailed.event, Poison):
            self._lines.add(
                tailed, instead=f"POISON {tailed.event.reason}: {tailed.event.error}", after=len(self._leading)
            )
        else:
            self._lines.add(tailed)

    def _columns(self, tailed: TailedRecord) -> list[Column]:
        if self._many_topics:
            return [*self._leading, Column("event", _fields)]
        return [*self._leading, *(_of_event(column) for column in SHAPES[tailed.topic.label].columns)]


def _coordinates(tailed: TailedRecord, with_topic: bool) -> str:
    partition = tailed.record.at.partition
    label = f"{tailed.topic.label}[{partition}]" if with_topic else str(partition)
    return f"{label}@{tailed.record.at.offset}"


def _of_event(column: Column) -> Column:
    """Return a column of the record that shows a column of its event."""
    return column._replace(value=lambda tailed: column.of(tailed.event))


def _fields(tailed: TailedRecord) -> str:
    """Return the event's columns as `title value` pairs."""
    pairs = ((column.title, column.of(tailed.event)) for column in SHAPES[tailed.topic.label].columns)
    return "  ".join(f"{title} {text}" for title, text in pairs if text)
