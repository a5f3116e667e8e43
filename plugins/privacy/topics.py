"""The topic of erasures."""

from __future__ import annotations

from schemas import events
from streams.output import Column, moment
from streams.topics.shape import TopicShape

# fmt: off
TOPICS = (
    TopicShape(
        label="privacy", event=events.PrivacyEvent, key="person", kept=True,
        written_by="the server, `privacy`", read_by="every process that has keys",
        tenant="starts_with(person, {prefix})", reader=None, is_about="about a person", audit="whole", causes=(),
        line=lambda person, kind, reason: f"{person} {kind}: {reason}",
        columns=(
            Column("person", lambda e: e.person, 34),
            Column("kind", lambda e: e.kind, 9),
            Column("due", lambda e: "" if e.due_at is None else moment(e.due_at), 20),
            Column("by", lambda e: e.actor, 16),
            Column("reason", lambda e: e.reason),
        ),
    ),
)
# fmt: on
