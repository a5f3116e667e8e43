"""The text of a prompt: each {{variable}} becomes its value, once.

    template, values ──► {{name}} ──► the value as text ──► message

A `{{` without its `}}` is refused: no model reads a typing error. A value is data. It is inserted and never parsed:
braces in it are braces, and nothing in it is run. The name of a control token in it stays text, as in every message
(streams/engines/rendering/chat_template.py).

A text has the same bytes in every process and release: numbers are written as in JSON, objects in their order.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

VariableType = Literal["string", "integer", "number", "boolean", "json"]
"""Types of values; json: anything that JSON can express."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
"""Valid names of variables."""
MOST_BYTES = 64 * 1024
"""Maximum bytes of a prompt's texts together, in UTF-8."""
MOST_PLACES = 100
"""Maximum number of variables in a prompt's texts together."""
_PLACE = re.compile(r"\{\{([^{}]*)\}\}")


class Variable(Protocol):
    """A variable of a prompt."""

    @property
    def name(self) -> str:
        """The name between the braces."""

    @property
    def type(self) -> VariableType:
        """The type of its value."""


def names_in(template: str) -> list[str]:
    """Return the names of the variables in a text, each once, in order.

    >>> names_in("{{city}} in {{ year }}, {not} this")
    ['city', 'year']
    """
    return list(dict.fromkeys(match[1].strip() for match in _PLACE.finditer(template)))


def template_problems(texts: Sequence[str], variables: Sequence[Variable]) -> Iterator[str]:
    """Yield the faults of a prompt's texts and declared variables; if they are too large, only that."""
    if (size := sum(len(text.encode(errors="replace")) for text in texts)) > MOST_BYTES:
        yield f"its texts have {size:,} bytes; expected at most {MOST_BYTES:,}"
        return
    if (places := sum(len(_PLACE.findall(text)) for text in texts)) > MOST_PLACES:
        yield f"its texts have {places} places for variables; expected at most {MOST_PLACES}"
        return
    for number, text in enumerate(texts):
        if (offset := _unclosed_offset(text)) is not None:
            yield (
                f"messages[{number}].content: the {{{{ at character {offset} is not closed: {text[offset:][:40]!r}; "
                "expected {{name}}, without another brace in it. A text with such braces can be the value of a variable"
            )
    declared = [variable.name for variable in variables]
    for name in declared:
        if NAME.fullmatch(name) is None:
            yield f"variable {name[:80]!r} has no usable name; expected letters, digits and _, at most 64 of them"
    if repeated := sorted({name for name in declared if declared.count(name) > 1}):
        yield f"variable {repeated[0]} is declared twice; declare it once"
    used = list(dict.fromkeys(name for text in texts for name in names_in(text)))
    for name in used:
        if NAME.fullmatch(name) is None:
            yield (
                f"{{{{{name[:80]}}}}} is no variable: nothing is computed in a prompt. Expected a name between the "
                "braces; a text that has such braces can be the value of a variable"
            )
        elif name not in declared:
            yield f"{{{{{name}}}}} is not declared; add {name} to variables, with its type"
    for name in declared:
        if name not in used:
            yield f"variable {name} is declared, and no message has {{{{{name}}}}}; use it, or leave it out"


def _unclosed_offset(text: str) -> int | None:
    """Return the place of the first `{{` that begins no variable, or None."""
    offset = text.find("{{")
    while offset >= 0:
        if (match := _PLACE.match(text, offset)) is None:
            return offset
        offset = text.find("{{", match.end())
    return None


def value_problems(variables: Sequence[Variable], values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the faults of the values of a prompt's variables."""
    declared = {variable.name: variable.type for variable in variables}
    for name, kind in declared.items():
        if name not in values:
            yield f"variable {name} ({kind}) has no value; give it one"
        elif (wrong := _why_not(kind, values[name])) is not None:
            yield f"variable {name} is {wrong}; expected {_EXPECTED[kind]}"
    for name in values:
        if name not in declared:
            names = ", ".join(declared) or "none"
            yield f"there is no variable {str(name)[:80]!r}; the variables of the prompt: {names}. Leave it out"


def render(template: str, values: Mapping[str, Any]) -> str:
    """Return a text with its variables replaced by values. Raises KeyError for a missing one.

    >>> render("{{a}} + {{b}}", {"a": "{{b}}", "b": 2})
    '{{b}} + 2'
    """
    return _PLACE.sub(lambda match: value_text(values[match[1].strip()]), template)


def value_text(value: Any) -> str:
    """Return the text of a value.

    >>> [value_text(value) for value in ("a", 2, 0.5, True, {"b": ["ä"]})]
    ['a', '2', '0.5', 'true', '{"b": ["ä"]}']
    """
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)


def types_of(template: Iterable[str]) -> dict[str, VariableType]:
    """Return the variables of texts without a declared type, as strings."""
    return {name: "string" for text in template for name in names_in(text)}


_EXPECTED: dict[VariableType, str] = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "json": "what JSON can say",
}


def _why_not(kind: VariableType, value: Any) -> str | None:
    """Return the type of a value if it is not this one."""
    match kind:
        case "string":
            fits = isinstance(value, str)
        case "integer":
            fits = isinstance(value, int) and not isinstance(value, bool)
        case "number":
            fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        case "boolean":
            fits = isinstance(value, bool)
        case "json":
            fits = _is_json(value)
    return None if fits else repr(value)[:80]


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True
