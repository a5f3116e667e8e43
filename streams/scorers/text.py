"""Scorers that read only the text.

    exact     the answer, to the visible character                1 or 0
    numeric   the answer as a number, within a tolerance          1 or 0
    regex     a pattern of the task's author                      1 or 0
    format    the shape of an answer, right or wrong              1 or 0
    length    1 up to a free length, then falling to 0 at a limit

canonical_text.py defines equal texts, and numbers.py reads numbers. Format and length are for shaping, as small parts
of a mix: they make wrong answers of a group differ in reward. For formulas use `math`; for equivalence of meaning
("eleven") reasoning-gym, an entry point or the judge.
"""

from __future__ import annotations

import json
import re
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field, model_validator

from schemas.events import Response, Task
from streams.scorers.canonical_text import canonical_text
from streams.scorers.numbers import WrittenNumber, pick, read
from streams.scorers.verdict import ScoreError, ScorerOptions, Verdict, answers

_SHAPES = {
    "bare_integer": re.compile(r"[-+]?\d+", re.ASCII),
    "bare_number": re.compile(r"[-+]?\d+(?:\.\d+)?", re.ASCII),
    "leading_digit": re.compile(r"\d.*", re.ASCII | re.DOTALL),
    "one_line": re.compile(r"[^\r\n]+"),
}

Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Exact(ScorerOptions):
    """Settings of `exact`."""

    ignore_case: bool = False
    strip: bool = True
    """Ignore white space around both."""


def exact(task: Task, response: Response, settings: Exact) -> Verdict:
    """Return 1 if the text is (one of) the answers, else 0."""

    def plain(text: str) -> str:
        text = canonical_text(text.casefold() if settings.ignore_case else text)
        return text.strip() if settings.strip else text

    return _yes(plain(response.text) in {plain(right) for right in answers(task, "exact")})


class Numeric(ScorerOptions):
    """Settings of `numeric`."""

    number: Literal["only", "first", "last"] = "only"
    """Which number counts; `only` wants nothing else in the text but a unit. Rewarding the last number in a sentence
    teaches sentences: a small model trained on sums that way ended in "The answer is N." for every question."""
    tolerance: NotNegative = 0.0
    relative: NotNegative = 0.0
    """Further tolerance, as a share of the answer."""


def numeric(task: Task, response: Response, settings: Numeric) -> Verdict:
    """Return 1 if the number in the text is within `tolerance + relative * |answer|` of (one of) the answers, else 0.

    Exact arithmetic: 0.1 is 0.1, and 100 digits are compared to the last.
    """
    right = numeric_answers(task)
    number = read(response.text) if settings.number == "only" else pick(response.text, settings.number)
    return _yes(number is not None and any(_near(number, answer, settings) for answer in right))


def numeric_answers(task: Task) -> list[WrittenNumber]:
    """Return the answers of a task as numbers. Raises ScoreError(bad_verifier)."""
    right = []
    for answer in answers(task, "numeric"):
        number = read(answer)
        if number is None:
            raise ScoreError(
                f"task {task.task_id}: the answer {answer[:80]!r} in the verifier is no number; use exact or "
                "math, or write a number and nothing else, e.g. 3.5, 3/4 or 12 km",
                reason="bad_verifier",
            )
        right.append(number)
    return right


def _near(number: WrittenNumber, answer: WrittenNumber, settings: Numeric) -> bool:
    allowed = Fraction(str(settings.tolerance)) + Fraction(str(settings.relative)) * abs(answer.value)
    return number.has_unit_of(answer) and abs(number.value - answer.value) <= allowed


class Regex(ScorerOptions):
    """Settings of `regex`."""

    pattern: str = Field(max_length=10_000)
    """Compiling a pattern takes time too, in the agent itself: 6 s for a million characters."""
    mode: Literal["fullmatch", "search"] = "fullmatch"
    ignore_case: bool = False
    dot_all: bool = False
    strip: bool = True

    @model_validator(mode="after")
    def _compiles(self) -> Regex:
        try:
            re.compile(canonical_text(self.pattern))
        except (re.error, RecursionError, OverflowError) as exc:
            raise ValueError(f"pattern is not a regular expression: {exc}") from exc
        return self


def regex(task: Task, response: Response, settings: Regex) -> Verdict:
    """Return 1 if the pattern matches, else 0. Patterns can take for ever, so this runs in a worker process."""
    flags = (re.IGNORECASE if settings.ignore_case else 0) | (re.DOTALL if settings.dot_all else 0)
    text = canonical_text(response.text)
    text = text.strip() if settings.strip else text
    compiled = re.compile(canonical_text(settings.pattern), flags)
    return _yes((compiled.fullmatch if settings.mode == "fullmatch" else compiled.search)(text) is not None)


class Format(ScorerOptions):
    """Settings of `format`."""

    shape: Literal["bare_integer", "bare_number", "leading_digit", "one_line", "prefix", "json_object"]
    characters: Positive = 1
    """For `prefix`: how many characters of the answer the text must begin with."""


def format_(task: Task, response: Response, settings: Format) -> Verdict:
    """Return 1 if the text has the shape, else 0. `prefix`: it begins as (one of) the answers does."""
    text = canonical_text(response.text).strip()
    if settings.shape == "prefix":
        starts = (answer.strip()[: settings.characters] for answer in answers(task, "format prefix"))
        return _yes(any(start and text.startswith(start) for start in starts))
    if settings.shape == "json_object":
        try:
            return _yes(isinstance(json.loads(text), dict))
        except (ValueError, RecursionError):
            return _yes(False)
    return _yes(_SHAPES[settings.shape].fullmatch(text) is not None)


class Length(ScorerOptions):
    """Settings of `length`."""

    unit: Literal["tokens", "characters"] = "tokens"
    free: Annotated[int, Field(ge=0)] = 0
    limit: Positive

    @model_validator(mode="after")
    def _limit_is_beyond(self) -> Length:
        if self.limit <= self.free:
            raise ValueError(f"limit {self.limit} must be larger than free {self.free}")
        return self


def length(task: Task, response: Response, settings: Length) -> Verdict:
    """Return 1 up to `free`, 0 from `limit`, and a straight line between: (limit - n) / (limit - free).

    The soft overlong punishment of DAPO (arXiv:2503.14476, section 3.4), shifted from [-1, 0] to [0, 1].
    """
    n = response.completion_tokens if settings.unit == "tokens" else len(response.text)
    value = (settings.limit - n) / (settings.limit - settings.free)
    return Verdict(min(1.0, max(0.0, value)), {"length": float(n)})


def _yes(condition: bool) -> Verdict:
    return Verdict(1.0 if condition else 0.0)
