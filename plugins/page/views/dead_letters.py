"""Dead letters for people: the unusable record, the reason, what to do, and the decision.

dead_letters ──► the newest first, with the newest decision about their source ──► LetterList
each payload ──► its event in a few words, or its text; the task that it is about
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace

from plugins.page.views.record_line import summary
from schemas.serde import Poison, decode
from streams.kafka.topics import KEYED_BY_TASK, Topic, topics
from streams.tools.views.log_view import LogSnapshot, Row, RowPage
from streams.tools.views.visible_text import cut
from streams.topics.reasons import reason_text, way_out

PAYLOAD_SHOWN = 2000
"""Characters of a payload."""

LETTERS_SQL = """
WITH decided AS (
    SELECT source_topic, source_partition, source_offset, reason AS decision, error AS decided_for
    FROM whole.dead_letters WHERE stage = 'dlq'
    QUALIFY row_number() OVER (PARTITION BY source_topic, source_partition, source_offset
        ORDER BY _timestamp DESC, _offset DESC) = 1
)
SELECT l.dead_letter_id, l.stage, l.reason, l.error, l.source_topic, l.source_partition, l.source_offset, l.key,
    l.payload, l.payload_bytes, coalesce(d.decision, 'open') AS state, d.decided_for, l._partition, l._offset,
    l._timestamp
FROM dead_letters AS l LEFT JOIN decided AS d USING (source_topic, source_partition, source_offset)
WHERE l.stage <> 'dlq' ORDER BY l._timestamp DESC, l._partition, l._offset DESC
"""
COUNTS_SQL = f"SELECT stage, reason, state, count(*) AS letters FROM ({LETTERS_SQL}) GROUP BY ALL ORDER BY letters DESC"  # noqa: S608


@dataclass(frozen=True)
class LetterList:
    """Dead letters, each in words, and how many of each reason.

    Of each: `text`, why it could not be used; `way_out`; `content`, what is in the record; `label` of its topic, None
    for a topic of another deployment; `task_id`, of the task that it is about, None if it is about none.
    """

    counts: list[Row]
    letters: RowPage


def list_letters(log: LogSnapshot, first: int) -> LetterList:
    """Return a page of the list of dead letters."""
    letters = log.page(LETTERS_SQL, first)
    by_name = {topic.name: topic for topic in topics(log.view.settings.topics).values()}
    rows = [row | in_words(row["reason"]) | _source(row, by_name.get(row["source_topic"])) for row in letters.rows]
    counts = [row | in_words(row["reason"]) for row in log.rows(COUNTS_SQL)]
    return LetterList(counts, replace(letters, rows=rows))


def in_words(reason: str) -> Row:
    """Return why records of a reason could not be used, and what to do."""
    return {"text": reason_text(reason), "way_out": way_out(reason)}


def _source(letter: Row, topic: Topic | None) -> Row:
    """Return the topic, the task and the content of the record that a dead letter is about."""
    payload, key = _decode(letter["payload"]), _decode(letter["key"])
    keyed_by_task = topic is not None and topic.label in KEYED_BY_TASK
    return {
        "label": None if topic is None else topic.label,
        "task_id": key.decode("utf-8", "replace") if keyed_by_task and isinstance(key, bytes) else None,
        "content": _event_text(payload, topic) or payload_text(payload, letter["payload_bytes"]),
    }


def _event_text(payload: bytes | str | None, topic: Topic | None) -> str | None:
    """Return a payload's event in a few words; None if it is no event of its topic."""
    if topic is None or not isinstance(payload, bytes):
        return None
    event = decode(payload, topic.event)
    return None if isinstance(event, Poison) else cut(summary(topic.label, event), PAYLOAD_SHOWN)


def payload_text(payload: bytes | str | None, size: int | None) -> str:
    """Return a payload as text, where it is text; without one its `size`, if known."""
    if payload is None:
        return "" if size is None else f"({size:,} bytes, not kept in the dead letter)"
    return cut(payload.decode("utf-8", "replace") if isinstance(payload, bytes) else payload, PAYLOAD_SHOWN)


def _decode(text: str | None) -> bytes | str | None:
    """Return the decoded base64, or the text itself if it is not base64: any client may write a dead letter."""
    try:
        return None if text is None else base64.b64decode(text, validate=True)
    except ValueError:
        return text
