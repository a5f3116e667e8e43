"""Rules for personal data and secrets: those of streams/scorers/personal_data.py, keys by entropy, and national ids.

view ──► email, card, iban, phone, ip, secret ──► key: random characters after "token" ──► ids that the settings name

Not covered: names, addresses, dates of birth. A national id without a checksum (uk_nino) is found by its form alone.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from streams.scorers import personal_data

VERSION = 1
KIND_WORDS = {
    "email": "an e-mail address",
    "iban": "an IBAN",
    "card": "the number of a payment card",
    "phone": "a phone number",
    "ip": "an IP address",
    "ssn": "a social security number of the USA",
    "secret": "a key, by its prefix",
    "key": "a key, by its randomness",
}
LEAST_BITS = 3.2
"""Entropy of a key's characters, bits for each: words and placeholders have less."""
_PREFIXED = re.compile(
    r"\b(?:sk-ant-[\w-]{20,200}|AIza[\w-]{35}|glpat-[\w-]{20,60}|npm_[A-Za-z0-9]{36}|hf_[A-Za-z0-9]{30,40}|ASIA[0-9A-Z]{16}"
    r"|SG\.[\w-]{16,32}\.[\w-]{16,64}|dop_v1_[a-f0-9]{64}|pypi-[\w-]{50,250}|ya29\.[\w-]{20,250}|github_pat_\w{40,100}"
    r"|eyJ[\w-]{10,2000}\.eyJ[\w-]{10,4000}\.[\w-]{10,1000})",
    re.ASCII,
)
_NAMED = re.compile(
    r"(?<![A-Za-z])(?:api|access|secret|private|auth|client|master)?[ _-]?"
    r"(?:key|secret|token|passw(?:or)?d|pwd|bearer|authorization|credential)s?\b[\"' ]{0,3}(?:[:=]|is|=>)?[\"' ]{0,3}"
    r"([A-Za-z0-9+/_.~-]{20,128})",
    re.IGNORECASE | re.ASCII,
)
_CARD = re.compile(
    r"(?<![\w.-])(?=((?:50(?:18|20|38)|5[678]\d\d|6[37]\d\d)(?:[ -]?\d){8}|\d{13,19}"
    r"|\d{4}[ -]\d{4}[ -]\d{4}[ -]\d{4}(?:[ -]\d{3})?|\d{4}[ -]\d{6}[ -]\d{5})(?![\w-]))"
)
"""Cards between other numbers, and Maestro's, with 12 digits; matches overlap."""
_ISSUER = re.compile(r"[3-6]|1800|2131|222[1-9]|22[3-9]|2[3-6]|27[01]|2720")
"""First digits of payment cards (ISO/IEC 7812)."""
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:])")


class NationalId(NamedTuple):
    """A number that a state gives a person."""

    words: str
    pattern: re.Pattern[str]
    holds: Callable[[str], bool]


def _digits(text: str) -> list[int]:
    return [int(char) for char in text if char.isdecimal()]


def _has_luhn(text: str) -> bool:
    doubled = ((0, 2, 4, 6, 8, 1, 3, 5, 7, 9)[digit] for digit in _digits(text)[-2::-2])
    return (sum(_digits(text)[::-2]) + sum(doubled)) % 10 == 0


def _is_of_an_issuer(text: str) -> bool:
    return _ISSUER.match("".join(map(str, _digits(text)[:4]))) is not None


def _sum_check(weights: tuple[int, ...], modulus: int) -> Callable[[str], bool]:
    """Return a check that the weighted sum of the digits is a multiple of a number, and is not 0."""

    def holds(text: str) -> bool:
        total = sum(weight * digit for weight, digit in zip(weights, _digits(text), strict=True))
        return total > 0 and total % modulus == 0

    return holds


def _is_german_tax_id(text: str) -> bool:
    """ISO 7064 mod 11, 10; of the first ten digits one occurs two or three times."""
    digits, product = _digits(text), 10
    for digit in digits[:10]:
        product = ((digit + product - 1) % 10 + 1) * 2 % 11
    return digits[0] > 0 and max(Counter(digits[:10]).values()) in (2, 3) and (11 - product) % 10 == digits[10]


def _is_french_number(text: str) -> bool:
    plain = re.sub(r"\W", "", text).upper().replace("2A", "19").replace("2B", "18")  # Corsica
    return int(plain[:13]) % 97 == 97 - int(plain[13:])


