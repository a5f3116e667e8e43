"""Read the body of a request; each parameter is used, refused or ignored.

    bytes (intake.py) ──► JSON ──► the protocol's Body ──► its translation
                          each field: a type, and Refused or Ignored (schemas/faults.py) with the reason

Nothing is dropped silently: an unknown parameter is refused by name, one that the server cannot honor is refused unless
its value has no effect, and the few that change no answer are ignored and listed in the answer. docs/protocols.md and
openapi.json are generated from the fields.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from schemas import json_text
from schemas.conversation import JsonTextBudget
from schemas.faults import MOST_FAULTS as MOST_WORDED, Ignored, Refused, ValueFault, faults
from streams.errors import CallError, CallErrorKind

KINDS: dict[str, CallErrorKind] = {
    "unknown": "unknown_parameter",
    "refused": "unsupported",
    "missing": "invalid",
    "invalid": "invalid",
}
"""Of an error, by the kind of the fault."""
MOST_FAULTS = 10
"""Most parameters of one body that an error message names."""
MOST_TEXT_VALUES = 100_000
"""Most values in the texts of a body that are JSON themselves: arguments of calls."""


class Body(BaseModel):
    """An object in a request; what it has no field for is refused."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True, protected_namespaces=())


class Answer(BaseModel):
    """An object in an answer, which has these fields and no others. Numbers that JSON has not are strings."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=(), ser_json_inf_nan="strings")


class OpenAnswer(Answer):
    """An object in an answer that may have more fields."""

    model_config = ConfigDict(extra="allow")


class FigureAnswer(OpenAnswer):
    """Figures by their names, beside what they are about."""

    __pydantic_extra__: dict[str, float] = Field(init=False)


class SecretBody(Body):
    """An object of which no error repeats values, or names that are none of its own."""

    model_config = ConfigDict(hide_input_in_errors=True)


class PathQuery(Body):
    """The parameters after the `?` of a path, whose values are texts."""

    model_config = ConfigDict(strict=False)


class NamedOnly(Body):
    """An object in a request that changes no answer, whatever it holds; it is named by its type."""

    model_config = ConfigDict(extra="ignore")
    type: str


def without_nulls(fields: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the fields of an object that are not null; null is what is not given."""
    return {name: value for name, value in (fields or {}).items() if value is not None}


def _whole(value: object) -> object:
    """Return a number without a fraction as a whole one: 16.0 is an integer in JSON Schema, and for some clients."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]


Read = TypeVar("Read", bound=Body)


def read(model: type[Read], raw: bytes) -> Read:
    """Return the body. Raises CallError that names every parameter that is wrong."""
    return _read(model, raw)[0]


def read_fields(model: type[Body], raw: bytes) -> dict[str, Any]:
    """Return the fields of a body as they were sent, once `model` has found no fault in them. Raises as `read`."""
    return dict(_read(model, raw)[1])


def read_query(model: type[Read], pairs: Iterable[tuple[str, str]]) -> Read:
    """Return the parameters of a path's query. Raises CallError as `read`, and for one that is given twice."""
    parameters: dict[str, str] = {}
    for name, value in pairs:
        if name in parameters:
            raise CallError("invalid", f"{name} is given twice; give it once", name)
        parameters[name] = value
    return checked(model, parameters)


def read_call(model: type[Read], raw: bytes) -> tuple[Read, str]:
    """Return the body, and the SHA-256 of its canonical form: sorted keys, no spaces. Raises as `read`."""
    body, value = _read(model, raw)
    try:
        canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError) as exc:
        raise CallError("invalid", f"the body cannot be written as JSON again: {exc}") from exc
    return body, hashlib.sha256(canonical.encode()).hexdigest()


def _read(model: type[Read], raw: bytes) -> tuple[Read, Any]:
    """Return the body, and its value as JSON; faults of fields are reported before numbers that are not JSON."""
    value = _parse(raw)
    body = checked(model, value)
    try:
        if json_text.may_be_infinite(raw):
            json_text.check_finite(value)
    except ValueError as exc:
        raise CallError("invalid", f"the body: {exc}") from exc
    return body, value


def _parse(raw: bytes) -> Any:
    try:
        return json_text.parse(raw)
    except json_text.RepeatedKeyError as exc:
        raise CallError("invalid", f"the body: {exc}") from exc
    except ValueError as exc:
        raise CallError("invalid", f"the body is not JSON: {exc}") from exc


def checked(model: type[Read], value: Any, inside: str = "") -> Read:
    """Return a value as a body; `inside` is its own path. Raises CallError that names every parameter that is wrong."""
    try:
        return model.model_validate(value, context=JsonTextBudget(MOST_TEXT_VALUES))
    except ValidationError as exc:
        hides = bool(model.model_config.get("hide_input_in_errors"))
        raise _call_error(exc, model, value, inside, hides=hides) from (None if hides else exc)


