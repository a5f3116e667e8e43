"""One complete record of the log.

TOPIC, partition, offset ──► the row of its view ──► fields, what is nested as JSON
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from streams.errors import NotFoundError
from streams.kafka.topics import topics
from streams.tools.query.views import identifier, name_of
from streams.tools.views.log_view import LogSnapshot


class RecordField(NamedTuple):
    """A field as text."""

    name: str
    text: str
    is_text: bool
    """Whether the value itself is a string."""


@dataclass(frozen=True)
class LogRecord:
    """A record and its neighbours in the partition, which may be undecodable."""

    topic: str
    label: str
    partition: int
    offset: int
    time: str
    key: str | None
    fields: list[RecordField]
    previous: int | None
    following: int | None


def find_record(log: LogSnapshot, label: str, partition: int, offset: int) -> LogRecord:
    """Return a record. Raises NotFoundError if it does not exist, or is not an event."""
    labels = topics(log.view.settings.topics)
    if label not in labels:
        raise NotFoundError(f"there is no topic {label[:80]!r}; there are {', '.join(labels)}")
    row = log.first(_record_sql(label, partition, offset)) if max(partition, offset) < 2**63 else None
    topic = labels[label].name
    if row is None:
        bad = next((bad for bad in log.undecodable(label) if bad.at == (topic, partition, offset)), None)
        if bad is not None:
            raise NotFoundError(f"{bad.at} cannot be read: {bad.reason}: {bad.error}")
        raise NotFoundError(f"{topic}[{partition}]@{offset}: there is no such record in what this page reads")
    others = _other_offsets(log, label, topic, partition, offset)
    fields = list_fields({name: value for name, value in row.items() if not name.startswith("_")})
    return LogRecord(
        topic,
        label,
        partition,
        offset,
        row["_timestamp"],
        row["_key"],
        fields,
        previous=max((other for other in others if other < offset), default=None),
        following=min((other for other in others if other > offset), default=None),
    )


def _record_sql(label: str, partition: int, offset: int) -> str:
    return f"SELECT * FROM {identifier(name_of(label))} WHERE _partition = {partition} AND _offset = {offset}"  # noqa: S608


def _other_offsets(log: LogSnapshot, label: str, topic: str, partition: int, offset: int) -> list[int]:
    """Return the offsets next to one in its partition, and those of every undecodable record there."""
    (row,) = log.rows(
        f"SELECT max(_offset) FILTER (_offset < {offset}) AS previous, min(_offset) FILTER (_offset > {offset}) "  # noqa: S608
        f"AS following FROM {identifier(name_of(label))} WHERE _partition = {partition}"
    )
    bad = [bad.at.offset for bad in log.undecodable(label) if (bad.at.topic, bad.at.partition) == (topic, partition)]
    return [other for other in (row["previous"], row["following"], *bad) if other is not None]


def list_fields(values: Mapping[str, Any]) -> list[RecordField]:
    """Return values as text, by name."""
    return [RecordField(name, as_json(value), isinstance(value, str)) for name, value in values.items()]


def as_json(value: Any) -> str:
    """Return a value as text: strings as they are, the rest as JSON with lists of numbers on one line.

    >>> print(as_json({"a": [1, 2], "b": "x"}))
    {
      "a": [1, 2],
      "b": "x"
    }
    """
    return value if isinstance(value, str) else _json(value, "")


def _json(value: Any, indent: str) -> str:
    inner = indent + "  "
    if isinstance(value, dict) and value:
        parts = [
            f"{inner}{json.dumps(str(name), ensure_ascii=False)}: {_json(item, inner)}" for name, item in value.items()
        ]
        return "{\n" + ",\n".join(parts) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return "[\n" + ",\n".join(inner + _json(item, inner) for item in value) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False, default=str)
