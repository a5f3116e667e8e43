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
from streams.output import Column, Lines, cell, json_line, moment


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
        return [*self._leading, *(_of_event(column) for column in EVENT_COLUMNS[tailed.topic.event.__name__])]


def _coordinates(tailed: TailedRecord, with_topic: bool) -> str:
    partition = tailed.record.at.partition
    label = f"{tailed.topic.label}[{partition}]" if with_topic else str(partition)
    return f"{label}@{tailed.record.at.offset}"


def _of_event(column: Column) -> Column:
    """Return a column of the record that shows a column of its event."""
    return column._replace(value=lambda tailed: column.of(tailed.event))


def _fields(tailed: TailedRecord) -> str:
    """Return the event's columns as `title value` pairs."""
    pairs = ((column.title, column.of(tailed.event)) for column in EVENT_COLUMNS[tailed.topic.event.__name__])
    return "  ".join(f"{title} {text}" for title, text in pairs if text)


# --- the columns of each event ----------------------------------------------------------------------------------------


def _short(identity: str | None) -> str:
    return (identity or "")[:8]


EVENT_COLUMNS: dict[str, tuple[Column, ...]] = {
    "Task": (
        Column("task", lambda e: _short(e.task_id), 8),
        Column("purpose", lambda e: e.purpose, 7),
        Column("policy", lambda e: e.policy, 10),
        Column("slots", lambda e: e.group_size, 5, right=True),
        Column("sources", lambda e: [source.name for source in e.reward_sources], 10),
        Column("asks", lambda e: e.messages[-1].content),
    ),
    "Response": (
        Column("task", lambda e: _short(e.task_id), 8),
        Column("slot", lambda e: e.slot, 4, right=True),
        Column("version", lambda e: e.adapter_version, 7, right=True),
        Column("tokens", lambda e: e.completion_tokens, 6, right=True),
        Column("finish", lambda e: e.finish_reason, 6),
        Column("text", lambda e: e.text if e.error is None else e.error),
    ),
    "Reward": (
        Column("task", lambda e: _short(e.task_id), 8),
        Column("slot", lambda e: e.slot, 4, right=True),
        Column("source", lambda e: e.source, 16),
        Column("value", lambda e: e.value, 8, right=True),
        Column("why", lambda e: e.error or e.rationale or e.components),
    ),
    "GroupControl": (
        Column("task", lambda e: _short(e.task_id), 8),
        Column("kind", lambda e: e.kind, 6),
        Column("reason", lambda e: e.reason),
    ),
    "AdvantagedGroup": (
        Column("task", lambda e: _short(e.task_id), 8),
        Column("purpose", lambda e: e.purpose, 7),
        Column("version", lambda e: e.adapter_version, 7, right=True),
        Column("scored", lambda e: f"{len(e.responses)}/{e.group_size}", 7, right=True),
        Column("mean", lambda e: e.reward_mean if has_scores(e) else None, 7, right=True),
        Column("std", lambda e: e.reward_std if has_scores(e) else None, 7, right=True),
        Column("fate", lambda e: e.dropped_reason or ("complete" if e.complete else "partial")),
    ),
    "Batch": (
        Column("policy", lambda e: e.policy, 10),
        Column("sequence", lambda e: e.sequence, 8, right=True),
        Column("groups", lambda e: e.groups, 6, right=True),
        Column("responses", lambda e: e.responses, 9, right=True),
        Column("tokens", lambda e: e.loss_tokens, 7, right=True),
        Column("dropped", lambda e: len(e.dropped), 7, right=True),
        Column("closed by", lambda e: e.closed_by),
    ),
    "AdapterEvent": (
        Column("policy", lambda e: e.policy, 10),
        Column("version", lambda e: e.version, 7, right=True),
        Column("kind", lambda e: e.kind, 15),
        Column("actor", lambda e: e.actor, 10),
        Column("reason", lambda e: cell(e.metrics) if e.kind == "evaluated" and e.metrics else e.reason),
    ),
    "DeadLetter": (
        Column("stage", lambda e: e.stage, 10),
        Column("reason", lambda e: e.reason, 16),
        Column("error", lambda e: e.error),
    ),
    "ExperimentEvent": (
        Column("experiment", lambda e: e.experiment, 16),
        Column("kind", lambda e: e.kind, 8),
        Column("policy", lambda e: e.policy, 10),
        Column("counts", lambda e: e.counts),
    ),
    "Turn": (
        Column("trajectory", lambda e: _short(e.trajectory_id), 10),
        Column("agent", lambda e: e.agent_id, 10),
        Column("turn", lambda e: e.number, 4, right=True),
        Column("what", lambda e: e.continuity, 9),
        Column("version", lambda e: e.adapter_version, 7, right=True),
        Column("tokens", lambda e: len(e.completion_token_ids), 6, right=True),
        Column("finish", lambda e: e.finish_reason, 10),
        Column("answer", lambda e: e.error or e.reply.content or [call.name for call in e.reply.tool_calls]),
    ),
    "TrajectoryEvent": (
        Column("trajectory", lambda e: _short(e.trajectory_id), 10),
        Column("agent", lambda e: e.agent_id, 10),
        Column("kind", lambda e: e.kind, 7),
        Column("ending", lambda e: e.ending, 9),
        Column("turns", lambda e: e.turns, 5, right=True),
        Column("reason", lambda e: e.reason),
    ),
    "AgentEvent": (
        Column("agent", lambda e: e.agent_id, 16),
        Column("kind", lambda e: e.kind, 10),
        Column("type", lambda e: e.type, 12),
        Column("model", lambda e: e.model_id, 12),
        Column("tools", lambda e: [tool.name for tool in e.tools]),
    ),
    "JobEvent": (
        Column("job", lambda e: _short(e.job_id), 10),
        Column("kind", lambda e: e.kind, 15),
        Column("policy", lambda e: e.policy, 10),
        Column("iteration", lambda e: e.iteration, 9, right=True),
        Column("version", lambda e: e.version, 7, right=True),
        Column("reason", lambda e: e.reason),
    ),
    "AccessEvent": (
        Column("of", lambda e: e.subject_id, 16),
        Column("kind", lambda e: e.kind, 19),
        Column("role", lambda e: e.role or ", ".join(e.roles) or None, 9),
        Column("tenant", lambda e: e.tenant, 12),
        Column("name", lambda e: e.name, 16),
        Column("actor", lambda e: e.actor),
    ),
    "RequestEvent": (
        Column("key", lambda e: e.subject_id, 16),
        Column("tenant", lambda e: e.tenant, 10),
        Column("action", lambda e: e.action, 13),
        Column("status", lambda e: e.status, 6, right=True),
        Column("ms", lambda e: e.duration_ms, 6, right=True),
        Column("resource", lambda e: f"{e.method} {e.resource}", 40),
        Column("why not", lambda e: "" if e.allowed else e.reason),
    ),
    "CurationEvent": (
        Column("run", lambda e: _short(e.answer_id), 10),
        Column("policy", lambda e: e.policy, 10),
        Column("verdict", lambda e: e.verdict, 11),
        Column("by", lambda e: e.labeller, 6),
        Column("actor", lambda e: e.actor, 10),
        Column("rationale", lambda e: e.rationale),
    ),
    "DatasetEvent": (
        Column("dataset", lambda e: e.dataset, 16),
        Column("kind", lambda e: e.kind, 9),
        Column("policy", lambda e: e.policy, 10),
        Column("rows", lambda e: e.counts),
        Column("reason", lambda e: e.reason),
    ),
    "TriggerEvent": (
        Column("rule", lambda e: e.rule, 16),
        Column("kind", lambda e: e.kind, 7),
        Column("signal", lambda e: e.signal, 10),
        Column("job", lambda e: _short(e.job_id or ""), 10),
        Column("reason", lambda e: e.reason),
    ),
    "SampleEvent": (
        Column("sample", lambda e: e.sample_id, 20),
        Column("kind", lambda e: e.kind, 7),
        Column("partition", lambda e: e.partition, 10),
        Column("key", lambda e: e.key or "", 12),
        Column("fields", lambda e: ", ".join(one.name for one in e.fields)),
    ),
    "QueueEvent": (
        Column("queue", lambda e: e.queue, 16),
        Column("kind", lambda e: e.kind, 8),
        Column("epoch", lambda e: e.epoch, 5),
        Column("samples", lambda e: e.samples, 7),
        Column("reason", lambda e: e.reason),
    ),
    "PromptEvent": (
        Column("prompt", lambda e: e.prompt, 16),
        Column("kind", lambda e: e.kind, 9),
        Column("version", lambda e: e.version, 7),
        Column("alias", lambda e: e.alias, 12),
        Column("reason", lambda e: e.reason),
    ),
    "MemoryEvent": (
        Column("namespace", lambda e: e.namespace, 20),
        Column("kind", lambda e: e.kind, 7),
        Column("key", lambda e: e.key, 16),
        Column("actor", lambda e: e.actor, 10),
        Column("value", lambda e: e.value or ""),
    ),
    "ThreadEvent": (
        Column("thread", lambda e: e.thread_id, 12),
        Column("kind", lambda e: e.kind, 13),
        Column("run", lambda e: _short(e.run_id or ""), 10),
        Column("agent", lambda e: e.agent_id, 12),
        Column("actor", lambda e: e.actor, 10),
        Column("message", lambda e: e.error or " · ".join(message.content for message in e.messages)),
    ),
    "ToolEvent": (
        Column("tool", lambda e: e.tool_id, 16),
        Column("kind", lambda e: e.kind, 8),
        Column("tools", lambda e: len(e.tools) or "", 5),
        Column("endpoint", lambda e: e.endpoint, 32),
        Column("reason", lambda e: e.reason),
    ),
    "TrainingCall": (
        Column("call", lambda e: _short(e.call_id), 10),
        Column("model", lambda e: e.model, 24),
        Column("seq", lambda e: e.seq_id, 5, right=True),
        Column("kind", lambda e: e.kind, 24),
        Column("tokens", lambda e: e.tokens, 7, right=True),
        Column("path", lambda e: e.refusal or e.path),
    ),
    "TrainingResult": (
        Column("call", lambda e: _short(e.call_id), 10),
        Column("model", lambda e: e.model, 24),
        Column("seq", lambda e: e.seq_id, 5, right=True),
        Column("kind", lambda e: e.kind, 24),
        Column("seconds", lambda e: f"{e.seconds:.2f}", 7, right=True),
        Column("path", lambda e: e.error or e.path),
    ),
}
"""The columns of an event in a table, by its type."""
