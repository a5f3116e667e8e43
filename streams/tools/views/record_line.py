"""One line for each record: its position, time and key, and its content in a few words.

newest records of all topics ──► rows          a record as it is written ──► RecordLine
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
    topics = live_topics(log.rights)
    return NewestRecords(log.rows(newest_sql(topics)), log.view.source != "archive")


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
        case _:
            return str(getattr(event, "kind", ""))