def _is_spanish_id(text: str) -> bool:
    plain = re.sub(r"\W", "", text).upper()
    number = int(str("XYZ".find(plain[0])) + plain[1:-1] if plain[0] in "XYZ" else plain[:-1])
    return "TRWAGMYFPDXBNJZSQVHLCKE"[number % 23] == plain[-1]


NATIONAL_IDS: Mapping[str, NationalId] = {
    "de_tax_id": NationalId(
        "a German tax number", re.compile(r"(?<![\w.])\d{2} ?\d{3} ?\d{3} ?\d{3}(?![\w])"), _is_german_tax_id
    ),
    "fr_nir": NationalId(
        "a French social security number",
        re.compile(r"(?<!\w)[12] ?\d{2} ?\d{2} ?(?:\d{2}|2[ABab]) ?\d{3} ?\d{3} ?\d{2}(?!\w)"),
        _is_french_number,
    ),
    "es_dni": NationalId(
        "a Spanish identity number", re.compile(r"(?<!\w)(?:\d{8}|[XYZxyz]-?\d{7})-?[A-Za-z](?!\w)"), _is_spanish_id
    ),
    "pl_pesel": NationalId(
        "a Polish PESEL", re.compile(r"(?<!\w)\d{11}(?!\w)"), _sum_check((1, 3, 7, 9, 1, 3, 7, 9, 1, 3, 1), 10)
    ),
    "nl_bsn": NationalId(
        "a Dutch BSN", re.compile(r"(?<!\w)\d{9}(?!\w)"), _sum_check((9, 8, 7, 6, 5, 4, 3, 2, -1), 11)
    ),
    "uk_nino": NationalId(
        "a British national insurance number",
        re.compile(r"(?<!\w)[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?\d{2} ?\d{2} ?\d{2} ?[A-D](?!\w)"),
        lambda _: True,
    ),
}


class PersonalMatch(NamedTuple):
    """A place in a view."""

    name: str
    start: int
    end: int


def personal(text: str, national_ids: Collection[str] = ()) -> list[PersonalMatch]:
    """Return the personal data and secrets of a view's text, in order, without overlaps.

    >>> [match.name for match in personal("key=Zx81kQp0LmVt72bYw9Ra to ann@example.org, 36 574 261 809", ["de_tax_id"])]
    ['key', 'email', 'de_tax_id']
    """
    spans: list[PersonalMatch] = []

    def add(name: str, start: int, end: int) -> None:
        if not any(span.start < end and start < span.end for span in spans):
            spans.append(PersonalMatch(name, start, end))

    for name in national_ids:
        for match in NATIONAL_IDS[name].pattern.finditer(text):
            if NATIONAL_IDS[name].holds(match[0]):
                add(name, *match.span())
    for kind, start, end in personal_data.find(text):
        if kind != "card" or _is_of_an_issuer(text[start:end]):
            add(kind, start, end)
    for match in _PREFIXED.finditer(text):
        add("secret", *match.span())
    for match in _NAMED.finditer(text):
        if _is_random(match[1]):
            add("key", *match.span(1))
    for match in _CARD.finditer(text):
        if _has_luhn(match[1]) and _is_of_an_issuer(match[1]):
            add("card", *match.span(1))
    if "::" in text or text.count(":") >= 7:
        for match in _IPV6.finditer(text):
            if _is_public_ipv6(match[0]):
                add("ip", *match.span())
    return sorted(spans, key=lambda span: span.start)


def words(name: str) -> str:
    """Return what a rule finds, in words."""
    return KIND_WORDS[name] if name in KIND_WORDS else NATIONAL_IDS[name].words


def entropy(text: str) -> float:
    """Return the entropy of a text's characters, bits for each."""
    counts = Counter(text).values()
    return -sum(count / len(text) * math.log2(count / len(text)) for count in counts)


def _is_random(text: str) -> bool:
    classes = (any(map(test, text)) for test in (str.isdigit, str.isupper, str.islower))
    return sum(classes) >= 2 and any(map(str.isdigit, text)) and entropy(text) >= LEAST_BITS


def _is_public_ipv6(text: str) -> bool:
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return not address.is_loopback and not address.is_unspecified and sum(map(bool, text.split(":"))) >= 3
