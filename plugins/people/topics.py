"""The topics of people: what is decided about keys, users, logins and tenants; and what each request was."""

from __future__ import annotations

from schemas import events
from streams.output import Column
from streams.topics.shape import ADMINS_ONLY, TopicShape

# fmt: off
TOPICS = (
    TopicShape(
        label="access", event=events.AccessEvent, key="subject_id", kept=True,
        written_by="people, the server", read_by="people, the server",
        tenant=ADMINS_ONLY, reader=None, is_about="about a key, a user, a login or a tenant", audit="place", causes=(),
        line=lambda kind: kind,
        columns=(
            Column("of", lambda e: e.subject_id, 16),
            Column("kind", lambda e: e.kind, 19),
            Column("role", lambda e: e.role or ", ".join(e.roles) or None, 9),
            Column("tenant", lambda e: e.tenant, 12),
            Column("name", lambda e: e.name, 16),
            Column("actor", lambda e: e.actor),
        ),
    ),
    TopicShape(
        label="requests", event=events.RequestEvent, key="subject_id", kept=False,
        written_by="the server", read_by="people",
        tenant=ADMINS_ONLY, reader=None, is_about="a request", audit="nothing", causes=(),
        line=lambda method, resource, status: f"{method} {resource}: {status}",
        columns=(
            Column("key", lambda e: e.subject_id, 16),
            Column("tenant", lambda e: e.tenant, 10),
            Column("action", lambda e: e.action, 13),
            Column("status", lambda e: e.status, 6, right=True),
            Column("ms", lambda e: e.duration_ms, 6, right=True),
            Column("resource", lambda e: f"{e.method} {e.resource}", 40),
            Column("why not", lambda e: "" if e.allowed else e.reason),
        ),
    ),
)
# fmt: on
