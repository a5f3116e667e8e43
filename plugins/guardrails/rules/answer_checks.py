"""Checks of an answer: its schema, pattern, length and language, the tool that it has to call, and its sources.

answer, AnswerRules ──► one sentence for each rule that it breaks; none: it is valid

Overlap counts words, not meaning: an answer that denies what its sources say has the same words. Languages are
recognised by their most frequent words, from five words on.

Not covered: `format` in a JSON schema, and references to schemas elsewhere, which are never fetched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Literal

from pydantic import Field, model_validator

from plugins.guardrails.rules.linear_patterns import INSTALL, PatternError, compile_pattern
from schemas import json_text
from streams.errors import SettingsError
from streams.scorers.verdict import ScorerOptions

VERSION = 1
MOST_PROBLEMS = 20
Language = Literal["en", "de", "fr", "es", "it", "pt", "nl"]
_FREQUENT: dict[str, frozenset[str]] = {
    language: frozenset(words.split())
    for language, words in {
        "en": "the and of to in is that it for was on are with as this be by you not have from at or an",
        "de": "der die und das ist nicht ein eine zu den mit von sie auf für dem es im auch sich ich wird",
        "fr": "le la les et est des une un que pas pour dans du qui il sur ne se au ce plus avec sont par",
        "es": "el la los las y de que en es un una por con no se para del al su lo como más está pero",
        "it": "il la che di e un una è non per in del con si da le gli sono alla della nel ma come più",
        "pt": "o a os as e de que em um uma para com não se por do da no na é mais ao são como foi",
        "nl": "de het een en van is dat niet op te in zijn voor met die aan er ook als naar bij maar om",
    }.items()
}
LEAST_WORDS = 5
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")


class AnswerRules(ScorerOptions):
    """What an answer has to be. A rule that is not set is not checked."""

    json_schema: dict[str, Any] | None = Field(None, description="JSON schema (draft 2020-12) of the answer")
    pattern: str | None = Field(None, description="RE2 pattern that the whole answer has to match")
    min_characters: int = Field(0, ge=0, description="least length")
    max_characters: int | None = Field(None, ge=0, description="greatest length")
    language: Language | None = Field(None, description="language of the answer; texts of less than 5 words pass")
    tool: str | None = Field(None, description="tool that the answer has to call")
    least_overlap: float = Field(
        0.0, ge=0, le=1, description="share of the answer's words that its sources have to have; 0: not checked"
    )

    @model_validator(mode="after")
    def _is_usable(self) -> AnswerRules:
        if self.max_characters is not None and self.max_characters < self.min_characters:
            raise ValueError("max_characters is less than min_characters")
        try:
            if self.pattern is not None:
                compile_pattern(self.pattern)
            if self.json_schema is not None:
                _validator().check_schema(self.json_schema)
        except PatternError as exc:
            raise ValueError(f"pattern: {exc}") from None
        except SettingsError:
            raise
        except Exception as exc:  # a schema may break its library in any way
            raise ValueError(f"json_schema is not a schema ({type(exc).__name__})") from None
        return self


def answer_problems(
    text: str, rules: AnswerRules, *, sources: Sequence[str] = (), tools: Sequence[str] = ()
) -> Iterator[str]:
    """Yield a sentence for each rule that an answer breaks, without its text.

    `sources`: what was retrieved for it; `tools`: the names of those that it calls.
    """
    if rules.json_schema is not None:
        yield from _schema_problems(text, rules.json_schema)
    if rules.pattern is not None and compile_pattern(rules.pattern).fullmatch(text) is None:
        yield "pattern: the answer does not match it"
    if len(text) < rules.min_characters:
        yield f"min_characters: the answer has {len(text)} characters, expected {rules.min_characters} or more"
    if rules.max_characters is not None and len(text) > rules.max_characters:
        yield f"max_characters: the answer has {len(text)} characters, expected {rules.max_characters} or fewer"
    if rules.language is not None and (spoken := language_of(text)) not in (None, rules.language):
        yield f"language: the answer is in {spoken}, expected {rules.language}"
    if rules.tool is not None and rules.tool not in tools:
        yield f"tool: the answer does not call {rules.tool}"
    if rules.least_overlap and (share := overlap(text, sources)) < rules.least_overlap:
        yield f"least_overlap: {share:.2f} of its words are in its sources, expected {rules.least_overlap:.2f} or more"


def language_of(text: str) -> str | None:
    """Return the language with the most frequent words in a text; None: too few words, or none of them.

    >>> language_of("Das ist nicht die Antwort auf die Frage."), language_of("42")
    ('de', None)
    """
    spoken = [word.casefold() for word in _WORD.findall(text)]
    if len(spoken) < LEAST_WORDS:
        return None
    counts = {language: sum(word in frequent for word in spoken) for language, frequent in _FREQUENT.items()}
    best = max(counts, key=lambda language: counts[language])
    return best if counts[best] else None


def overlap(text: str, sources: Sequence[str]) -> float:
    """Return the share of a text's words that are in its sources, without frequent words; 1 for a text without any."""
    common = frozenset().union(*_FREQUENT.values())
    words = [word.casefold() for word in _WORD.findall(text)]
    words = [word for word in words if word not in common]
    source_words = {word.casefold() for source in sources for word in _WORD.findall(source)}
    return sum(word in source_words for word in words) / len(words) if words else 1.0


def _schema_problems(text: str, schema: dict[str, Any]) -> Iterator[str]:
    import referencing

    try:
        answer = json_text.parse(text)
    except ValueError:
        yield "json_schema: the answer is not JSON"
        return
    validator = _validator()(schema, registry=referencing.Registry())  # without one, it would fetch references
    try:
        for number, error in enumerate(validator.iter_errors(answer)):
            if number == MOST_PROBLEMS:
                return
            yield f"json_schema: {error.json_path} breaks {error.validator}"
    except (PatternError, SettingsError, RecursionError, referencing.exceptions.Unresolvable) as exc:
        yield f"json_schema: the schema cannot be used ({type(exc).__name__})"


@cache
def _validator() -> Any:
    """Return a validator of JSON schemas whose patterns run on RE2. Raises SettingsError if it is not installed."""
    try:
        import jsonschema
    except ImportError:
        raise SettingsError(f"json_schema needs jsonschema: {INSTALL}") from None

    def pattern(_: Any, rule: str, instance: Any, __: Any) -> Iterator[Any]:
        if isinstance(instance, str) and compile_pattern(rule).search(instance) is None:
            yield jsonschema.ValidationError("no match")

    def pattern_properties(validator: Any, rule: dict[str, Any], instance: Any, _: Any) -> Iterator[Any]:
        for sign, schema in rule.items() if isinstance(instance, dict) else ():
            for name, property_ in instance.items():
                if compile_pattern(sign).search(name) is not None:
                    yield from validator.descend(property_, schema, path=name, schema_path=sign)

    checks = {"pattern": pattern, "patternProperties": pattern_properties}
    return jsonschema.validators.extend(jsonschema.Draft202012Validator, checks)
