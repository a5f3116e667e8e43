"""JSON text: the value of an untrusted one, or ValueError, whatever it holds; and a value as one line."""

from __future__ import annotations

import json
import re
from typing import Any

_HALF_A_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
"""How half of a surrogate pair is written in JSON; whole pairs are written so, too."""


class RepeatedKeyError(ValueError):
    """An object has a key twice: JSON lets it in, and readers differ in which of them counts."""


def parse(text: str | bytes) -> Any:
    """Return the value.

    Raises RepeatedKeyError; ValueError for text that is not JSON, not Unicode, or nested without end.
    """
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text))
    try:
        value = _STRICT.decode(text)
        if _HALF_A_PAIR.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as exc:
        raise ValueError("it is nested too deeply") from exc
    except UnicodeEncodeError as exc:
        half = f"\\u{ord(exc.object[exc.start]):04x}"
        raise ValueError(f"{half} is half of a surrogate pair, and no character; leave it out") from exc
    return value


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


def _without_repeated_key(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise RepeatedKeyError(f"the key {json.dumps(repeated[:80], ensure_ascii=False)} is there twice; remove one")
    return fields


_DECODER = json.JSONDecoder()
_STRICT = json.JSONDecoder(object_pairs_hook=_without_repeated_key)
_LINE_ENDS = re.compile("[\x85\u2028\u2029]")
