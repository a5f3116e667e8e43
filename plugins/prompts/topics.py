"""The topic of prompts: their versions, and the version that each alias means."""

from __future__ import annotations

from schemas import events
from streams.output import Column
from streams.topics.shape import TopicShape

# fmt: off
TOPICS = (
    TopicShape(
        label="prompts", event=events.PromptEvent, key="prompt", kept=True,
        written_by="`improve prompts`, people", read_by="the server, `tasks`, `improve prompts`, people",
        tenant="starts_with(prompt, {prefix})", reader=None, is_about="about a prompt", audit="whole", causes=(),
        line=lambda prompt, kind, version, reason: (
            f"prompt {prompt}{'' if version is None else f'@{version}'} {kind}: {reason}"
        ),
        columns=(
            Column("prompt", lambda e: e.prompt, 16),
            Column("kind", lambda e: e.kind, 9),
            Column("version", lambda e: e.version, 7),
            Column("alias", lambda e: e.alias, 12),
            Column("reason", lambda e: e.reason),
        ),
    ),
)
# fmt: on
