"""The topic of documents that are searched."""

from __future__ import annotations

from schemas import events
from streams.output import Column
from streams.topics.shape import TopicShape

# fmt: off
TOPICS = (
    TopicShape(
        label="documents", event=events.DocumentEvent, key="document_id", kept=True,
        written_by="the server, `documents`, people", read_by="the server, `documents`, `search`",
        tenant="starts_with(document_id, {prefix})", reader=None, is_about="about a document", audit="whole", causes=(),
        line=lambda document_id, kind, reason: f"document {document_id} {kind}: {reason}",
        columns=(
            Column("document", lambda e: e.document_id, 32),
            Column("kind", lambda e: e.kind, 8),
            Column("bytes", lambda e: "" if e.text is None else len(e.text.encode()), 7, right=True),
            Column("source", lambda e: e.source, 32),
            Column("reason", lambda e: e.reason),
        ),
    ),
)
# fmt: on
