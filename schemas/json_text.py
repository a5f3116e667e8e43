"""Untrusted JSON text: its value, or ValueError, whatever the text holds."""

from __future__ import annotations

import json
from typing import Any


def parse(text: str | bytes) -> Any:
    """Return the value. Raises ValueError for text that is not JSON, not Unicode, or nested without end."""
    try:
        return json.loads(text)
    except RecursionError as exc:
        raise ValueError("it is nested too deeply") from exc


def parse_first(text: str, start: int) -> tuple[Any, int]:
    """Return the value that begins at `start`, after spaces, and its end. Raises ValueError as `parse`."""
    try:
        return _DECODER.raw_decode(text, len(text) - len(text[start:].lstrip(" \t\n\r")))
    except RecursionError as exc:
        raise ValueError("it is nested too deeply") from exc


_DECODER = json.JSONDecoder()
