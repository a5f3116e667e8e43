"""Values from outside as pydantic models, and the same wording of faults at every entry point.

    class Line(OutsideObject): …        strict types, no unknown fields, no NaN; null is absent
    ValidationError ──► faults ──► ValueFault(kind, path, message): `messages[0].role: Input should be … (got 'wizard')`

Refused and Ignored mark a field that is not used, with the reason.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, ValidationError, model_validator
from pydantic.annotated_handlers import GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

SHOWN_CHARACTERS = 80
"""Maximum characters of a wrong value in a message."""
LONGEST_PATH = 500
"""Maximum characters of a path; a sender may choose any length for an unknown field."""
MOST_FAULTS = 100
"""Maximum faults reported for one value, which may have as many as parts."""
IN_DESCRIPTION = "x-streamward"
"""Key in the description of the HTTP interface for a field that is refused or ignored."""


WORDS = {
    **dict.fromkeys(("list_type", "tuple_type"), "expected a list"),
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "expected an object"),
}
"""Types of errors that pydantic words after the target type."""


class OutsideObject(BaseModel):
    """An object from outside."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, fields: Any) -> Any:
        if not isinstance(fields, dict) or None not in fields.values():
            return fields
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True)
class Ignored:
    """Marks a field that changes no answer."""

    why: str

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "description": f"ignored: {self.why}", IN_DESCRIPTION: "ignored"}


class Refused:
    """Marks a field that cannot be honored: only null, and the values that ask for nothing, are accepted."""

    def __init__(self, why: str, *neutral: object) -> None:
        self.why, self.neutral = why, neutral

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        description = {"description": f"refused: {self.why}", IN_DESCRIPTION: "refused"}
        nulls = [] if schema.get("schema", {}).get("type") == "str" else [None]
        return {"enum": [*nulls, *self.neutral], **description}

    def _check(self, value: object) -> object:
        is_neutral = any(
            value == neutral and isinstance(value, bool) == isinstance(neutral, bool) for neutral in self.neutral
        )
        if value is not None and not is_neutral:
            raise refusal(f"{self.why}; {self.way_out}")
        return value

    @property
    def way_out(self) -> str:
        """What to send instead."""
        values = " or ".join(json.dumps(value) for value in self.neutral)
        return f"leave it out, or send {values}" if values else "leave it out"


def refusal(why: str) -> PydanticCustomError:
    """Return the error of a validator for a value that is well formed but not supported."""
    return PydanticCustomError("refused", "{why}", {"why": why})


class ValueFault(NamedTuple):
    """One fault of a value."""

    kind: Literal["invalid", "missing", "unknown", "refused"]
    path: str
    """Path of the wrong part, such as `messages[0].content`; empty: the whole."""
    message: str
    hint: str = ""
    """For an unknown field, the probably intended name, or all valid ones."""
    reason: str = ""
    """The message without the value."""

    @property
    def text(self) -> str:
        """The message with its hint."""
        return f"{self.message}; {self.hint}" if self.hint else self.message


def faults(exc: ValidationError, model: Any, value: Any, inside: str = "") -> Iterator[ValueFault]:
    """Yield the faults that `model` found in `value` at the path `inside`; at most MOST_FAULTS."""
    for error in exc.errors(include_url=False)[:MOST_FAULTS]:
        path = excerpt_of(_path_in(inside, path_of(error["loc"], value)), LONGEST_PATH)
        reason = error["msg"]
        message = reason.removeprefix("Value error, ")
        if error["type"] == "extra_forbidden":
            hint = _hint(model, error["loc"])
            yield ValueFault("unknown", path, f"there is no field {in_quotes(path)}", hint, reason)
        elif error["type"] == "refused":
            yield ValueFault("refused", path, f"{path} is not supported: {message}", reason=reason)
        elif error["type"] == "missing":
            yield ValueFault("missing", path, f"{path} is required", reason=reason)
        else:
            message = WORDS.get(error["type"], message)
            got = "" if error["type"] == "value_error" else f" (got {excerpt(error['input'])})"
            yield ValueFault("invalid", path, f"{path}: {message}{got}" if path else f"{message}{got}", reason=reason)


def excerpt(value: Any) -> str:
    """Return a value for a message, shortened if long."""
    if isinstance(value, str):
        value = value[: SHOWN_CHARACTERS + 1]
    return excerpt_of(repr(value), SHOWN_CHARACTERS)


def excerpt_of(text: str, length: int) -> str:
    """Return a text, cut to this many characters."""
    return text if len(text) <= length else text[: length - 1] + "…"


def path_of(location: tuple[int | str, ...], value: Any) -> str:
    """Return the path of an error, without the names of alternatives that pydantic adds to the keys."""
    path = ""
    for n, step in enumerate(location):
        rest = location[n + 1 :]
        if isinstance(step, int):
            path += f"[{step}]" if isinstance(value, list) else ""  # a single text is read as a list of one
            value = value[step] if isinstance(value, list) and step < len(value) else None
        elif isinstance(value, dict) and (
            not rest or isinstance(value.get(step), dict | list) or (isinstance(rest[0], int) and step in value)
        ):
            path = f"{path}.{step}".lstrip(".")
            value = value.get(step)
        elif isinstance(value, dict) and step in value and len(rest) == 1 and rest[0] not in value:
            return f"{path}.{step}".lstrip(".")  # a word, and the alternative that it is none of
    return path


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the hint for a misspelt name."""
    names = sorted(names)
    close = difflib.get_close_matches(name[:LONGEST_PATH], names, n=1, cutoff=0.55)
    return (f"did you mean {close[0]}? " if close else "") + f"known: {', '.join(names) or 'none'}"


def nearest_own(name: str, names: Iterable[str]) -> str:
    """Return the hint for a misspelt name that begins with a tenant and a dot, among names of that tenant.

    >>> nearest_own("red.sumz", ["red.sums", "blue.sums", "opal"]), nearest_own("red.x", ["blue.x"])
    ('did you mean red.sums? known: red.sums', 'known: none')
    """
    tenant, dot, _ = name.partition(".")
    return nearest(name, (known for known in names if not dot or known.startswith(f"{tenant}.")))


def in_quotes(name: str) -> str:
    """Return the name of a field or a column, in quotes if it has anything but letters, digits, and _ . - [ ]"""
    return name if re.fullmatch(r"[\w.\[\]-]+", name) else f'"{name!r:.80}"'.replace("'", "")


def names_in_quotes(names: Iterable[str]) -> str:
    return ", ".join(map(in_quotes, names))


def _path_in(path: str, rest: str) -> str:
    return f"{path}{'.' if path and rest and not rest.startswith('[') else ''}{rest}"


def _hint(model: Any, location: tuple[int | str, ...]) -> str:
    """Return the probable name of an unknown field: a similar name, or all valid ones."""
    models = list(_models(model))
    for step in location[:-1]:
        fields = (field for each in models for name, field in each.model_fields.items() if step in (name, field.alias))
        models = [inner for field in fields for inner in _models(field.annotation)] or models
    names = sorted({field.alias or name for each in models for name, field in each.model_fields.items()})
    close = difflib.get_close_matches(str(location[-1])[:LONGEST_PATH], names, n=1, cutoff=0.55)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(names) or 'none'}"


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models that a value of this type may be."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)
