"""One line for each record: its position, time and key, and its content in a few words.

newest records of all topics ──► rows, with CONTENT         a record as it is written ──► RecordLine, with summary()
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from schemas.events import (
    AdapterEvent,
    AdvantagedGroup,
    Batch,
    DeadLetter,
    Event,
    JobEvent,
    RequestEvent,
    Response,
    Reward,
    Task,
    TrajectoryEvent,
    Turn,
)
from schemas.serde import Poison
from streams.kafka.record import Record
from streams.kafka.topics import LABELS
from streams.output import moment
from streams.tools.query.views import identifier, name_of
from streams.tools.views.log_view import LogSnapshot, Row
from streams.tools.views.rights import LogRights
from streams.tools.views.visible_text import cut, visible

LONGEST_TEXT = 160
"""Characters of a key, and of a summary."""
NEWEST = 50
CONTENT = {
    "tasks": "purpose || ': ' || messages[-1].content",
    "responses": "format('slot {} by version {}: {}', slot, adapter_version, coalesce(nullif(error, ''), text))",
    "rewards": "format('slot {}, {}: {}', slot, source, coalesce(format('{:.4g}', value), error))",
    "groups": "coalesce(dropped_reason, format('mean reward {:.3g} over {} answers', reward_mean, len(members)))",
    "batches": "format('batch {} of {} groups', sequence, groups)",
    "adapters": "format('version {} {}: {}', version, replace(kind, '_', ' '), reason)",
    "dead-letters": "stage || ': ' || reason",
    "jobs": "replace(kind, '_', ' ') || ': ' || reason",
    "turns": "format('turn {} of {}: {}', number, agent_id, coalesce(nullif(error, ''), reply.content))",
    "requests": "format('{} {}: {}', method, resource, status)",
    "trajectories": "format('run of {} {}: {}', agent_id, coalesce(ending, kind), reason)",
}
"""The content of a record in SQL, by the label of its topic: what summary() says of its event. Others: `kind`."""


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
            key=visible(cut((record.key or b"").decode("utf-8", "replace"), LONGEST_TEXT)),
            summary=visible(cut(summary(event), LONGEST_TEXT)).replace("\n", " "),
        )


@dataclass(frozen=True)
class NewestRecords:
    """The newest records of all topics."""

    newest: list[Row]
    follows: bool
    """Whether more may be written."""


def newest_records(log: LogSnapshot) -> NewestRecords:
    """Return the newest records. Raises RefusedError for a tenant's principal."""
    newest = log.rows(newest_sql(live_topics(log.rights)))
    content = {
        (label, row["_partition"], row["_offset"]): row["content"]
        for label in {row["topic"] for row in newest}
        for row in log.rows(_content_sql(label, [row for row in newest if row["topic"] == label]))
    }
    for row in newest:
        text = content.get((row["topic"], row["_partition"], row["_offset"])) or ""
        row["content"] = visible(cut(text, LONGEST_TEXT)).replace("\n", " ")
    return NewestRecords(newest, log.view.source != "archive")


def live_topics(rights: LogRights) -> list[str]:
    """Return the topics whose records are shown, by label; logins and keys are seldom written.

    Raises RefusedError for a tenant's principal.
    """
    rights.check_whole("here is")
    return [label for label in LABELS if label != "access" and label not in rights.hidden]


def newest_sql(topics: Sequence[str]) -> str:
    """Return the statement of the newest records of some topics."""
    records = " UNION ALL ".join(
        f"SELECT '{label}' AS topic, _partition, _offset, _timestamp, _key FROM {identifier(name_of(label))}"  # noqa: S608
        for label in topics
    )
    return f"SELECT * FROM ({records}) ORDER BY _timestamp DESC, topic, _offset DESC LIMIT {NEWEST}"  # noqa: S608


def _content_sql(label: str, rows: Sequence[Row]) -> str:
    """Return the statement of the content of some records of a topic; a large column is read for these alone."""
    positions = ", ".join(f"({row['_partition']}, {row['_offset']})" for row in rows)
    return (
        f"SELECT _partition, _offset, {CONTENT.get(label, 'kind')} AS content FROM {identifier(name_of(label))} "  # noqa: S608
        f"WHERE (_partition, _offset) IN ({positions})"
    )


def summary(event: Event | Poison) -> str:
    """Return the content of a record in a few words."""
    match event:
        case Poison():
            return f"no event: {event.reason}"
        case Task():
            return f"{event.purpose}: {event.messages[-1].content}"
        case Response():
            return f"slot {event.slot} by version {event.adapter_version}: {event.error or event.text}"
        case Reward():
            value = event.error if event.value is None else f"{event.value:.4g}"
            return f"slot {event.slot}, {event.source}: {value}"
        case AdvantagedGroup():
            return event.dropped_reason or f"mean reward {event.reward_mean:.3g} over {len(event.responses)} answers"
        case Batch():
            return f"batch {event.sequence} of {event.groups} groups"
        case AdapterEvent():
            return f"version {event.version} {event.kind.replace('_', ' ')}: {event.reason}"
        case DeadLetter():
            return f"{event.stage}: {event.reason}"
        case JobEvent():
            return f"{event.kind.replace('_', ' ')}: {event.reason}"
        case Turn():
            return f"turn {event.number} of {event.agent_id}: {event.error or event.reply.content}"
        case TrajectoryEvent():
            return f"run of {event.agent_id} {event.ending or event.kind}: {event.reason}"
        case RequestEvent():
            return f"{event.method} {event.resource}: {event.status}"
        case _:
            return str(getattr(event, "kind", ""))
