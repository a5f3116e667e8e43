"""Shapes of training rows, recognised by their columns; the question and the answer of each.

    fields ──► shape_of ──► chat | preference | verl | instruction | question | text
                              └──► question_of: what is asked; problems_of: what is wrong by that shape

Not covered: a table whose columns have other names; `--map` renames them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from plugins.data.cleaning.chat_faults import RowProblem, chat_problems, message_list_problems
from schemas.faults import names_in_quotes
from streams.stages.tasks.mapped_row import empty_columns

Shape = Literal["chat", "preference", "verl", "instruction", "question", "text", "unknown"]
Fields = Mapping[str, Any]
ANSWERS = ("answer", "solution", "output", "completion", "response", "ground_truth", "expected_answer", "target")


class _Columns(NamedTuple):
    needed: tuple[str, ...]
    question: str


SHAPES: dict[Shape, tuple[_Columns, ...]] = {
    "preference": (
        _Columns(("prompt", "chosen", "rejected"), "prompt"),
        _Columns(("chosen", "rejected"), "chosen"),
        _Columns(("input", "preferred_output", "non_preferred_output"), "input"),
    ),
    "chat": (_Columns(("messages",), "messages"),),
    "verl": (_Columns(("prompt", "reward_model"), "prompt"),),
    "instruction": (_Columns(("instruction", "output"), "instruction"),),
    "question": tuple(_Columns((name,), name) for name in ("question", "prompt", "problem", "query")),
    "text": (_Columns(("text",), "text"),),
}
"""The first match counts: the columns, and the one with the question."""
NAMES: tuple[Shape, ...] = tuple(SHAPES)


def shape_of(fields: Fields) -> Shape:
    """Return the shape of a row.

    >>> shape_of({"prompt": "1 + 1?", "chosen": "2", "rejected": "3"}), shape_of({"prompt": "1 + 1?", "answer": "2"})
    ('preference', 'question')
    """
    for name in SHAPES:
        if _columns(fields, name) is not None:
            return name
    return "unknown"


def _columns(fields: Fields, shape: Shape) -> _Columns | None:
    for columns in SHAPES.get(shape, ()):
        for name in columns.needed:
            if fields.get(name) is None:
                break
        else:
            return columns
    return None


def question_of(fields: Fields) -> str:
    """Return what a row asks: the text, or the messages of the user; of a shape that is not known, all its texts."""
    columns = _columns(fields, shape_of(fields))
    if columns is None:
        return "\n".join(texts_in(fields))
    value = fields[columns.question]
    if isinstance(value, Mapping):
        value = value.get("messages", "")
    if isinstance(value, str):
        extra = fields.get("input") if columns.question == "instruction" else None
        return f"{value}\n{extra}" if isinstance(extra, str) and extra else value
    messages = value if isinstance(value, list | tuple) else ()
    asked = (message for message in messages if isinstance(message, Mapping) and message.get("role") == "user")
    return "\n".join(text for message in asked for text in texts_in(message.get("content")))


def answer_of(fields: Fields) -> str | None:
    """Return the answer of a question in a column of its own; None if the row has no such column.

    >>> answer_of({"question": "1 + 1?", "answer": 2}), answer_of({"prompt": "?", "solution": None}), answer_of({})
    ('2', '', None)
    """
    if shape_of(fields) not in ("question", "instruction", "unknown"):
        return None
    answers = [fields[name] for name in ANSWERS if name in fields]
    texts = [str(answer).strip() for answer in answers if answer is not None]
    return None if not answers else next(filter(None, texts), "")


def texts_in(value: Any, *, by_key: bool = False) -> list[str]:
    """Return every text in a value, but roles; `by_key`: in the order of its keys, not as they are written."""
    texts: list[str] = []
    _collect(value, by_key, texts)
    return texts


def _collect(value: Any, by_key: bool, texts: list[str]) -> None:
    if isinstance(value, str):
        texts.append(value)
    elif isinstance(value, dict | Mapping):
        for name in sorted(value) if by_key else value:
            if name != "role":
                _collect(value[name], by_key, texts)
    elif isinstance(value, list | Sequence):
        for inner in value:
            _collect(inner, by_key, texts)


def problems_of(fields: Fields, shape: Shape) -> Iterator[RowProblem]:
    """Yield what is wrong with a row that should have this shape."""
    if shape == "unknown":
        has = ", ".join(fields) or "nothing"
        problem = f"most rows have the columns of no shape; it has {has[:120]}"
        yield RowProblem(
            "missing_columns", f"{problem}; name those of questions: --map prompt=COLUMN --map answer=COLUMN"
        )
    elif _columns(fields, shape) is None:
        needed = " or ".join(", ".join(columns.needed) for columns in SHAPES.get(shape, ()))
        wanted = {name for columns in SHAPES.get(shape, ()) for name in columns.needed}
        empty = [name for name in empty_columns(fields) if name in wanted]
        blank = f"; empty in this row: {names_in_quotes(empty)}" if empty else ""
        has = ", ".join(name for name, value in fields.items() if value is not None) or "nothing"
        name = "missing_messages_list" if shape == "chat" else "missing_columns"
        yield RowProblem(name, f"expected {needed}, as rows of shape {shape} have; it has {has[:120]}{blank}")
    elif shape == "chat":
        yield from chat_problems(fields)
    elif shape == "preference":
        yield from _preference_problems(fields)
    elif shape == "verl":
        yield from message_list_problems(fields["prompt"], "prompt")
        truth = fields["reward_model"]
        if not isinstance(truth, Mapping) or "ground_truth" not in truth:
            yield RowProblem("missing_ground_truth", "reward_model: expected an object with ground_truth")


def _preference_problems(fields: Fields) -> Iterator[RowProblem]:
    names = ("chosen", "rejected") if "chosen" in fields else ("preferred_output", "non_preferred_output")
    for name in names:
        if isinstance(fields[name], list):
            yield from message_list_problems(fields[name], name)
    if fields[names[0]] == fields[names[1]]:
        yield RowProblem("equal_answers", f"{names[0]} and {names[1]} are equal; a pair needs two answers")
