"""Make text from outside safe to display: answers, prompts, keys and errors may contain anything.

text ──► cut if it is very long ──► control characters, and marks that turn or hide text, made visible
"""

from __future__ import annotations

import unicodedata

LONGEST = 20_000
"""Characters of one text that a page shows."""
_KEPT = {"\n", "\t"}


def _visible(code: int) -> str:
    """Return a sign for an invisible character."""
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"‹U+{code:04X}›"


_HIDDEN = {
    code: _visible(code)
    for code in (*range(0x20), *range(0x7F, 0xA0), *range(0x200B, 0x2010), *range(0x2028, 0x2030),
                 *range(0x2060, 0x2070), 0x061C, 0xFEFF, *range(0xD800, 0xE000), *range(0xE0000, 0xE0080))
    if chr(code) not in _KEPT and (code < 0xA0 or unicodedata.category(chr(code)) in ("Cf", "Zl", "Zp", "Cs", "Cn"))
}  # fmt: skip


def visible(text: str) -> str:
    """Return the text with characters that steer a terminal, or the direction of text, as visible signs.

    >>> visible("a" + chr(27) + "[31mb" + chr(0x202E))
    'a␛[31mb‹U+202E›'
    """
    return text if text.isascii() and text.isprintable() else text.translate(_HIDDEN)


def cut(text: str, longest: int = LONGEST) -> str:
    """Return the beginning of a text, and how much of it is left off.

    >>> cut("abcdef", 4)
    'abcd … (2 more characters)'
    """
    return text if len(text) <= longest else f"{text[:longest]} … ({len(text) - longest:,} more characters)"
