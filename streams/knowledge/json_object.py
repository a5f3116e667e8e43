"""Fields of events that are JSON objects."""

from __future__ import annotations

from typing import Any

from schemas import json_text
from streams.errors import EventError


def object_of(text: str | None) -> dict[str, Any]:
    """Return the object in a text; an empty one for None. Raises EventError for another text."""
    try:
        value = {} if text is None else json_text.parse(text)
    except ValueError as exc:
        raise EventError(f"it is no JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise EventError("expected a JSON object")
    return value