def ignored(body: BaseModel, path: str = "") -> tuple[str, ...]:
    """Return the paths of the ignored parameters in a body, without indices, each once."""
    paths: dict[str, None] = {}
    _note_ignored(body, path, paths)
    return tuple(paths)


def _note_ignored(value: object, path: str, paths: dict[str, None]) -> None:
    """Add the paths in a value of a body; a conversation has thousands of objects, so this looks at few fields."""
    if isinstance(value, list):
        for item in value:
            _note_ignored(item, path, paths)
    elif isinstance(value, NamedOnly):
        paths[f"{path}.{value.type}"] = None
    elif isinstance(value, BaseModel):
        sent = value.model_fields_set
        for name, alias, is_ignored in _notable_fields(type(value)):
            if name in sent and (inner := getattr(value, name)) is not None:
                if is_ignored:
                    paths[f"{path}.{alias}".lstrip(".")] = None
                else:
                    _note_ignored(inner, f"{path}.{alias}".lstrip("."), paths)


@cache
def _notable_fields(model: type[BaseModel]) -> list[tuple[str, str, bool]]:
    """Return the fields that are ignored, or may hold objects: name, name in a request, whether it is ignored."""
    fields = []
    for name, field in sorted(model.model_fields.items()):
        is_ignored = any(isinstance(mark, Ignored) for mark in field.metadata)
        if is_ignored or _may_hold_objects(field.annotation):
            fields.append((name, field.alias or name, is_ignored))
    return fields


def _may_hold_objects(annotation: Any) -> bool:
    """Return whether a value of this type may be an object, or a list."""
    if get_origin(annotation) is Literal:
        return False
    parts = get_args(annotation)
    return any(map(_may_hold_objects, parts)) if parts else annotation not in (str, int, float, bool, type(None))


def use(model: type[BaseModel], name: str) -> tuple[Literal["used", "refused", "ignored"], str]:
    """Return whether a parameter is used, refused or ignored, and how or why in one sentence."""
    field = model.model_fields[name]
    for mark in field.metadata:
        if isinstance(mark, Ignored):
            return "ignored", mark.why
        if isinstance(mark, Refused):
            values = [f"`{json.dumps(value)}`" for value in mark.neutral]
            return "refused", mark.why + (f" (accepted: {', '.join(values)})" if values else "")
    return "used", field.description or ""


def compact(value: object, path: str) -> str:
    """Return JSON text in its shortest form, which the log can store. Raises CallError if it cannot."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        text.encode()
    except (ValueError, RecursionError) as exc:
        raise CallError("invalid", f"{path} cannot be written as JSON in UTF-8: {exc}", path) from exc
    return text


def _call_error(exc: ValidationError, model: type[BaseModel], value: object, inside: str, *, hides: bool) -> CallError:
    """Return one error for all faults in a body, with the kind and the parameter of the first."""
    problems, hints = dict[str, CallError](), set[str]()
    for fault in faults(exc, model, value, inside):
        if any(_overlap(fault.path, path) for path in problems):  # alternatives to one value are one problem
            continue
        once = fault._replace(hint="") if fault.hint in hints else fault
        problems[fault.path] = _problem(once, hides=hides)
        hints.add(fault.hint)
    first, *others = problems.values()
    if not others:
        return first
    messages = dict.fromkeys(problem.message for problem in (first, *others[: MOST_FAULTS - 1]))
    rest = len(problems) - MOST_FAULTS + max(exc.error_count() - MOST_WORDED, 0)
    more = f" | and {rest} more" if rest > 0 else ""
    return CallError(first.kind, " | ".join(messages) + more, first.parameter)


def _overlap(path: str, other: str) -> bool:
    """Return whether two paths lead to the same value, or one to a part of the other's."""
    shorter, longer = sorted((path, other), key=len)
    return longer.startswith(shorter) and longer[len(shorter) : len(shorter) + 1] in ("", ".", "[")


def _problem(fault: ValueFault, *, hides: bool) -> CallError:
    """Return the error of one fault; `hides`: without the value that is wrong."""
    if hides and fault.kind == "unknown":  # a value in place of a name may be a secret
        return CallError("unknown_parameter", "the body has a parameter that there is not; leave it out")
    if hides and fault.kind == "invalid":
        return CallError("invalid", f"{fault.path or 'the body'}: {fault.reason}", fault.path or None)
    return CallError(KINDS[fault.kind], fault.text, fault.path or None)
