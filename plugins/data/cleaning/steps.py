"""The steps of cleaning, by name: each a pure function of rows and its options.

    rows, options ──► step ──► an outcome for each row: kept, changed (how), dropped (why)

The outcome of a row depends only on the row and those before it: no clock, no randomness, no file.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from plugins.data.cleaning.row_shapes import Shape, answer_of, problems_of, question_of, shape_of, texts_in
from plugins.data.contamination.suite_index import SuiteIndex
from streams.rows.near_duplicates import Clusters, join_similar
from streams.rows.question_text import letters_of, words_of
from streams.rows.row_texts import RowTexts, texts_of
from streams.scorers import personal_data
from streams.scorers.canonical_text import printable_text


class DataRow(NamedTuple):
    """A row of a file."""

    place: str
    """FILE:LINE"""
    fields: Mapping[str, Any]


class RowOutcome(NamedTuple):
    """What a step makes of a row."""

    fields: Mapping[str, Any] | None
    """None: it is dropped."""
    note: str = ""
    """How it was changed, or why it was dropped; empty: it is as it was."""


class StepOptions(BaseModel):
    """Strict types, no unknown options."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


Outcomes = Iterator[RowOutcome]
Step = Callable[[Sequence[DataRow], Any], Outcomes]


def _each(rows: Sequence[DataRow], outcome: Callable[[Mapping[str, Any]], RowOutcome]) -> Outcomes:
    return (outcome(row.fields) for row in rows)


# --- one row at a time ------------------------------------------------------------------------------------------------

_SPACE_AT_END = re.compile(r"(?<![ \t\u00a0])[ \t\u00a0]++(?=\n|$)")


class NormaliseOptions(StepOptions):
    """How texts are written."""

    form: Literal["NFC", "NFKC"] = "NFC"


def normalise(rows: Sequence[DataRow], options: NormaliseOptions) -> Outcomes:
    """Write texts in one Unicode form, with line ends and spaces of one kind, and without invisible characters."""

    def plain(text: str) -> str:
        if text.isascii() and text.isprintable():  # one line, and nothing invisible in it
            return text.strip()
        text = unicodedata.normalize(options.form, printable_text(text))
        return _SPACE_AT_END.sub("", text).strip()

    return _each(rows, lambda fields: _change(fields, plain, "texts are written in one form"))


_FIXED = frozenset({"role", "id", "tool_call_id", "type"})
"""Keys with texts that no person wrote."""


def _change(fields: Mapping[str, Any], change: Callable[[str], str], note: str) -> RowOutcome:
    after = map_texts(fields, change)
    return RowOutcome(fields) if after == fields else RowOutcome(after, note)


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a value with every text changed, but roles and ids of calls."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict | Mapping):
        return {name: inner if name in _FIXED else map_texts(inner, change) for name, inner in value.items()}
    return [map_texts(inner, change) for inner in value] if isinstance(value, list | tuple) else value


def drop_empty(rows: Sequence[DataRow], _: StepOptions) -> Outcomes:
    """Drop rows without text, and those with an empty answer if other rows have answers."""

    are_answered = any(answer_of(row.fields) for row in rows)

    def outcome(fields: Mapping[str, Any]) -> RowOutcome:
        if not any(text.strip() for text in texts_in(fields)):
            return RowOutcome(None, "it has no text")
        if not question_of(fields).strip():
            return RowOutcome(None, "it asks nothing")
        is_empty = are_answered and answer_of(fields) == ""
        return RowOutcome(None, "its answer is empty") if is_empty else RowOutcome(fields)

    return _each(rows, outcome)


class LengthOptions(StepOptions):
    """Bounds of the characters of a row's texts."""

    min_characters: int = Field(1, ge=0)
    max_characters: int = Field(100_000, ge=1)


def length(rows: Sequence[DataRow], options: LengthOptions) -> Outcomes:
    """Drop rows that are too short or too long."""

    def outcome(fields: Mapping[str, Any]) -> RowOutcome:
        count = sum(map(len, texts_in(fields)))
        if count < options.min_characters:
            return RowOutcome(None, f"fewer than {options.min_characters} characters")
        if count > options.max_characters:
            return RowOutcome(None, f"more than {options.max_characters} characters")
        return RowOutcome(fields)

    return _each(rows, outcome)


