"""The normalised text of a question, for comparisons.

    text ──► comparison_form, one case, JSON with sorted keys ──► words, numbers, operators ──► exact
                                                 └──► without numbers and names ──► frame

Punctuation, white space, case, Unicode form and the order of JSON keys make no difference. Operators next to a number
do: 4 + 7 and 4 - 7 are different questions. Two texts with one frame are the same template filled in twice; a name is a
word with a capital, unless most words have one.

Not covered: other languages, numbers written as words, and what comparison_form drops. Where all nouns have a
capital, as in German, a frame is short.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

from schemas import json_text
from schemas.json_text import one_line
from streams.scorers.canonical_text import comparison_form

_IDEOGRAPH = "[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
"""Of scripts without spaces: a character is a word."""
_TOKEN = re.compile(
    _IDEOGRAPH + r"|\d+(?:[.,]\d+)*"
    r"|\w+"
    r"|(?<=[\d)])\s*[-+*/^%=<>]|[-+*/^%=<>](?=\s*[\d(])"
)
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_SIGNS = str.maketrans("−–×·÷", "--**/")
_NO_LETTERS = bytes(code for code in range(128) if not chr(code).isalnum())
_REMEMBERED = 500_000
"""Size of the cache of words."""


class Words(NamedTuple):
    """A text as it is compared."""

    exact: tuple[str, ...]
    frame: tuple[str, ...]
    """Without numbers, operators and names."""

    @property
    def numbers(self) -> Counter[str]:
        """Its numbers, and how often it has each."""
        return Counter(word for word in self.exact if word[0].isdigit())


class _WordReading(NamedTuple):
    plain: str
    is_value: bool
    """A number or an operator."""
    is_name: bool


_readings: dict[str, _WordReading] = {}


def words_of(text: str) -> Words:
    """Return the words of a text.

    >>> words_of("What is 4 + 7 ?")
    Words(exact=('what', 'is', '4', '+', '7'), frame=('is',))
    >>> words_of('{"b": 1, "a": "X"}').exact == words_of('{"a":"x","b":1}').exact
    True
    """
    readings = [_readings.get(token) or _read(token) for token in _tokens(text)]
    while readings and readings[-1].plain == "=":
        readings.pop()
    names = sum(reading.is_name for reading in readings)
    has_names = 2 * names <= sum(not reading.is_value for reading in readings)
    return Words(
        tuple([reading.plain for reading in readings]),
        tuple([r.plain for r in readings if not (r.is_value or (has_names and r.is_name))]),
    )


def letters_of(text: str) -> str | bytes:
    """Return the letters and digits of a text, in one case: texts that differ in them differ in their words.

    It takes a tenth of the time. Those of a JSON text are not told apart, since its keys may be in any order.

    >>> letters_of("What is 4 + 7?") == letters_of("what is 47") != letters_of("What is 4 + 8?")
    True
    """
    plain = comparison_form(text)
    if plain[:1] in ("{", "["):
        return ""
    if plain.isascii():
        return plain.encode().translate(None, _NO_LETTERS).lower()
    return "".join(filter(str.isalnum, plain)).casefold()


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(_plain(text))


def _plain(text: str) -> str:
    plain = comparison_form(text)
    if not plain.isascii():
        plain = plain.translate(_SIGNS)
    return _in_order(plain) if plain[:1] in ("{", "[") else plain


def is_ideograph(word: str) -> bool:
    """Return whether a word is a character of a script without spaces."""
    return re.fullmatch(_IDEOGRAPH, word) is not None


def is_apart(text: str, start: int, end: int) -> bool:
    """Return whether these words of a text have a line's end or punctuation before and after them.

    >>> is_apart("Write a poem: now", 0, 3), is_apart("Write a poem about it", 0, 3)
    (True, False)
    """
    plain = _plain(text)
    spans = [match.span() for match in _TOKEN.finditer(plain)]
    before = plain[spans[start - 1][1] : spans[start][0]] if start else ""
    after = plain[spans[end - 1][1] : spans[end][0]] if end < len(spans) else ""
    return (not start or before.strip(" \t") != "") and (end >= len(spans) or after.strip(" \t") != "")


def _in_order(text: str) -> str:
    """Return a JSON text with its keys in order, and one that only begins like JSON as it is."""
    try:
        return one_line(json_text.parse(text), sort_keys=True)
    except ValueError:
        return text


def _read(token: str) -> _WordReading:
    plain = token.strip().casefold()
    is_value = not plain[0].isalpha() and plain[0] != "_"
    if _THOUSANDS.fullmatch(plain):
        plain = plain.replace(",", "")
    reading = _WordReading(plain, is_value, not is_value and token[0].isupper())
    if len(_readings) < _REMEMBERED:
        _readings[token] = reading
    return reading
