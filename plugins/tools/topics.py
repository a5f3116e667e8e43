"""The topic of the registry of tools."""

from __future__ import annotations

from schemas import events
from streams.output import Column
from streams.topics.shape import TopicShape

# fmt: off
TOPICS = (
    TopicShape(
        label="tools", event=events.ToolEvent, key="tool_id", kept=True,
        written_by="the server, `agents tools`, people", read_by="the server, `tasks`, people",
        tenant="starts_with(tool_id, {prefix})", reader=None, is_about="about a tool", audit="whole", causes=(),
        line=lambda tool_id, kind, reason: f"tool {tool_id} {kind}: {reason}",
        columns=(
            Column("tool", lambda e: e.tool_id, 16),
            Column("kind", lambda e: e.kind, 8),
            Column("tools", lambda e: len(e.tools) or "", 5),
            Column("endpoint", lambda e: e.endpoint, 32),
            Column("reason", lambda e: e.reason),
        ),
    ),
)
# fmt: on
