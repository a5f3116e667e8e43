"""JSON text that somebody else wrote: its value, or ValueError, whatever the text holds."""

from __future__ import annotations

import json
from typing import Any


def parse(text: str | bytes) -> Any:
    """Return the value. Raises ValueError for what is no JSON, no Unicode, or nested without end."""
    try:
        return json.loads(text)
    except RecursionError as exc:
        raise ValueError("it is nested too deeply") from exc


def parse_first(text: str, at: int) -> tuple[Any, int]:
    """Return the value that begins at `at`, behind spaces, and where it ends. Raises ValueError as `parse`."""
    try:
        return _DECODER.raw_decode(text, len(text) - len(text[at:].lstrip(" \t\n\r")))
    except RecursionError as exc:
        raise ValueError("it is nested too deeply") from exc


_DECODER = json.JSONDecoder()