SCRIPTS = {
    "latin": "A-Za-zª-ʯᴀ-ᶿḀ-ỿ",
    "greek": "Ͱ-Ͽἀ-῿",
    "cyrillic": "Ѐ-ԯ",
    "hebrew": "֐-׿",
    "arabic": "؀-ۿݐ-ݿ",
    "devanagari": "ऀ-ॿ",
    "thai": "ก-๛",
    "hangul": "ᄀ-ᇿ가-힣",
    "kana": "぀-ヿ",
    "han": "㐀-䶿一-鿿",
}
_OF_SCRIPT = {name: re.compile(f"[{span}]") for name, span in SCRIPTS.items()}
ScriptName = Literal["latin", "greek", "cyrillic", "hebrew", "arabic", "devanagari", "thai", "hangul", "kana", "han"]


def _letters(text: str) -> dict[str, int]:
    """Return how many letters of each script a text has."""
    return {name: len(pattern.findall(text)) for name, pattern in _OF_SCRIPT.items()}


def script_of(text: str) -> str:
    """Return the script that most letters of a text are of.

    >>> script_of("Wie geht's?"), script_of("4 + 7 ="), script_of("Γειά σου, Ann")
    ('latin', 'none', 'greek')
    """
    counts = _letters(text)
    most = max(counts, key=lambda name: counts[name])
    return most if counts[most] else "none"


class LanguageOptions(StepOptions):
    """Scripts of the languages that rows may be in."""

    scripts: tuple[ScriptName, ...] = Field(("latin",), min_length=1)
    share: float = Field(0.8, gt=0, le=1)


def language(rows: Sequence[DataRow], options: LanguageOptions) -> Outcomes:
    """Drop rows that are mostly in other scripts."""

    def outcome(fields: Mapping[str, Any]) -> RowOutcome:
        texts = list(texts_in(fields))
        if "latin" in options.scripts and all(text.isascii() for text in texts):
            return RowOutcome(fields)
        counts = _letters("".join(texts))
        letters = sum(counts.values())
        if sum(counts[name] for name in options.scripts) >= options.share * letters:
            return RowOutcome(fields)
        most = max(counts, key=lambda name: counts[name])
        return RowOutcome(None, f"its script is {most}")

    return _each(rows, outcome)


class PersonalDataOptions(StepOptions):
    """The recognisers, and what to do with the row."""

    kinds: tuple[personal_data.Kind, ...] = Field(personal_data.KINDS, min_length=1)
    action: Literal["redact", "drop"] = "redact"


def drop_personal_data(rows: Sequence[DataRow], options: PersonalDataOptions) -> Outcomes:
    """Write [email], [card], … for what looks like personal data or a secret, or drop the row."""

    def outcome(fields: Mapping[str, Any]) -> RowOutcome:
        kinds: set[str] = set()

        def redact(text: str) -> str:
            spans = personal_data.find(text, options.kinds)
            kinds.update(span.kind for span in spans)
            return personal_data.redact(text, spans) if spans else text

        after = map_texts(fields, redact)
        if not kinds:
            return RowOutcome(fields)
        return RowOutcome(None if options.action == "drop" else after, f"it has {', '.join(sorted(kinds))}")

    return _each(rows, outcome)


class SchemaOptions(StepOptions):
    """The shape that rows must have."""

    shape: Literal["auto", "chat", "preference", "verl", "instruction", "question", "text"] = "auto"


def schema(rows: Sequence[DataRow], options: SchemaOptions) -> Outcomes:
    """Drop rows without the shape of the others, or with a fault in it."""
    shape = common_shape(rows) if options.shape == "auto" else options.shape

    def outcome(fields: Mapping[str, Any]) -> RowOutcome:
        problem = next(problems_of(fields, shape), None)
        return RowOutcome(fields) if problem is None else RowOutcome(None, f"{problem.name}: {problem.text}")

    return _each(rows, outcome)


def common_shape(rows: Sequence[DataRow]) -> Shape:
    """Return the shape that most rows have; of several, the one that comes first."""
    counts = Counter(shape_of(row.fields) for row in rows)
    return counts.most_common(1)[0][0] if counts else "unknown"


