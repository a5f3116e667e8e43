r"""Columns that become fields of a task, and the --map for common shapes of data sets.

    --map answer=reward_model.ground_truth ──► value_of(row, column)
    a row of verl, TRL, OpenAI, ShareGPT, Alpaca, GSM8K, MATH ──► fitting_columns(row) ──► the --map that reads it

A column is a name, or a path of names and list places: `messages.-1.content`. Its last step may be `:-1`, a list
without its last item; `####`, the part after the last #### of a text, as in GSM8K; `boxed`, the last \boxed{} of a
text, as in MATH. The texts of columns joined by + become lines of one, as Alpaca's instruction+input.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from schemas import json_text
from schemas.faults import in_quotes, nearest

CHATS = ("messages", "prompt", "conversations", "conversation", "chat", "dialogue", "question", "input")
"""Columns that may be a list of messages."""
QUESTIONS = ("prompt", "question", "problem", "query", "instruction", "input", "user", "text")
ANSWERS = (
    *("answer", "reward_model.ground_truth", "ground_truth", "final_answer", "expected_answer", "reference_answer"),
    *("correct_answer", "target", "label", "expected", "solution", "output", "completion", "response", "gold"),
)
MEANT = {
    **dict.fromkeys(("question", "query", "problem", "instruction", "input", "user"), "prompt"),
    **dict.fromkeys(("target", "label", "solution", "output", "expected", "ground_truth", "completion"), "answer"),
    **dict.fromkeys(("scorer", "scorers", "reward", "rewards", "reward_source"), "reward_sources"),
    **dict.fromkeys(("n", "samples", "num_generations", "responses"), "group_size"),
    **dict.fromkeys(("system_prompt", "instructions"), "system"),
    **dict.fromkeys(("chat", "conversation", "conversations"), "messages"),
    **{"id": "task_id", "max_tokens": "sampling.max_tokens", "temperature": "sampling.temperature"},
}
"""Other programs' and data sets' names for a task's fields."""
SETTINGS = ("system", "group_size", "sampling.max_tokens", "sampling.temperature")
"""Fields with a meaning that would be lost without their column."""
PARTS_OF_QUESTIONS = ("choices", "options", "context", "passage", "image", "images")
"""Columns that are part of a row's question: no --map is offered for rows that have them."""
SHAREGPT_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "observation": "tool"}
_LIST_PLACE = re.compile(r"-?\d+")
_LIST_PART = re.compile(r"(-?\d+)?:(-?\d+)?")


def value_of(row: Mapping[str, Any], column: str) -> Any:
    """Return the value of a column, None if it is empty. Raises ValueError if the row has no such column."""
    if column in row:
        return row[column]
    if "+" in column:
        texts = [value_of(row, part) for part in column.split("+")]
        return "\n".join(str(text) for text in texts if text is not None and text != "")
    value: Any = row
    for step in column.split("."):
        if value is not None:
            value = _step(value, step, column)
    return value


def fields_from(row: Mapping[str, Any], columns: Mapping[str, str]) -> tuple[dict[str, Any], set[str]]:
    """Return the value of each field's column, and the columns of the row that they are in. Raises ValueError."""
    values: dict[str, Any] = {}
    for path, column in columns.items():
        try:
            value = value_of(row, column)
        except ValueError as exc:
            raise ValueError(f"{map_options({path: column})}: {exc}") from exc
        values[path] = as_messages(value) if path == "messages" else value
    return values, {name for column in columns.values() for name in top_names(row, column)}


def put_field(line: dict[str, Any], path: str, value: Any, *, unless_there: bool = False) -> None:
    """Set a field, or a key of a field that is an object, as in `sampling.max_tokens`."""
    name, dot, key = path.partition(".")
    if dot:
        inside = line.get(name, {})
        if not isinstance(inside, Mapping):  # a mistake, which is named when the line is checked
            return
        line[name] = {key: value, **inside} if unless_there else {**inside, key: value}
    elif not unless_there or name not in line:
        line[name] = value


def top_names(row: Mapping[str, Any], column: str) -> set[str]:
    """Return the columns of a row at which a column's path begins."""
    return {column} if column in row else {part.partition(".")[0] for part in column.split("+")}


