"""A text as a reader sees it: what cannot be seen makes no answer wrong.

    composed and decomposed letters ──► composed (NFC)         spaces of any width ──► a space
    \\r\\n, \\r, line separators      ──► \\n                    zero-width characters, byte order marks ──► nothing

`exact`, `numeric`, `math`, `regex` and `format` read answers and responses so. What can be seen stays: curly quotes,
full-width digits, dashes, superscripts and ligatures are other characters, since x² is not x2. `numeric` and `math`
read those that are digits, signs or fractions.

A zero-width joiner between letters or emoji stays, where it is a part of spelling, and so do marks that turn the
direction of a text round (U+202D, U+202E) and invisible operators between digits.
"""

from __future__ import annotations

import re
import unicodedata

_LINE_ENDS = re.compile("\r\n?|[\x85\u2028\u2029]")
_SPACES = "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
_INVISIBLE = "\u00ad\u061c\u180e\u200b\u200e\u200f\u202a\u202b\u202c\u2060\u2066\u2067\u2068\u2069\ufeff"
_CHARACTERS = str.maketrans(_SPACES, " " * len(_SPACES), _INVISIBLE)
_JOINERS = re.compile("(?<![^\x00-\x7f])[\u200c\u200d]+|[\u200c\u200d]+(?![^\x00-\x7f])")
"""Next to a character of ASCII, or at an end, they change nothing."""


def canonical_text(text: str) -> str:
    r"""Return `text` without differences that a reader cannot see.

    >>> canonical_text("\ufeffCafe\u0301\u00a0noir\r\n")
    'Café noir\n'
    """
    text = _LINE_ENDS.sub("\n", text)
    if text.isascii():
        return text
    return unicodedata.normalize("NFC", _JOINERS.sub("", unicodedata.normalize("NFC", text.translate(_CHARACTERS))))
