"""View `current_documents`: one row per document that is there, with its list for people.

documents ──► the first event of each sequence ──► the newest of each document, unless it removed it
"""

from __future__ import annotations

from streams.tools.query.sql_view import SqlView
from streams.tools.query.view_list import ViewList

_CURRENT = """
WITH effective AS (
    FROM documents
    QUALIFY row_number() OVER (PARTITION BY document_id, sequence ORDER BY _partition, _offset) = 1
), newest AS (
    FROM effective QUALIFY row_number() OVER (PARTITION BY document_id ORDER BY sequence DESC) = 1
)
SELECT document_id, split_part(document_id, '/', 1) AS index_name, media_type, source, length(text) AS characters,
    metadata, actor, reason, created_at AS changed_at, text, _partition, _offset, _timestamp
FROM newest WHERE kind <> 'removed'
"""
VIEWS = (
    SqlView(
        "current_documents",
        "documents",
        "one row per document that is searched now: its index, source and text",
        "starts_with(document_id, {prefix})",
        _CURRENT,
    ),
)
LISTS = (
    ViewList(
        "documents",
        "Documents",
        "current_documents",
        columns=("document_id", "index_name", "media_type", "source", "characters", "actor", "changed_at"),
        order="document_id",
        filters=("index_name", "media_type"),
    ),
)
