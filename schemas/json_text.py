"""JSON text: the value of an untrusted one, or ValueError, whatever it holds; and a value as one line."""

from __future__ import annotations

import json
import re
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


def one_line(value: Any, **options: Any) -> str:
    """Return a value as one line, also for readers to whom U+0085, U+2028 and U+2029 end one, as Python's `splitlines`.

    `options` are those of `json.dumps`.
    """
    text = json.dumps(value, ensure_ascii=False, **options)
    return _LINE_ENDS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


_DECODER = json.JSONDecoder()
_LINE_ENDS = re.compile("[\x85\u2028\u2029]")
