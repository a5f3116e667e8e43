"""The topic of registered agents."""

from __future__ import annotations

from schemas import events
from streams.output import Column
from streams.topics.shape import NO_TENANT, TopicShape

# fmt: off
TOPICS = (
    TopicShape(
        label="agents", event=events.AgentEvent, key="agent_id", kept=True,
        written_by="the server, `agents run`", read_by="people",
        tenant=NO_TENANT, reader=None, is_about="about an agent", audit="place", causes=(),
        line=lambda kind: kind,
        columns=(
            Column("agent", lambda e: e.agent_id, 16),
            Column("kind", lambda e: e.kind, 10),
            Column("type", lambda e: e.type, 12),
            Column("model", lambda e: e.model_id, 12),
            Column("tools", lambda e: [tool.name for tool in e.tools]),
        ),
    ),
)
# fmt: on
