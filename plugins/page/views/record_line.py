"""One line for each record: its position, time and key, and its content in a few words.

    newest records of all topics ──► rows of their views ─┐
    a record as it is written ──────► its event ──────────┴──► summary ──► RecordLine

A row of a view has the names of its event's fields, so one function summarises both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from schemas.events import Event
from schemas.serde import Poison
from streams.kafka.record import Record
from streams.kafka.topics import SHAPES
from streams.output import moment
from streams.tools.query.views import identifier, name_of
from streams.tools.views.log_view import LogSnapshot, Row
from streams.tools.views.rights import LogRights
from streams.tools.views.visible_text import cut, visible

LONGEST_TEXT = 160
"""Characters of a key, and of a summary."""
NEWEST = 50


@dataclass(frozen=True, slots=True)
class RecordLine:
    """One record in a line; texts have no character that steers a terminal."""

    topic: str
    """Its label."""
    partition: int
    offset: int
    time: str
    key: str
    summary: str

    @classmethod
    def of(cls, label: str, record: Record, event: Event | Poison) -> RecordLine:
        """Return the line of a record."""
        return cls(
            topic=label,
            partition=record.at.partition,
            offset=record.at.offset,
            time=moment(record.timestamp_ms),
            key=_short((record.key or b"").decode("utf-8", "replace")),
            summary=_short(summary(label, event)),
        )

    @classmethod
    def of_row(cls, label: str, row: Row) -> RecordLine:
        """Return the line of a row of a topic's view."""
        return cls(
            topic=label,
            partition=row["_partition"],
            offset=row["_offset"],
            time=row["_timestamp"],
            key=_short(row["_key"] or ""),
            summary=_short(summary(label, _attributes(row))),
        )


@dataclass(frozen=True)
class NewestRecords:
    """The newest records of all topics."""

    newest: list[RecordLine]
    follows: bool
    """Whether more may be written."""


def newest_records(log: LogSnapshot) -> NewestRecords:
    """Return the newest records. Raises RefusedError for a tenant's principal."""
    positions = log.rows(newest_sql(live_topics(log.rights)))
    lines = {
        (label, row["_partition"], row["_offset"]): RecordLine.of_row(label, row)
        for label in {row["topic"] for row in positions}
        for row in log.rows(_fields_sql(label, [row for row in positions if row["topic"] == label]))
    }
    newest = [lines[row["topic"], row["_partition"], row["_offset"]] for row in positions]
    return NewestRecords(newest, log.view.source != "archive")


def live_topics(rights: LogRights) -> list[str]:
    """Return the topics to show, by label; logins and keys are seldom written.

    Raises RefusedError for a tenant's principal.
    """
    rights.check_whole("here is")
    return [label for label in SHAPES if label != "access" and label not in rights.hidden]


def newest_sql(topics: Sequence[str]) -> str:
    """Return the statement of the positions of the newest records of some topics."""
    records = " UNION ALL ".join(
        f"SELECT '{label}' AS topic, _partition, _offset, _timestamp FROM {identifier(name_of(label))}"  # noqa: S608
        for label in topics
    )
    return f"SELECT * FROM ({records}) ORDER BY _timestamp DESC, topic, _offset DESC LIMIT {NEWEST}"  # noqa: S608


def _fields_sql(label: str, rows: Sequence[Row]) -> str:
    """Return the statement of the fields of some records of a topic; a large column is read for these alone."""
    positions = ", ".join(f"({row['_partition']}, {row['_offset']})" for row in rows)
    columns = ", ".join(map(identifier, ("_partition", "_offset", "_timestamp", "_key", *SHAPES[label].fields)))
    return f"SELECT {columns} FROM {identifier(name_of(label))} WHERE (_partition, _offset) IN ({positions})"  # noqa: S608


def summary(label: str, event: Any) -> str:
    """Return the content of a record in a few words: of its event, or of a row with the same fields as attributes."""
    if isinstance(event, Poison):
        return f"no event: {event.reason}"
    shape = SHAPES[label]
    return shape.line(*(getattr(event, name) for name in shape.fields))


def _attributes(value: Any) -> Any:
    """Return a row's values by attribute, as its event has them."""
    if isinstance(value, dict):
        return SimpleNamespace(**{str(name): _attributes(item) for name, item in value.items()})
    return [_attributes(item) for item in value] if isinstance(value, list) else value


def _short(text: str) -> str:
    return visible(cut(text, LONGEST_TEXT)).replace("\n", " ")
