"""Read the body of a request, and say of each of its parameters what becomes of it: used, refused or ignored.

    bytes ──► JSON ──► the protocol's Body ──► its translation
                       each field: a type, and Refused or Ignored with the reason

Nothing is dropped silently: an unknown parameter is refused by its name, one that the server cannot honor is refused
unless its value asks for nothing, and the few that change no answer are ignored, which the answer says. The fields are
the only table of this; the page about the protocols and the description of the interface are made of them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetJsonSchemaHandler,
    ValidationError,
)
from pydantic.annotated_handlers import GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema
from starlette.requests import Request

from schemas import json_text
from streams.errors import CallError

SHOWN_CHARACTERS = 80
"""Most characters of a wrong value in an error message."""
IN_DESCRIPTION = "x-streamward"
"""Where the description of the interface says of a parameter that it is refused or ignored."""


class Body(BaseModel):
    """An object in a request; what it has no field for is refused."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True, protected_namespaces=())


class Answer(BaseModel):
    """An object in an answer, which has these fields and no others. Numbers that JSON has not are strings."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=(), ser_json_inf_nan="strings")


class SecretBody(Body):
    """An object of which no error repeats values, or names that are none of its own."""

    model_config = ConfigDict(hide_input_in_errors=True)


class PathQuery(Body):
    """The parameters after the `?` of a path, whose values are texts."""

    model_config = ConfigDict(strict=False)


@dataclass(frozen=True)
class Ignored:
    """Marks a parameter that changes no answer."""

    why: str

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "description": f"ignored: {self.why}", IN_DESCRIPTION: "ignored"}


class Refused:
    """Marks a parameter that the server cannot honor: only null, and the values that ask for nothing, are accepted."""

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
            raise PydanticCustomError("refused", "{why}", {"why": self.why})
        return value


def _whole(value: object) -> object:
    """Return a number without a fraction as a whole one: 16.0 is an integer in JSON Schema, and for some clients."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]


Read = TypeVar("Read", bound=Body)
HALF_A_PAIR = re.compile(rb"\\u[dD][89abAB]|\\u[dD][c-fC-F]")
"""How the half of a surrogate pair is written in JSON; whole pairs are written so, too."""


async def sent(request: Request, max_bytes: int) -> bytes:
    """Return the body of a request. Raises CallError if it is longer than `max_bytes`; a declared length is enough."""
    too_large = CallError("too_large", f"the body is longer than {max_bytes} bytes (serve.max_body_mb); send less")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > max_bytes:
        raise too_large
    raw = bytearray()
    async for part in request.stream():
        raw += part
        if len(raw) > max_bytes:
            raise too_large
    return bytes(raw)


def read(model: type[Read], raw: bytes) -> Read:
    """Return the body. Raises CallError that names the first parameter that is wrong."""
    return checked(model, _parse(raw))


def read_as_json(model: type[Read], raw: bytes) -> Read:
    """Return the body, whose lists may be tuples, as JSON has no others. Raises as `read`."""
    value = _parse(raw)
    try:
        return model.model_validate_json(raw)
    except ValidationError as exc:
        raise _call_error(exc, value, "", hides=False) from exc


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
    value = _parse(raw)
    body = checked(model, value)
    try:
        canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError) as exc:
        raise CallError("invalid", f"the body cannot be written as JSON again: {exc}") from exc
    return body, hashlib.sha256(canonical.encode()).hexdigest()


def _parse(raw: bytes) -> Any:
    try:
        value = json_text.parse(raw)
        if HALF_A_PAIR.search(raw):  # JSON lets it in, and no UTF-8 can hold it: the log's text is UTF-8
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as exc:
        raise CallError("invalid", f"the body is not JSON: {exc}") from exc
    return value


def checked(model: type[Read], value: Any, inside: str = "") -> Read:
    """Return a value as a body; `inside` is its own path. Raises CallError that names the first parameter wrong."""
    try:
        return model.model_validate(value)
    except ValidationError as exc:
        hides = bool(model.model_config.get("hide_input_in_errors"))
        raise _call_error(exc, value, inside, hides=hides) from (None if hides else exc)


def ignored(body: Body, path: str = "") -> tuple[str, ...]:
    """Return the paths of the parameters that were sent and are ignored, without indices, each once."""

    def paths(value: list[Any] | Body, path: str) -> Iterator[str]:
        if isinstance(value, list):
            for item in value:
                if isinstance(item, list | Body):
                    yield from paths(item, path)
            return
        fields = _fields(type(value))
        for name in sorted(value.model_fields_set):
            inner, (alias, is_ignored) = getattr(value, name), fields[name]
            if is_ignored:
                yield from [f"{path}.{alias}".lstrip(".")] if inner is not None else []
            elif isinstance(inner, list | Body):
                yield from paths(inner, f"{path}.{alias}".lstrip("."))

    return tuple(dict.fromkeys(paths(body, path)))


@cache
def _fields(model: type[Body]) -> dict[str, tuple[str, bool]]:
    """Return the name of each field in a request, and whether it is ignored."""
    return {
        name: (field.alias or name, any(isinstance(mark, Ignored) for mark in field.metadata))
        for name, field in model.model_fields.items()
    }


def use(model: type[Body], name: str) -> tuple[Literal["used", "refused", "ignored"], str]:
    """Return what becomes of a parameter, and how or why in one sentence."""
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


def _call_error(exc: ValidationError, value: object, inside: str, *, hides: bool) -> CallError:
    error = exc.errors(include_url=False)[0]
    path = f"{inside}.{_path(error['loc'], value)}".strip(".")
    if error["type"] == "extra_forbidden" and hides:  # a value in the place of a name may be a secret
        return CallError("unknown_parameter", "the body has a parameter that there is not; leave it out")
    if error["type"] == "extra_forbidden":
        return CallError("unknown_parameter", f"{path}: there is no such parameter; leave it out", path)
    if error["type"] == "refused":
        return CallError("unsupported", f"{path} is not supported: {error['msg']}", path)
    if error["type"] == "missing":
        return CallError("invalid", f"{path} is required", path)
    if hides:
        return CallError("invalid", f"{path or 'the body'}: {error['msg']}", path or None)
    value_text = repr(error["input"])
    value_text = value_text if len(value_text) <= SHOWN_CHARACTERS else value_text[:SHOWN_CHARACTERS] + "…"
    return CallError("invalid", f"{path or 'the body'}: {error['msg']}; got {value_text}", path or None)


def _path(location: tuple[int | str, ...], value: Any) -> str:
    """Return where an error is, without the names of alternatives that pydantic adds to the keys."""
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
