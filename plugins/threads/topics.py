"""The topics of threads: conversations with agents, run by run, and what agents remember."""

from __future__ import annotations

from schemas import events
from streams.output import Column
from streams.topics.agent_topics import SERVER
from streams.topics.shape import TopicShape, short, words

# fmt: off
TOPICS = (
    TopicShape(
        label="memory", event=events.MemoryEvent, key="namespace", kept=True,
        written_by=SERVER, read_by="the server, people",
        tenant="starts_with(namespace, {prefix})", reader=None, is_about="about an item of the store", audit="whole",
        causes=("access", "threads", "turns"),
        line=lambda namespace, kind, key: f"{key} {kind} in {namespace}",
        columns=(
            Column("namespace", lambda e: e.namespace, 20),
            Column("kind", lambda e: e.kind, 7),
            Column("key", lambda e: e.key, 16),
            Column("actor", lambda e: e.actor, 10),
            Column("value", lambda e: e.error or e.value or ""),
        ),
    ),
    TopicShape(
        label="threads", event=events.ThreadEvent, key="thread_id", kept=True,
        written_by=SERVER, read_by="the server, people",
        tenant="(starts_with(thread_id, {prefix}) OR starts_with(agent_id, {prefix}))", reader=None,
        is_about="about a thread", audit="whole", causes=("turns", "trajectories", "tasks", "access"),
        line=lambda thread_id, kind, error, messages: (
            f"thread {thread_id} {words(kind)}: {error or (messages[-1].content if messages else '')}"
        ),
        columns=(
            Column("thread", lambda e: e.thread_id, 12),
            Column("kind", lambda e: e.kind, 13),
            Column("run", lambda e: short(e.run_id), 10),
            Column("agent", lambda e: e.agent_id, 12),
            Column("actor", lambda e: e.actor, 10),
            Column("message", lambda e: e.error or " · ".join(message.content for message in e.messages)),
        ),
    ),
)
# fmt: on