# --- rows among others ------------------------------------------------------------------------------------------------


def duplicates(rows: Sequence[DataRow], _: StepOptions) -> Outcomes:
    """Drop rows that equal an earlier one, ignoring case, punctuation, Unicode form and order of keys."""
    letters = [hash(tuple(map(letters_of, texts_in(row.fields, by_key=True)))) for row in rows]
    counts = Counter(letters)
    first: dict[int, str] = {}
    for row, of_row in zip(rows, letters, strict=True):
        if counts[of_row] == 1:  # no other row has its letters, so none has its words
            yield RowOutcome(row.fields)
            continue
        key = hash(tuple(words_of(text).exact for text in texts_in(row.fields, by_key=True)))
        earlier = first.setdefault(key, row.place)
        yield RowOutcome(row.fields) if earlier == row.place else RowOutcome(None, f"as {earlier}")


def contradictions(rows: Sequence[DataRow], _: StepOptions) -> Outcomes:
    """Drop all rows that ask one question and give different answers: nothing says which of them is right."""
    answers: dict[int, dict[int, str]] = {}
    keys = [_question_and_answer(row.fields) for row in rows]
    for row, (question, answer) in zip(rows, keys, strict=True):
        if answer is not None:
            answers.setdefault(question, {}).setdefault(answer, row.place)
    for row, (question, answer) in zip(rows, keys, strict=True):
        rival = next((place for key, place in answers.get(question, {}).items() if key != answer), None)
        if answer is None or rival is None:
            yield RowOutcome(row.fields)
        else:
            yield RowOutcome(None, f"{rival} asks the same and has another answer")


def _question_and_answer(fields: Mapping[str, Any]) -> tuple[int, int | None]:
    """Return what is compared of a row; None as the answer of one that is no question with a short answer."""
    answer = answer_of(fields)
    question = hash(words_of(question_of(fields)).exact) if answer else 0
    return question, hash(words_of(answer).exact or answer) if answer else None


class NearDuplicatesOptions(StepOptions):
    """How alike two questions may be."""

    bound: float = Field(0.8, gt=0, le=1)


def near_duplicates(rows: Sequence[DataRow], options: NearDuplicatesOptions) -> Outcomes:
    """Drop rows whose question is almost that of an earlier one (streams/rows/near_duplicates.py)."""
    clusters = Clusters(len(rows))
    join_similar([question_of(row.fields) for row in rows], options.bound, clusters)
    for number, row in enumerate(rows):
        root = clusters.root(number)
        is_first = root == number
        yield RowOutcome(row.fields) if is_first else RowOutcome(None, f"almost as {rows[root].place}")


def leave_out_held_out(rows: Sequence[DataRow], index: SuiteIndex) -> Outcomes:
    """Drop rows that give a held-out question away."""
    for row in rows:
        leak = next((m for m in index.matches(RowTexts(row.place, texts_of(row.fields))) if m.is_leak), None)
        if leak is None:
            yield RowOutcome(row.fields)
        else:
            yield RowOutcome(None, f"question {leak.question.number} of suite {leak.question.suite} ({leak.rule})")


class NamedStep(NamedTuple):
    """A step, and what its options are."""

    run: Step
    options: type[StepOptions]


STEPS: dict[str, NamedStep] = {
    "normalise": NamedStep(normalise, NormaliseOptions),
    "schema": NamedStep(schema, SchemaOptions),
    "drop_empty": NamedStep(drop_empty, StepOptions),
    "length": NamedStep(length, LengthOptions),
    "language": NamedStep(language, LanguageOptions),
    "personal_data": NamedStep(drop_personal_data, PersonalDataOptions),
    "duplicates": NamedStep(duplicates, StepOptions),
    "contradictions": NamedStep(contradictions, StepOptions),
    "near_duplicates": NamedStep(near_duplicates, NearDuplicatesOptions),
}
"""In the order in which `clean` takes them by default, without `language`, which needs the scripts."""
DEFAULT = tuple(name for name in STEPS if name != "language")
CONTAMINATION = "contamination"
"""The step that leaves out what suites hold out; it comes last."""
