r"""Read numbers as people and models write them.

    -1,234.5   1 234 567   3/4   2½   \frac{3}{4}   3×10^8   50%   $5 million   12 km/h   \boxed{7}  ──► WrittenNumber

`read` accepts only a number. `pick` looks for the first or last one of a longer text, and never cuts it out of a longer
expression: `2x`, `10-5`, `√5`, `3 or 4`, `<5` and `not 5` are not numbers, and an answer that would be one of these is
missing. A box is read as a whole, unless it is a part of something: `-\boxed{5}`, `\boxed{5}^2`. An ambiguous writing
is not a number either: a wrong reading would reward a wrong answer.

A comma or a point before three digits is read as in English: 1,234 is more than a thousand, 1.234 is less than two.
`50%` is one half. Units are compared and not converted: 1 km is not 1000 m.

Not covered: numbers in words ("eleven"), roots, sums, ± and complex numbers; the scorer `math` reads these.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from typing import Literal, NamedTuple

from streams.scorers.canonical_text import canonical_text

MAX_CHARACTERS = 20_000
"""Only the beginning or end of a longer text is searched; as a whole it is not a number."""
MAX_EXPONENT = 10_000
"""Larger powers would take all memory."""
_CONTEXT = 60
"""Characters on each side of a number that decide whether it stands alone."""


# --- LaTeX and Unicode become plain text ------------------------------------------------------------------------------

_WRITINGS = [
    (re.compile(pattern), plain)
    for pattern, plain in (
        (r"\\\\", "\n"),
        (r"\{,\}", ","),
        (r"\\(?:begin|end|tag)\s*\{[^{}]*\}|\\(?:blacksquare|square|qed|checkmark|therefore)(?![A-Za-z])", " "),
        (r"\\(?:left|right|displaystyle|!)(?![A-Za-z])|&", ""),
        (r"\\[,;: ]|\\q?quad(?![A-Za-z])|~", " "),
        (r"\\[()\[\]]", " "),
        (r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|operatorname|emph)\s*\{([^{}]*)\}", r"\1"),
        (r"(?<=\d)\s*(?=\\[dt]?frac)", " "),
        (r"\\[dt]?frac\s*\{\s*(-?\d+)\s*\}\s*\{\s*(\d+)\s*\}", r"\1/\2"),
        (r"\\[dt]?frac\s*(\d)\s*(\d)", r"\1/\2"),
        (r"\\(?:times|cdot)(?![A-Za-z])|[·⋅∙]", "×"),
        (r"\^\s*+(?:\{\s*+)?\\circ\s*\}?|\\degree(?![A-Za-z])", "°"),
        (r"\^\s*[{(]\s*([-+]?\d+)\s*[})]", r"^\1"),
        (r"\\approx(?![A-Za-z])|[≈≃≅∼]", "="),
        (r"\\(?:Rightarrow|rightarrow|implies|to)(?![A-Za-z])|[→⇒]|=>|->", ": "),
        (r"\\([%$#&_])", r"\1"),
        (r"\\boxed\s*\{([^{}]*)\}", r"\1"),
        (r"</?[A-Za-z][\w-]{0,30}(?:\s[^<>]{0,200})?>", " "),
        (r"(?<![\w)*])(\*{1,3}|_{1,3}|`{1,3})(?=\S)([^\n]{1,200}?)(?<=\S)\1(?![\w(*])", r"\2"),
        (r"(?<=\d)\*\*(?=[-\d])", "^"),
    )
]
_RAISED = re.compile("[⁺⁻]?[⁰¹²³⁴-⁹]+")
_LOWERED = re.compile("[₊₋]?[₀-₉]+")
_OTHER_DIGIT = re.compile("(?![0-9])\\d")
_FULL_STOP = re.compile("[.。]$")
_IN_CIRCLES = re.compile("[①-⒛⓪-⓿❶-➓]")
"""Numbers of list items."""
_SIGNS = str.maketrans("−‐‑‒–⁄∕’＇∗٪٫٬", "-----//''*%.,")


def _plain(text: str) -> str:
    """Return a text with LaTeX, markup and Unicode variants of digits, signs and fractions made plain."""
    text = _RAISED.sub(lambda raised: "^" + raised[0], canonical_text(text))
    text = _LOWERED.sub(lambda lowered: f"_{{{lowered[0]}}}", _IN_CIRCLES.sub("\n", text))
    text = re.sub(r"(?<=\d)(?=[¼-¾⅐-⅞])", " ", text)
    text = unicodedata.normalize("NFKC", text).translate(_SIGNS)
    text = _OTHER_DIGIT.sub(lambda digit: str(unicodedata.decimal(digit[0])), text)
    for pattern, plain in _WRITINGS:
        text = pattern.sub(plain, text)
    return text


# --- one number -------------------------------------------------------------------------------------------------------

_UNITS = {
    "mm": "millimeter millimetre", "cm": "centimeter centimetre", "m": "meter metre", "km": "kilometer kilometre",
    "inch": "inche", "ft": "foot feet", "yd": "yard", "mi": "mile", "mg": "milligram", "g": "gram", "kg": "kilogram",
    "lb": "pound", "oz": "ounce", "ml": "mL milliliter millilitre", "l": "L liter litre", "ms": "millisecond",
    "s": "sec second", "min": "minute", "h": "hr hour", "day": "", "week": "", "month": "", "year": "", "mph": "",
    "°C": "", "°F": "", "°": "degree deg", "$": "USD dollar", "€": "EUR euro", "£": "GBP", "¥": "JPY yen", "¢": "cent",
    "unit": "", "square": "sq", "cubic": "",
}  # fmt: skip
"""Each unit and its other spellings, all of which may have an s at the end."""
_UNIT_OF = {spelling: unit for unit, others in _UNITS.items() for spelling in (unit, *others.split())}
_UNIT = (
    rf"(?:{'|'.join(sorted(map(re.escape, _UNIT_OF.keys() - {'$'}), key=len, reverse=True))})s?(?![A-Za-z])(?:\^\d)?"
)
_ENGLISH = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d{1,2}(?:,\d{2})+,\d{3}(?:\.\d+)?"  # 1,234,567.8, and in India 12,34,567
_EUROPEAN = r"\d{1,3}(?:\.\d{3}){2,}(?:,\d+)?|\d{1,3}\.\d{3},\d+"  # 1.234.567 and 1.234,5
_GROUPED = r"\d{1,3}(?: \d{3})+(?!\d)(?:[.,]\d+)?|\d{1,3}(?:'\d{3})+(?:\.\d+)?|\d{1,3}(?:_\d{3})+(?:\.\d+)?"
_DIGITS = rf"(?:{_ENGLISH}|{_EUROPEAN}|{_GROUPED}|\d+[.,]\d+|\d+|\.\d+)"
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_NUMBER = re.compile(
    r"(?P<sign>[-+])?(?P<money>[$€£¥] ?)?(?P<minus>-)?(?:"
    r"(?:(?P<whole>\d+) )?(?P<over>\d+) ?/ ?(?P<under>\d+)"
    rf"|(?P<digits>{_DIGITS})(?:[eE](?P<e>[-+]?\d+)| ?[×x*] ?10\^(?P<ten>[-+]?\d+)|\^(?P<power>[-+]?\d+))?"
    rf")(?: (?P<scale>{'|'.join(_SCALES)})\b)?(?P<percent> ?%| per ?cent\b)?"
    rf"(?P<unit> ?{_UNIT}(?:(?: ?/ ?| per |[ ×]){_UNIT})*)?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class WrittenNumber:
    """A number and its unit; empty: none was written."""

    value: Fraction
    unit: str = ""

    def has_unit_of(self, answer: WrittenNumber) -> bool:
        """Whether the unit does not contradict the answer's: one of both may be left out.

        A single letter (m, g, s) must be in the answer too: without it, `5m` may as well be five times m.
        """
        return self.unit in ("", answer.unit) or (not answer.unit and not re.fullmatch("[a-z]", self.unit))


def _number(match: re.Match[str]) -> WrittenNumber | None:
    """Return the number in a match of _NUMBER, or None."""
    part = match.groupdict()
    if (part["sign"] and part["minus"]) or (part["money"] and part["unit"]):
        return None
    try:
        value = _magnitude(part)
    except (ArithmeticError, ValueError):  # a division by zero, more digits than `int` reads
        return None
    if value is None:
        return None
    value *= 10 ** _SCALES.get(part["scale"], 0)
    value /= 100 if part["percent"] else 1
    unit = (part["money"] or part["unit"] or "").strip().replace(" per ", "/")
    unit = re.sub(r"[^\W\d_]+|°[CF]?", lambda word: _UNIT_OF.get(word[0]) or _UNIT_OF[word[0].removesuffix("s")], unit)
    return WrittenNumber(-value if "-" in (part["sign"], part["minus"]) else value, unit.replace(" ", ""))


def _magnitude(part: dict[str, str | None]) -> Fraction | None:
    if part["over"]:
        fraction = Fraction(int(part["over"]), int(part["under"] or 0))
        if part["whole"] and fraction >= 1:
            return None
        return int(part["whole"] or 0) + fraction
    digits = part["digits"] or ""
    ten, power = int(part["e"] or part["ten"] or 0), int(part["power"] or 1)
    if max(abs(ten), abs(power) * len(digits)) > MAX_EXPONENT:
        return None
    return Fraction(Decimal(_decimal_digits(digits))) ** power * Fraction(10) ** ten


def _decimal_digits(digits: str) -> str:
    """Return digits without group separators, and with a decimal point."""
    digits = re.sub("[ '_]", "", digits)
    if re.fullmatch(_ENGLISH, digits) and not digits.startswith("0"):
        return digits.replace(",", "")
    if re.fullmatch(_EUROPEAN, digits):
        digits = digits.replace(".", "")
    return digits.replace(",", ".")


def read(text: str) -> WrittenNumber | None:
    r"""Return the number that a text consists of; None for any other text.

    >>> read(r"$\frac{3}{4}$"), read("3 or 4")
    (WrittenNumber(value=Fraction(3, 4), unit=''), None)
    """
    if len(text) > MAX_CHARACTERS:
        return None
    match = _NUMBER.fullmatch(_bare(_plain(text)))
    return None if match is None else _number(match)


def _bare(text: str) -> str:
    """Return a plain text without the dollars of LaTeX, and the full stop, around it."""
    text = _FULL_STOP.sub("", text.strip())
    delimited = re.fullmatch(r"(\$\$?)([^$]+)\1", text)
    return _FULL_STOP.sub("", (delimited[2] if delimited else text).strip())


# --- a number in a longer text ----------------------------------------------------------------------------------------

_OPERATORS = "-+×/^÷±√∛≠!|%‰‱∞\u2200-\u2233\u2236-\u223b\u223d-\u22ff\u2a00-\u2aff"
"""Characters, for a class, that join numbers; from \u2200 on, mathematical operators except ∴, ∵ and ∼."""
_TENS = "twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
_BEFORE = re.compile(
    rf"(?:\b(?:minus|negative|plus|times|over|under|below|above|beyond|by|than|(?:root|half|power|quarter)\s+of|sqrt|cbrt|"
    r"sin|cos|tan|log|ln|exp|mod|least|most|between|either|except|point|up\s+to|double|twice|triple|"
    rf"{_TENS}|(?:{'|'.join(_SCALES)})(?:\s+and)?|(?:not|never|cannot)(?:\s+(?:be|equal|exactly))?)|n't(?:\s+be)?"
    rf"|\\[A-Za-z]+|[<>!]=|[{_OPERATORS}<>\[{{}}\\*°])[^\S\n]*$",
    re.IGNORECASE,
)
"""Text that joins the number after it to a longer expression."""
_AFTER = re.compile(
    r"[^\S\n]*(?:(?:minus|plus|times|over|mod|pi|squared|cubed|factorial|divided|multiplied|to\s+the|choose|point|half|"
    r"and\s+a|dozen|hundredths?|thousandths?|percentage|lakhs?|crores?|[mb]n|[mb]ln|[KMB]|twice|"
    r"(?:more|less|fewer|greater|larger|smaller)\s+than|or\s+(?:more|less|fewer|above|below|over|under)|"
    r"(?:is|was)\s+(?:not|wrong|incorrect|false)|[xyzijentkbα-ω])(?!\w)"
    rf"|[-+]\s*(?:\d|\w\b|[(\\√$])|\+(?!\s*\w)|(?![-+])[{_OPERATORS}<>\[\]{{}}\\*°′]|\((?:mod\b|(?![A-Za-z]{{2}})))"
)
"""Text that joins the number before it to a longer expression."""
_GLUED_BEFORE = re.compile(r"\w$|\d[.,:'、—―]$|\w[-+]$|(?<!\w)[—―]$|\d\s*,?\s*\.\.+\s*,?\s*$|\\[lcd]?dots\s*,\s*$")
_GLUED_AFTER = re.compile(
    r"[\w(]|[.,:'、—―](?:\d|\\(?:overline|dot|bar))|-\w|,\s*(?:\.\.|\\[lcd]?dots)|\.\.+\s*,?\s*\d"
)
_WORD_BEFORE = re.compile(r"(?<!\\)\b(?!sqrt|log|ln|sin|cos|tan)[^\W\d_]{2,}-?$|(?<![\w\\])[A-Z]$")
"""H2O, GPT-4: the digits belong to a name."""
_JOINED = re.compile(
    r"[^\S\n]*+(?:[,;&、|]|(?<= ): )?[^\S\n]*+(?:\b(?:and|or|to|through|versus|vs|of|out of|in|per)\b)?[^\S\n]*",
    re.IGNORECASE,
)
"""Text that makes one list or range of the two numbers around it."""
_ENUMERATED = re.compile(r"(?:^|\n)[^\S\n]*\(?$")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BEFORE_BOX = re.compile(
    r"(?:[0-9A-Za-zα-ω)]|[+×/^÷±√∛][ $]*|\S[ $]*[<>≤≥≠][ $]*|[\w)][ $]*\*[ $]*|-\$?|[=(<>,×/][ $]*-[ $]+"
    r"|\\(?:[dt]?frac|sqrt|binom)(?:\[[^\]]*\]|\{[^{}]*\})?\s*\{?|\b(?:not|never|minus|negative)[ $]+)$",
    re.IGNORECASE,
)
_AFTER_BOX = re.compile(
    r"[ $]*(?:[+×/^÷±√∛!%‰]|\*[ ]*[\w(\\]|-[ ]*(?:\d|\w\b|[(\\√])|,[ ]*-?\d|[xyzijentkbα-ω](?!\w))"
    r"|[0-9]|[A-Za-zα-ω](?![A-Za-z])"
)


class _Box(NamedTuple):
    """A box, with its beginning and end."""

    start: int
    end: int
    content: str


def pick(text: str, which: Literal["first", "last"]) -> WrittenNumber | None:
    """Return the first or last number of a text, of its boxes if it has any; None if it is not a number.

    >>> pick("7 apples and 2.5 kg of pears", "last"), pick("so it is 2x", "last")
    (WrittenNumber(value=Fraction(5, 2), unit='kg'), None)
    """
    if (content := box_content(text, which)) is not None:
        return read(content)
    if len(text) > MAX_CHARACTERS:  # cut between lines, never within a number
        text = (
            text[:MAX_CHARACTERS].rpartition("\n")[0] if which == "first" else text[-MAX_CHARACTERS:].partition("\n")[2]
        )
    text = _plain(text)
    matches = list(_NUMBER.finditer(text))[:: 1 if which == "first" else -1]
    matches = list(islice((match for match in matches if not _WORD_BEFORE.search(_before(match))), 2))
    if not matches:
        return None
    number = _alone(matches[0])
    for other in matches[1:2]:
        left, right = (matches[0], other) if which == "first" else (other, matches[0])
        if _JOINED.fullmatch(text, left.end(), right.start()) and _alone(other) != number:
            return None
    return number


def box_content(text: str, which: Literal["first", "last"] = "last") -> str | None:
    r"""Return the content of the first or last outermost \boxed{} of a text; None without one. Empty for a box that is
    not a whole answer: cut off, a part of something longer, or joined to another.

    >>> box_content(r"\boxed{5}, not \boxed{6}", "first"), box_content(r"-\boxed{7}"), box_content(r"\boxed{8}^2")
    ('5', '', '')
    """
    boxes = _boxes(text)[:: 1 if which == "first" else -1][:2]
    if not boxes:
        return None
    start, end, content = boxes[0]
    before, after = text[max(0, start - 2 * _CONTEXT) : start], text[end : end + 2 * _CONTEXT]
    if _BEFORE_BOX.search(_plain(before)) or _AFTER_BOX.match(_plain(after)):
        return ""
    for other in boxes[1:]:
        left, right = sorted((boxes[0], other))
        if other.content != content and _JOINED.fullmatch(_plain(text[left.end : right.start][: 2 * _CONTEXT])):
            return ""
    return content


def _boxes(text: str) -> list[_Box]:
    boxes, end = list[_Box](), 0
    while begin := _BOX.search(text, end):
        depth, end = 1, begin.end()
        while depth and end < len(text):
            depth += {"{": 1, "}": -1}.get(text[end], 0) * (text[end - 1] != "\\")
            end += 1
        boxes.append(_Box(begin.start(), end, "" if depth else text[begin.end() : end - 1]))
    return boxes


def _before(match: re.Match[str]) -> str:
    return match.string[max(0, match.start() - _CONTEXT) : match.start()]


def _alone(match: re.Match[str]) -> WrittenNumber | None:
    """Return the number, if it is a whole expression."""
    after = match.string[match.end() : match.end() + _CONTEXT]
    is_cut_off = "." in (match["digits"] or "") and after.startswith("..")
    number = _number(match) if not is_cut_off and _stands_alone(_before(match), after) else None
    if number is not None and match["money"] and after.startswith("$"):  # LaTeX
        return WrittenNumber(number.value)
    return number


def _stands_alone(before: str, after: str) -> bool:
    """Whether a number between these two texts is a whole expression."""
    if _GLUED_BEFORE.search(before) or _GLUED_AFTER.match(after):
        return False
    if any(unicodedata.category(neighbour) in ("Cf", "Mn", "Me") for neighbour in before[-1:] + after[:1]):
        return False
    if _ENUMERATED.search(before) and re.match(r"[.)][^\S\n]+\S", after):
        return False
    while True:
        before, after = before.rstrip(" \t$\"“”'"), after.lstrip(" \t$\"“”'")
        if _BEFORE.search(before) or _AFTER.match(after):
            return False
        if not before.endswith("("):
            return not (after.startswith(")") and before.endswith(","))
        if not after.startswith(")") or re.search(r"[\w\\}]\($", before):
            return False
        before, after = before[:-1], after[1:]
