"""Find possible personal data and secrets in a text: patterns, with a checksum where one exists.

    text ──► recognisers by name ──► PersonalSpan, … ──► redact: [email], [card], …

A number counts as a card by Luhn's sum, as an IBAN by its remainder of 97 (ISO 13616), so that order numbers do not.

Not covered: names of people, postal addresses, dates of birth: no pattern tells them from other words.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, get_args

Kind = Literal["email", "iban", "card", "phone", "ip", "ssn", "secret"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class PersonalSpan(NamedTuple):
    """A place in a text."""

    kind: Kind
    start: int
    end: int


class _Recogniser(NamedTuple):
    hint: str
    """A character that the text must contain, which rules out most texts."""
    pattern: re.Pattern[str]
    holds: Callable[[str], bool] = lambda _: True


def _is_card(text: str) -> bool:
    digits = [int(char) for char in text if char.isdecimal()]
    doubled = (
        digit if place % 2 == 0 else (2 * digit - 9 if digit > 4 else 2 * digit)
        for place, digit in enumerate(reversed(digits))
    )
    return 13 <= len(digits) <= 19 and len(set(digits)) > 1 and sum(doubled) % 10 == 0


def _is_iban(text: str) -> bool:
    plain = re.sub(r"[ -]", "", text).upper()
    moved = plain[4:] + plain[:4]
    return 15 <= len(plain) <= 34 and int("".join(str(int(char, 36)) for char in moved)) % 97 == 1


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_phone(text: str) -> bool:
    return 8 <= sum(char.isdecimal() for char in text) <= 15


_EMAIL = r"(?<![\w.+-])[\w.+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,4}\b"
_IBAN = r"\b[A-Za-z]{2}\d{2}(?:[ -]?[A-Za-z0-9]{4}){2,7}(?:[ -]?[A-Za-z0-9]{1,3})?\b"
_CARD = r"(?<![\w.-])\d(?:[ -]?\d){12,18}(?![\w-])"
_PHONE = r"(?<![\w+])\+\d(?:[ ()./-]{0,2}\d){6,14}(?!\d)"
_IP = r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.]*\d)"
_SSN = r"(?<![\w-])(?!000|666|9\d\d)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\w-])"
_KEY = (
    r"\b(?:sk|pk|rk)[-_](?:live|test|proj)?[-_]?[A-Za-z0-9_-]{20,}|\bgh[pousr]_[A-Za-z0-9]{36,}|\bAKIA[0-9A-Z]{16}\b"
    r"|\bxox[abpr]-[A-Za-z0-9-]{10,}|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
RECOGNISERS: dict[Kind, _Recogniser] = {
    "email": _Recogniser("@", re.compile(_EMAIL)),
    "iban": _Recogniser("", re.compile(_IBAN), _is_iban),
    "card": _Recogniser("", re.compile(_CARD), _is_card),
    "phone": _Recogniser("+", re.compile(_PHONE), _is_phone),
    "ip": _Recogniser(".", re.compile(_IP), _is_address),
    "ssn": _Recogniser("-", re.compile(_SSN)),
    "secret": _Recogniser("", re.compile(_KEY)),
}
"""Recognisers by kind; if two overlap, the earlier one counts."""
_DIGIT = re.compile(r"\d\D?\d\D?\d")
_SECRET_HINT = re.compile(r"[-_]|AKIA")
_HINT = re.compile(r"[\d@_-]|AKIA")
"""Matches in any text that has one of the kinds."""


def find(text: str, kinds: Sequence[Kind] = KINDS) -> list[PersonalSpan]:
    """Return the places of these kinds, in order, without overlaps.

    >>> [span.kind for span in find("Ask ann@example.org, or +49 30 901820; card 4111 1111 1111 1111.")]
    ['email', 'phone', 'card']
    """
    if _HINT.search(text) is None:
        return []
    spans: list[PersonalSpan] = []
    has_digits = _DIGIT.search(text) is not None
    for kind in kinds:
        hint, pattern, holds = RECOGNISERS[kind]
        needs_digits = kind in ("iban", "card", "phone", "ip", "ssn")
        if (hint and hint not in text) or (needs_digits and not has_digits):
            continue
        if kind == "secret" and _SECRET_HINT.search(text) is None:
            continue
        for match in pattern.finditer(text):
            if holds(match[0]) and not any(span.start < match.end() and match.start() < span.end for span in spans):
                spans.append(PersonalSpan(kind, match.start(), match.end()))
    return sorted(spans, key=lambda span: span.start)


def redact(text: str, spans: Sequence[PersonalSpan]) -> str:
    """Return a text with a word in place of each span.

    >>> redact("Ask ann@example.org.", find("Ask ann@example.org."))
    'Ask [email].'
    """
    parts, end = [], 0
    for span in spans:
        parts += [text[end : span.start], f"[{span.kind}]"]
        end = span.end
    return "".join([*parts, text[end:]])
