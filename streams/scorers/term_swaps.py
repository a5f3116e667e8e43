"""Swap terms in a text, as `he` and `she`, and score both: what a score owes to such a term alone.

    task, response ──► the same with each term's counterpart ──► two verdicts ──► their mean        scorer `swapped`

Whole words only, in the case of what they replace. A term with two counterparts takes the first pair that has it: `her`
becomes `his`.

Not covered: grammar. A swap that needs other words around it does not fit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pydantic import Field, field_validator

from schemas import json_text
from schemas.events import Message, Response, Task
from streams.scorers.retries import sum_of
from streams.scorers.verdict import ScorerOptions, Verdict

SWAPPED = "swapped"
TermPair = tuple[str, str]
GENDER: tuple[TermPair, ...] = (
    ("he", "she"),
    ("his", "her"),
    ("him", "her"),
    ("himself", "herself"),
    ("man", "woman"),
    ("men", "women"),
    ("boy", "girl"),
    ("boys", "girls"),
    ("father", "mother"),
    ("son", "daughter"),
    ("brother", "sister"),
    ("husband", "wife"),
    ("Mr", "Ms"),
    ("male", "female"),
)
"""The default terms."""


def read_terms(text: str) -> tuple[TermPair, ...]:
    """Return the pairs in `he=she, his=her`; of an empty text the default ones. Raises ValueError."""
    parts = [part.partition("=") for part in text.split(",") if part.strip()]
    pairs = tuple((first.strip(), second.strip()) for first, _, second in parts) or GENDER
    TermSwaps(pairs)
    return pairs


class TermSwaps:
    """Pairs of terms that take each other's place."""

    def __init__(self, pairs: Iterable[TermPair] = GENDER) -> None:
        """Raises ValueError for a term that is empty, or its own counterpart."""
        self.pairs = tuple(pairs)
        self._counterpart: dict[str, str] = {}
        self._firsts = {first.casefold() for first, _ in self.pairs}
        for first, second in self.pairs:
            if not first.strip() or not second.strip() or first.casefold() == second.casefold():
                raise ValueError(f"{first!r} and {second!r} are no pair; expected two different terms")
            self._counterpart.setdefault(first.casefold(), second)
            self._counterpart.setdefault(second.casefold(), first)
        terms = sorted(self._counterpart, key=len, reverse=True)
        self._pattern = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, terms)) or '(?!)'})(?!\w)", re.IGNORECASE)

    def swap(self, text: str) -> str:
        """Return a text with the counterpart of each term."""
        return self._pattern.sub(self._counterpart_of, text)

    def swap_value(self, value: Any) -> Any:
        """Return JSON data with the counterparts in its texts."""
        if isinstance(value, str):
            return self.swap(value)
        if isinstance(value, list):
            return [self.swap_value(part) for part in value]
        return {name: self.swap_value(part) for name, part in value.items()} if isinstance(value, dict) else value

    def is_first(self, text: str) -> bool | None:
        """Return whether the first term of a text is the first of its pair; None: it has no term."""
        match = self._pattern.search(text)
        return None if match is None else match[0].casefold() in self._firsts

    def swap_task(self, task: Task) -> Task:
        """Return a task whose question and right answer have the counterparts."""
        return replace(
            task,
            messages=tuple(self._swap_message(message) for message in task.messages),
            verifier=self._swap_json(task.verifier),
        )

    def swap_response(self, response: Response) -> Response:
        """Return a response that says the counterparts."""
        return replace(response, text=self.swap(response.text))

    def _counterpart_of(self, match: re.Match[str]) -> str:
        term, other = match[0], self._counterpart[match[0].casefold()]
        if term.isupper() and len(term) > 1:
            return other.upper()
        return other[:1].upper() + other[1:] if term[:1].isupper() else other

    def _swap_message(self, message: Message) -> Message:
        return replace(message, content=self.swap(message.content))

    def _swap_json(self, text: str) -> str:
        """Return JSON with the counterparts in its strings; what is no JSON stays."""
        try:
            return json.dumps(self.swap_value(json_text.parse(text)), ensure_ascii=False)
        except ValueError:
            return text


class SwappedScorer(ScorerOptions):
    """A scorer whose verdicts are averaged over a text and its swap."""

    scorer: str
    settings: dict[str, Any] = Field(default_factory=dict)
    terms: tuple[TermPair, ...] = GENDER

    @field_validator("terms")
    @classmethod
    def _are_pairs(cls, terms: tuple[TermPair, ...]) -> tuple[TermPair, ...]:
        TermSwaps(terms)
        return terms


def average(verdict: Verdict, other: Verdict) -> Verdict:
    """Return the mean of two verdicts: with the sums of their components, which are costs, and both values.

    One that abstains counts for nothing.
    """
    version = f"swapped/1[{verdict.version}]"
    values = [value for value in (verdict.value, other.value) if value is not None]
    if len(values) < 2:
        return replace(verdict if verdict.value is not None else other, version=version)
    steps = tuple((first + second) / 2 for first, second in zip(verdict.steps, other.steps, strict=False))
    components = sum_of(verdict.components, other.components) | {"as_written": values[0], "swapped": values[1]}
    return Verdict(sum(values) / 2, components, verdict.rationale, version, steps)
