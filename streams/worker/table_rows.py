"""Rows of the tables in which stages keep their state.

    fields ──► pack ──► compact JSON with a version ──► table, changelog ──► unpack ──► fields

Rows of another version are refused, with the way out: state is rebuilt from the source topics.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def pack(version: int, fields: Mapping[str, Any]) -> bytes:
    """Return the row that holds `fields`, which are JSON."""
    return json.dumps({"v": version, **fields}, separators=(",", ":")).encode()


def unpack(row: bytes, version: int) -> dict[str, Any]:
    """Return the fields of a row. Raises ValueError for a row of another version."""
    fields: dict[str, Any] = json.loads(row)
    if (row_version := fields.pop("v")) != version:
        raise ValueError(
            f"a table row has version {row_version}, expected {version}. Rows of another version cannot be "
            "read: start under another consumer group, and the state is rebuilt from the source topics"
        )
    return fields
