"""Dead letters: what could not be used, why, and what was decided about each.

dead_letters ──► LetterList: the newest first, with the newest decision about their source
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace

from streams.tools.views.log_view import LogSnapshot, Row, RowPage
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


@dataclass(frozen=True)
class LetterList:
    """Dead letters, each with its `content` as text, and how many of each reason."""

    counts: list[Row]
    letters: RowPage


def list_letters(log: LogSnapshot, first: int) -> LetterList:
    """Return a page of the list of dead letters."""
    letters = log.page(LETTERS_SQL, first)
    rows = [row | {"content": payload_text(row)} for row in letters.rows]
    return LetterList(log.rows(COUNTS_SQL), replace(letters, rows=rows))


def payload_text(letter: Row) -> str:
    """Return a letter's payload as text, as far as it is text."""
    if letter["payload"] is None:
        size = letter["payload_bytes"]
        return "" if size is None else f"({size:,} bytes, not kept in the letter)"
    try:
        payload = base64.b64decode(letter["payload"], validate=True)
    except ValueError:
        return str(letter["payload"])
    return cut(payload.decode("utf-8", "replace"), PAYLOAD_SHOWN)
