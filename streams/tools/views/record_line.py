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
from streams.kafka.topics import LABELS
from streams.output import moment
from streams.tools.query.views import identifier, name_of
from streams.tools.views.group_outcome import dropped_text
from streams.tools.views.log_view import LogSnapshot, Row
from streams.tools.views.rights import LogRights
from streams.tools.views.visible_text import cut, visible
from streams.topics.reasons import reason_text

LONGEST_TEXT = 160
"""Characters of a key, and of a summary."""
NEWEST = 50
FIELDS = {
    "tasks": ("purpose", "messages"),
    "responses": ("slot", "adapter_version", "error", "text"),
    "rewards": ("slot", "source", "value", "error"),
    "groups": ("purpose", "dropped_reason", "reward_mean", "group_size", "left_out"),
    "batches": ("sequence", "groups"),
    "adapters": ("version", "kind", "reason"),
    "dead-letters": ("stage", "reason", "source_topic"),
    "jobs": ("kind", "reason"),
    "turns": ("number", "agent_id", "error", "reply"),
    "requests": ("method", "resource", "status"),
    "trajectories": ("agent_id", "ending", "kind", "reason"),
    "curation": ("verdict", "actor", "rationale"),
    "datasets": ("dataset", "kind", "reason"),
    "triggers": ("rule", "kind", "reason"),
    "samples": ("queue", "kind", "partition", "key"),
    "queues": ("queue", "kind", "reason"),
    "prompts": ("prompt", "kind", "version", "reason"),
    "memory": ("namespace", "kind", "key"),
    "threads": ("thread_id", "kind", "error", "messages"),
    "tools": ("tool_id", "kind", "reason"),
    "training-calls": ("kind", "model", "seq_id", "refusal"),
    "training-results": ("kind", "model", "seq_id", "error"),
}
"""By the label of a topic: the fields that `summary` reads, which are columns of its view; others: `kind`."""


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
    """Return the topics whose records are shown, by label; logins and keys are seldom written.

    Raises RefusedError for a tenant's principal.
    """
    rights.check_whole("here is")
    return [label for label in LABELS if label != "access" and label not in rights.hidden]


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
    columns = ", ".join(map(identifier, ("_partition", "_offset", "_timestamp", "_key", *FIELDS.get(label, ("kind",)))))
    return f"SELECT {columns} FROM {identifier(name_of(label))} WHERE (_partition, _offset) IN ({positions})"  # noqa: S608


def summary(label: str, event: Any) -> str:
    """Return the content of a record in a few words: of its event, or of a row with the same FIELDS as attributes."""
    if isinstance(event, Poison):
        return f"no event: {event.reason}"
    match label:
        case "tasks":
            return f"{event.purpose} task: {event.messages[-1].content if event.messages else ''}"
        case "responses":
            return f"answer of slot {event.slot} by version {event.adapter_version}: {event.error or event.text}"
        case "rewards":
            value = event.error or "no opinion" if event.value is None else f"{event.value:.4g}"
            return f"{event.source} of slot {event.slot}: {value}"
        case "groups":
            return _group_summary(event)
        case "batches":
            return f"batch {event.sequence} of {event.groups} groups"
        case "adapters":
            return f"version {event.version} {event.kind.replace('_', ' ')}: {event.reason}"
        case "dead-letters":
            return f"{event.stage} could not use a record of {event.source_topic}: {reason_text(event.reason)}"
        case "jobs":
            return f"job {event.kind.replace('_', ' ')}: {event.reason}"
        case "turns":
            return f"turn {event.number} of {event.agent_id}: {event.error or event.reply.content}"
        case "trajectories":
            return f"run of {event.agent_id} {event.ending or event.kind}: {event.reason}"
        case "requests":
            return f"{event.method} {event.resource}: {event.status}"
        case "curation":
            return f"run {event.verdict.replace('_', ' ')} by {event.actor}: {event.rationale}"
        case "datasets":
            return f"data set {event.dataset} {event.kind}: {event.reason}"
        case "triggers":
            return f"rule {event.rule} {event.kind}: {event.reason}"
        case "samples":
            return f"sample {event.key or event.sample_id} {event.kind}: {event.partition} of {event.queue}"
        case "queues":
            return f"queue {event.queue} {event.kind}: {event.reason}"
        case "prompts":
            version = "" if event.version is None else f"@{event.version}"
            return f"prompt {event.prompt}{version} {event.kind}: {event.reason}"
        case "memory":
            return f"{event.key} {event.kind} in {event.namespace}"
        case "threads":
            text = event.error or (event.messages[-1].content if event.messages else "")
            return f"thread {event.thread_id} {event.kind.replace('_', ' ')}: {text}"
        case "tools":
            return f"tool {event.tool_id} {event.kind}: {event.reason}"
        case "training-calls":
            reason = "" if event.refusal is None else f": {event.refusal}"
            return f"{event.kind} {event.seq_id} of {event.model}{reason}"
        case "training-results":
            return f"{event.kind} {event.seq_id} of {event.model}: {event.error or 'done'}"
    return str(getattr(event, "kind", ""))


def _group_summary(group: Any) -> str:
    answers = group.group_size - len(group.left_out)
    if group.dropped_reason is not None:
        return f"group dropped: {dropped_text(group.dropped_reason)}"
    if group.purpose == "serve" or not answers:  # which may have no score, and then its mean says nothing
        return f"{group.purpose} group of {answers} answers"
    return f"{group.purpose} group of {answers} answers, mean reward {group.reward_mean:.3g}"


def _attributes(value: Any) -> Any:
    """Return a row's values by attribute, as its event has them."""
    if isinstance(value, dict):
        return SimpleNamespace(**{str(name): _attributes(item) for name, item in value.items()})
    return [_attributes(item) for item in value] if isinstance(value, list) else value


def _short(text: str) -> str:
    return visible(cut(text, LONGEST_TEXT)).replace("\n", " ")
