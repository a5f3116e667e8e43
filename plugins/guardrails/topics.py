"""The topic of verdicts."""

from __future__ import annotations

from schemas import events
from streams.output import Column
from streams.topics.shape import TopicShape

# fmt: off
TOPICS = (
    TopicShape(
        label="guardrail-verdicts", event=events.GuardrailVerdict, key="agent_id", kept=False,
        written_by="the server, policy", read_by="people",
        tenant="starts_with(agent_id, {prefix})", reader=None, is_about="a verdict of a guardrail", audit="since",
        causes=(),
        line=lambda rule, verdict, mode, field_path: f"{rule}: {verdict} ({mode}), {field_path}",
        columns=(
            Column("agent", lambda e: e.agent_id, 16),
            Column("rule", lambda e: e.rule, 24),
            Column("verdict", lambda e: e.verdict, 7),
            Column("mode", lambda e: e.mode, 7),
            Column("field", lambda e: e.field_path, 24),
            Column("reason", lambda e: e.reason),
        ),
    ),
)
# fmt: on
