"""Canonical text: invisible differences make no answer wrong.

    composed and decomposed letters ──► composed (NFC)         spaces of any width ──► a space
    \\r\\n, \\r, line separators      ──► \\n                    zero-width characters, byte order marks ──► nothing

`exact`, `numeric`, `math`, `regex` and `format` read answers and responses in this form. Visible differences stay:
curly quotes, full-width digits, dashes, superscripts and ligatures are other characters, since x² is not x2. `numeric`
and `math` also read those that are digits, signs or fractions.

A zero-width joiner between letters or emoji stays, where it is a part of spelling, and so do marks that reverse the
direction of a text (U+202D, U+202E) and invisible operators between digits.

Duplicates, near duplicates and held-out questions are compared in a wider form, `comparison_form`: without anything
invisible, with plain characters for full-width ones and ligatures, and with Latin ones for those of other scripts that
look alike, in a word that has Latin ones too, or no others: "сapital" and "сор" with the Cyrillic с, but not "вода".

Not covered: look-alikes of other scripts than Cyrillic, Greek and Armenian, and of Latin ones ("rn" for "m").
"""

from __future__ import annotations

import re
import unicodedata

_LINE_ENDS = re.compile("\r\n?|[\x85\u2028\u2029]")
_SPACES = "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
_INVISIBLE = "\u00ad\u061c\u180e\u200b\u200e\u200f\u202a\u202b\u202c\u2060\u2066\u2067\u2068\u2069\ufeff"
_CHARACTERS = str.maketrans(_SPACES, " " * len(_SPACES), _INVISIBLE)
_JOINERS = re.compile("(?<![^\x00-\x7f])[\u200c\u200d]+|[\u200c\u200d]+(?![^\x00-\x7f])")
"""Characters that change nothing next to an ASCII character or at an end."""


_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_IGNORABLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff"
    "\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Unicode's Default_Ignorable_Code_Point."""
_SMALL = ("аеѕіјорсухһԁԛԝѵүӏαγινορυօոսհցք", "aesijopcyxhdqwvylayivopuonuhgf")
_CAPITALS = ("АВЕЅІЈКМНОРСТУХԌԜѴΑΒΕΖΗΙΚΜΝΟΡΤΥΧՍՕ", "ABESIJKMHOPCTYXGWVABEZHIKMNOPTYXUO")
"""Cyrillic, Greek and Armenian characters with a Latin prototype in confusables.txt of UTS #39 (Unicode 14)."""
_LOOK_ALIKES = str.maketrans(_SMALL[0] + _CAPITALS[0], _SMALL[1] + _CAPITALS[1])
_BOTH_ALIKE = [
    letter for letter in _SMALL[0] if letter.upper().translate(_LOOK_ALIKES).lower() == letter.translate(_LOOK_ALIKES)
]
_ALL_ALIKE = re.compile(f"[{''.join(_BOTH_ALIKE)}]+")
"""A word of characters that look alike in both cases, so that its case makes no difference."""
_OTHER_SCRIPTS = r"\u0370-\u03ff\u0400-\u052f\u0530-\u058f"
_OTHER_SCRIPT = re.compile(rf"(?<!\w)[^\W{_OTHER_SCRIPTS}]*+[{_OTHER_SCRIPTS}]\w*+")
"""A word that has a Greek, Cyrillic or Armenian character."""
_LATIN = re.compile("[A-Za-z\u00c0-\u024f]")


def canonical_text(text: str) -> str:
    r"""Return `text` without differences that a reader cannot see.

    >>> canonical_text("\ufeffCafe\u0301\u00a0noir\r\n")
    'Café noir\n'
    """
    text = _LINE_ENDS.sub("\n", text)
    if text.isascii():
        return text
    return unicodedata.normalize("NFC", _JOINERS.sub("", unicodedata.normalize("NFC", text.translate(_CHARACTERS))))


def printable_text(text: str) -> str:
    """Return the canonical text without control characters."""
    return _CONTROLS.sub("", canonical_text(text))


def comparison_form(text: str) -> str:
    r"""Return `text` in the form for comparison, without changing its case.

    >>> comparison_form("Wh\u0430t is the cap\u200bital of Ｆrance?")
    'What is the capital of France?'
    """
    if text.isascii():
        return text if text.isprintable() else printable_text(text)
    plain = unicodedata.normalize("NFKC", _IGNORABLE.sub("", printable_text(text)))
    return _OTHER_SCRIPT.sub(_fold_word, plain)


def _fold_word(match: re.Match[str]) -> str:
    word = match[0]
    is_disguise = _LATIN.search(word) or _ALL_ALIKE.fullmatch(word.lower())
    return word.translate(_LOOK_ALIKES) if is_disguise else word
