r"""Mathematics: whether a formula, a set, an interval, a fraction or a number equals the answer.

    text ──► the last \boxed{}, the text after "answer is", or the formula ──► numbers, else math-verify ──► 1 or 0

Two numbers are compared exactly, as `numeric` does; for everything else math-verify (Hugging Face, Apache 2.0) reads
LaTeX and asks sympy whether both are equal. Its own time limits use the alarm of the process, so they are switched off:
this runs in a worker process, which the parent ends.

Not covered: the library treats upper and lower case of a letter as the same.
"""

from __future__ import annotations

import logging
import re
from functools import cache
from typing import Any

from schemas.events import Response, Task
from streams.scorers.canonical_text import canonical_text
from streams.scorers.numbers import box_content, read
from streams.scorers.verdict import ScoreError, ScorerOptions, Verdict, answers

MAX_CHARACTERS = 1_000
"""Longest formula; a longer one is not read."""
DIGITS = 12
"""Digits after the point to which a root or π must agree with a decimal number."""
_ANSWER = re.compile(r"\banswer\b[*_]*(?:\s+is)?\s*[:=]?[*_]*\s*(?P<answer>[^\n]+)", re.IGNORECASE)
_FORMULA = re.compile(r"\$\$?(?P<dollars>[^$]+)\$\$?|\\[(\[](?P<brackets>(?:[^\\]|\\[^()\[\]])+)\\[)\]]")
_TOO_LARGE = re.compile(r"\^\s*+\{?[^{}^]{0,20}(?:\^|\d{4})|(?<!\d)\d{4,}+\s*+(?:\}\s*+)?!|!\s*+(?:\)\s*+)?!|\*\*")
"""Powers of powers, and factorials, which sympy would compute to the last digit."""
_IGNORED = re.compile(
    r"\d\s*+(?:_|(?:\\text\s*+\{\s*+)?(?:st|nd|rd|th)\b)|\\[lcd]?dots|\.\.\.|…|\b(?:not|wrong|incorrect|false|except)\b",
    re.IGNORECASE,
)
"""A base, an ordinal, dots, a word: they change the meaning, and the library leaves them out; texts are compared."""
_ESCAPED = re.compile(r"\\[{}]")
_UNFINISHED = re.compile(r"[-+*/^=_\\][\s$]*$|^[\s$]*$")
_PAIRS = (("{", "}"), (r"\\left(?![A-Za-z])", r"\\right(?![A-Za-z])"))
_PLAIN = [
    (re.compile(r"(?<![\\A-Za-z])sqrt\s*\(([^()]*)\)|√\s*\(([^()]*)\)|√\s*(\w)"), r"\\sqrt{\1\2\3}"),
    (re.compile(r"(?<![\\A-Za-z])(pi|sin|cos|tan|log|ln)\b"), r"\\\1"),
    (re.compile("[−–]"), "-"),
    (re.compile("[*×·⋅]"), r"\\cdot "),
    (re.compile("π"), r"\\pi "),
    (re.compile("²"), "^2"),
    (re.compile("³"), "^3"),
]


class Mathematics(ScorerOptions):
    """`math` has no settings."""


def mathematics(task: Task, response: Response, settings: Mathematics) -> Verdict:
    """Return 1 if the text's answer equals (one of) the task's, else 0.

    Raises ScoreError: bad_verifier, missing_package.
    """
    text = answer_of(response.text)
    is_right = False
    for answer in formula_answers(task):
        content = box_content(answer)
        is_right |= _is_equal((answer if content is None else content).strip(), text, task.task_id)
    return Verdict(float(is_right))


def formula_answers(task: Task) -> tuple[str, ...]:
    """Return the answers of a task, and refuse partial formulas. Raises ScoreError(bad_verifier)."""
    right = answers(task, "math")
    for answer in right:
        parts = _ESCAPED.sub("", answer)
        is_open = any(len(re.findall(begin, parts)) != len(re.findall(end, parts)) for begin, end in _PAIRS)
        if is_open or _UNFINISHED.search(answer):
            raise ScoreError(
                f"task {task.task_id}: the answer {answer[:80]!r} in the verifier is half a formula; write it as "
                "LaTeX, or use exact",
                reason="bad_verifier",
            )
    return right


def answer_of(text: str) -> str:
    r"""Return the part of a text that gives the answer; empty if none does.

    >>> answer_of(r"First \boxed{3}, then \boxed{x+1}."), answer_of("So the answer is: 3/4.")
    ('x+1', '3/4')
    """
    text = canonical_text(text)
    if (content := box_content(text)) is not None:
        return content.strip()
    line = text.strip()
    if announced := [match["answer"] for match in _ANSWER.finditer(text)]:
        line = announced[-1].strip("*_ ")
    elif "\n" in line:
        line = line.rpartition("\n")[2].removeprefix("####").strip()
    bare = line.strip().removesuffix(".")
    formulas = [match["dollars"] or match["brackets"] for match in _FORMULA.finditer(bare)]
    if len(formulas) > 1 and len(set(formulas)) > 1:
        return ""  # several, and none of them is marked
    return formulas[0].strip() if formulas else bare


def _is_equal(answer: str, text: str, task_id: str) -> bool:
    expected, number = read(answer), read(text)
    if expected is not None and number is not None:
        return number.value == expected.value and number.has_unit_of(expected)
    library = package()
    right, given = _formulas(answer), _formulas(text)
    if not right:
        raise ScoreError(
            f"task {task_id}: math-verify does not read the answer {answer[:80]!r} in the verifier; write it as LaTeX, "
            "or use exact",
            reason="bad_verifier",
        )
    if _IGNORED.search(f"{answer}\n{text}"):
        return "".join(answer.split()) == "".join(text.split())
    return bool(given) and bool(library.verify(right, given, float_rounding=DIGITS, timeout_seconds=None))


def _formulas(text: str) -> list[Any]:
    """Return the library's reading of a formula; nothing for one that would exhaust time or memory."""
    for pattern, latex in _PLAIN:
        text = pattern.sub(latex, text)
    if len(text) > MAX_CHARACTERS or _TOO_LARGE.search(text) or not text.strip():
        return []
    library = package()
    parsed: list[Any] = library.parse(
        f"${text}$",
        extraction_config=[library.LatexExtractionConfig()],
        fallback_mode="no_fallback",
        extraction_mode="first_match",
        parsing_timeout=None,
    )
    return parsed


@cache
def package() -> Any:
    """Return the math_verify module. Raises ScoreError(missing_package) with the way to get it."""
    try:
        import math_verify
    except ImportError as exc:
        raise ScoreError(
            f"math-verify is not usable here ({exc}); install it with `pip install 'streamward[math]'`",
            reason="missing_package",
        ) from exc
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its time limit is off
    return math_verify
