"""SQL over requests: what each key used."""

from __future__ import annotations

from streams.tools.query.sql_view import SqlView
from streams.topics.shape import ADMINS_ONLY

KEY_USE = """
WITH made AS (
    FROM whole.access WHERE kind = 'key_created'
    QUALIFY row_number() OVER (PARTITION BY subject_id ORDER BY _partition, _offset) = 1
), ended AS (
    SELECT subject_id, min(created_at) AS revoked_at FROM whole.access WHERE kind = 'key_revoked' GROUP BY subject_id
), once AS (
    FROM requests QUALIFY row_number() OVER (PARTITION BY event_id ORDER BY _partition, _offset) = 1
)
SELECT r.subject_id AS key_id, any_value(k.name) AS name, any_value(r.role) AS role, any_value(r.tenant) AS tenant,
    count(*) AS requests, count(*) FILTER (NOT r.allowed) AS refused, count(*) FILTER (r.status >= 500) AS failed,
    CAST(coalesce(sum(r.prompt_tokens), 0) AS BIGINT) AS prompt_tokens,
    CAST(coalesce(sum(r.completion_tokens), 0) AS BIGINT) AS completion_tokens,
    min(r.created_at) AS first_at, max(r.created_at) AS last_at, any_value(e.revoked_at) AS revoked_at
FROM once AS r LEFT JOIN made AS k USING (subject_id) LEFT JOIN ended AS e USING (subject_id) GROUP BY r.subject_id
"""

VIEWS = (
    SqlView(
        "key_use",
        "requests",
        "one row per key: what it asked, was refused, and used",
        ADMINS_ONLY,
        KEY_USE,
        ("access",),
    ),
)  # fmt: skip
