"""Parse untrusted JSON text, with ValueError for any fault, and write a value as one line."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

FEW_VALUES = 50
"""Number of values that are counted without looking inside strings."""
_HALF_A_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
"""The JSON escape of half of a surrogate pair; whole pairs use it, too."""
_MAY_BE_INFINITE = re.compile(r"NaN|Infinity|[eE]\+?\d{3}|\d{309}")
_BRACKET = re.compile(r"[][{}]")


class RepeatedKeyError(ValueError):
    """An object has a key twice: JSON allows it, but readers differ in which one counts."""


class ExtentError(ValueError):
    """A text has too many values, or is nested too deeply, to be parsed."""


def parse(text: str | bytes, *, most_values: int | None = None) -> Any:
    """Return the value; `most_values`: as of `check_extent`.

    Raises RepeatedKeyError, ExtentError; ValueError for text that is not JSON, not Unicode, or nested without end.
    """
    text = _decode(text)
    if most_values is not None:
        check_extent(text, most_values)
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


def parse_or_text(text: str) -> Any:
    """Return the value of a text that is JSON, else the text."""
    try:
        return parse(text)
    except ValueError:
        return text


def may_be_infinite(text: str | bytes) -> bool:
    """Return whether a text may have a number that JSON does not allow; `check_finite` then checks the value."""
    return _MAY_BE_INFINITE.search(_decode(text)) is not None


def check_finite(value: Any) -> None:
    """Raise ValueError if `value`, read from JSON, has a number that JSON does not allow.

    Python also reads NaN, and 1e999 as infinity.
    """
    try:
        json.dumps(value, allow_nan=False)
    except ValueError as exc:
        raise ValueError("NaN, Infinity and numbers beyond 1.8e308 are no numbers of JSON; send null") from exc


def check_extent(text: str | bytes, most_values: int, most_levels: int | None = None, most_numbers: int = 0) -> int:
    """Return an upper bound of the number of values in a text: objects, lists, and their items. With `most_numbers`
    this many more may be numbers or words; the others are objects, lists and strings. The text is only searched, which
    takes a fraction of the time of parsing it. Of text that is not JSON, as much is counted as a parser would read.
    Raises ExtentError for more values or levels than that, UnicodeDecodeError.
    """
    text = _decode(text)
    if (values := _values(text)) <= min(most_values, FEW_VALUES):
        return values
    text = text.replace("\\\\", "").replace('\\"', "")
    too_many = f"it has more than {most_values:,} values"
    if (quotes := text.count('"')) > 4 * most_values:  # a value is at most one string, and its key another
        raise ExtentError(too_many)
    structure = "".join(text.split('"')[::2])
    if (values := _values(structure)) > most_values + most_numbers:
        raise ExtentError(f"it has more than {most_values + most_numbers:,} values")
    if most_numbers and _openings(structure) + quotes // 2 > 2 * most_values:
        raise ExtentError(f"{too_many} that are no numbers")
    if most_levels is not None:
        _check_levels(structure, most_levels)
    return values


def _check_levels(structure: str, most_levels: int) -> None:
    level = 0
    for bracket in _BRACKET.finditer(structure):
        level += 1 if bracket[0] in "[{" else -1
        if level > most_levels:
            raise ExtentError(f"it is nested deeper than {most_levels} levels")
        if level < 0:
            return  # no parser reads further


def _values(structure: str) -> int:
    return 1 + structure.count(",") + _openings(structure)


def _openings(structure: str) -> int:
    return structure.count("[") + structure.count("{")


def _decode(text: str | bytes) -> str:
    return text.decode(json.detect_encoding(text)) if isinstance(text, bytes) else text


def parse_first(text: str, start: int) -> tuple[Any, int]:
    """Return the value that begins at `start`, after spaces, and its end. Raises ValueError as `parse`."""
    try:
        return _DECODER.raw_decode(text, len(text) - len(text[start:].lstrip(" \t\n\r")))
    except RecursionError as exc:
        raise ValueError("it is nested too deeply") from exc


def one_line(value: Any, **options: Any) -> str:
    """Return a value as one line, also for readers for which U+0085, U+2028 and U+2029 end one, like Python's
    `splitlines`.

    `options` are those of `json.dumps`.
    """
    text = json.dumps(value, ensure_ascii=False, **options)
    return _LINE_ENDS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _without_repeated_key(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        repeated = next(name for name, count in counts.items() if count > 1)
        raise RepeatedKeyError(f"the key {json.dumps(repeated[:80], ensure_ascii=False)} is there twice; remove one")
    return fields


_DECODER = json.JSONDecoder()
_STRICT = json.JSONDecoder(object_pairs_hook=_without_repeated_key)
_LINE_ENDS = re.compile("[\x85\u2028\u2029]")