def as_messages(value: Any) -> Any:
    """Return messages, also those in JSON text, and ShareGPT's, {"from", "value"}; anything else as it is."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = json_text.parse_or_text(value)
    if not isinstance(value, list) or not all(isinstance(turn, Mapping) and "from" in turn for turn in value):
        return value
    return [
        {"role": SHAREGPT_ROLES.get(turn["from"], turn["from"]), "content": turn.get("value"), **_other_keys(turn)}
        for turn in value
    ]


def fitting_columns(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the column for `messages` or `prompt`, and for `answer`, if the row has a known shape; else {}."""
    if any(row.get(name) for name in PARTS_OF_QUESTIONS):
        return {}
    answer = next(filter(None, (_answer_column(row, name) for name in ANSWERS)), None)
    settings = {MEANT[name]: name for name in row if MEANT.get(name) in SETTINGS}
    for name in filter(None, (_actual_name(row, name) for name in CHATS)):
        roles = _roles(row.get(name))
        if roles and roles[-1] != "assistant":
            return _without_own({"messages": name, "answer": answer, **settings})
        if roles:
            text = "content" if "content" in row[name][-1] else "value"
            return _without_own({"messages": f"{name}.:-1", "answer": answer or f"{name}.-1.{text}", **settings})
    columns = filter(None, (_actual_name(row, name) for name in QUESTIONS))
    question = next((name for name in columns if isinstance(row[name], str)), None)
    if question == "instruction" and "input" in row:
        question = "instruction+input"
    return {} if question is None else _without_own({"prompt": question, "answer": answer, **settings})


def map_options(columns: Mapping[str, str]) -> str:
    """Return the options, as they are typed in a shell."""
    return " ".join(f"--map {shlex.quote(f'{field}={column}')}" for field, column in columns.items())


def _step(value: Any, step: str, column: str) -> Any:
    """Return the value at a step of a path. Raises ValueError."""
    if isinstance(value, str) and value.lstrip().startswith(("{", "[")):
        value = json_text.parse_or_text(value)
    if isinstance(value, Mapping):
        if step not in value:
            raise ValueError(f"this line has no {in_quotes(column)}; {nearest(step, map(in_quotes, value))}")
        return value[step]
    if isinstance(value, list) and _LIST_PLACE.fullmatch(step) and -len(value) <= int(step) < len(value):
        return value[int(step)]
    if isinstance(value, list) and (part := _LIST_PART.fullmatch(step)):
        return value[slice(*(None if place is None else int(place) for place in part.groups()))]
    if isinstance(value, str) and step == "####" and "####" in value:
        return value.rpartition("####")[2].strip()
    if isinstance(value, str) and step == "boxed" and (boxed := _last_boxed(value)) is not None:
        return boxed
    kind = f"a list of {len(value)}" if isinstance(value, list) else f"{str(value)[:60]!r}"
    raise ValueError(f"this line has no {in_quotes(column)}: there is no {in_quotes(step)} in {kind}")


def _last_boxed(text: str) -> str | None:
    r"""Return the content of the last \boxed{} of a text, its braces matched."""
    start = text.rfind("\\boxed{") + len("\\boxed{")
    depth = 1
    for end in range(start, len(text) if start >= len("\\boxed{") else 0):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[start:end].strip()
    return None


def _roles(value: Any) -> list[str]:
    """Return the roles of a list of messages; none if it is something else."""
    messages = as_messages(value)
    if not isinstance(messages, list) or not all(isinstance(message, Mapping) for message in messages):
        return []
    return [str(message.get("role")) for message in messages]


def _actual_name(row: Mapping[str, Any], name: str) -> str | None:
    """Return a row's column of this name, else one that differs only in case or surrounding spaces."""
    return name if name in row else next((column for column in row if column.strip().lower() == name), None)


def _answer_column(row: Mapping[str, Any], name: str) -> str | None:
    """Return the column of the answer, with the step that its value needs; None if `name` is not the row's answer."""
    top, dot, path = name.partition(".")
    name = f"{_actual_name(row, top)}{dot}{path}"
    try:
        value = value_of(row, name)
    except ValueError:
        return None
    if _roles(value):
        return f"{name}.-1.content"
    if isinstance(value, list) and value and all(isinstance(item, str | int | float) for item in value):
        return name
    if not isinstance(value, str | int | float) or value == "":
        return None
    if isinstance(value, str) and "####" in value:
        return f"{name}.####"
    return f"{name}.boxed" if isinstance(value, str) and _last_boxed(value) is not None else name


def _without_own(columns: Mapping[str, str | None]) -> dict[str, str]:
    """Return the columns with another name than their field; the first, if all have its name."""
    present = {field: column for field, column in columns.items() if column is not None}
    renamed = {field: column for field, column in present.items() if field != column}
    return renamed or dict(list(present.items())[:1])


def _other_keys(turn: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in turn.items() if name not in ("from", "value")}
