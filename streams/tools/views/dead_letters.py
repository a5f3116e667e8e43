"""Dead letters: what could not be used, why, and what was decided about each.

dead_letters ──► letters, newest first, with the newest decision about their source
"""

from __future__ import annotations

import base64
from typing import Any

from streams.tools.views.log_view import Look, Row
from streams.tools.views.visible_text import cut

PAYLOAD_SHOWN = 2000
"""Characters of a payload."""

LETTERS_SQL = """
WITH decided AS (
    SELECT source_topic, source_partition, source_offset, reason AS decision, error AS decided_for
    FROM whole.dead_letters WHERE stage = 'dlq'
    QUALIFY row_number() OVER (PARTITION BY source_topic, source_partition, source_offset
        ORDER BY _timestamp DESC, _offset DESC) = 1
)
SELECT l.dead_letter_id, l.stage, l.reason, l.error, l.source_topic, l.source_partition, l.source_offset, l.payload,
    l.payload_bytes, coalesce(d.decision, 'open') AS state, d.decided_for, l._partition, l._offset, l._timestamp
FROM dead_letters AS l LEFT JOIN decided AS d USING (source_topic, source_partition, source_offset)
WHERE l.stage <> 'dlq' ORDER BY l._timestamp DESC, l._partition, l._offset DESC
"""
COUNTS_SQL = f"SELECT stage, reason, state, count(*) AS letters FROM ({LETTERS_SQL}) GROUP BY ALL ORDER BY letters DESC"  # noqa: S608


def data(look: Look, rows: int, first: int) -> dict[str, Any]:
    """Return what the page shows."""
    found = look.rows(f"{LETTERS_SQL} LIMIT {rows + 1} OFFSET {first}")
    return {
        "counts": look.rows(COUNTS_SQL),
        "letters": [row | {"content": content(row)} for row in found[:rows]],
        "first": first,
        "more": first + rows if len(found) > rows else None,
        "at": look.at,
    }


def content(row: Row) -> str:
    """Return a letter's payload as text, as far as it is text."""
    if row["payload"] is None:
        return "" if row["payload_bytes"] is None else f"({row['payload_bytes']:,} bytes, not kept in the letter)"
    try:
        data = base64.b64decode(row["payload"], validate=True)
    except ValueError:
        return str(row["payload"])
    return cut(data.decode("utf-8", "replace"), PAYLOAD_SHOWN)
