"""Parse messages and tools from outside, in the same way at every entry point.

    a task's line, an example to tune on, a question of a job, a call of chat ──► MessageIn ──► Message

Both forms of a call are read: OpenAI's, with `function`, and a task's own, {"id", "name", "arguments"}. Null is absent,
`developer` is `system`, parts of text are joined by line breaks, and empty arguments are `{}`. Images, sound, refusals,
and arguments that are not an object are refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError

from schemas import json_text
from schemas.events import Message, Tool, ToolCall
from schemas.faults import Ignored, OutsideObject, Refused, faults, refusal
from schemas.older_forms import FUNCTIONS

TEXT_ALONE = "the model reads and writes text alone"
NO_CACHE_KEYS = "prefixes are cached without keys"
OLD_CALLS = FUNCTIONS.text
MEDIA = frozenset(
    {
        *("image", "image_url", "input_image", "audio", "audio_url", "input_audio", "video", "video_url"),
        *("file", "input_file", "document"),
    }
)
"""Types of parts that are not text."""


T = TypeVar("T")


def join_texts(texts: Iterable[str]) -> str:
    """Return the text of a content that came in parts, the same in every protocol."""
    return "\n".join(texts)


def check_part(part: Any) -> Any:
    """Return a part of a content. Raises for one that is an image, sound, or another thing than text."""
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind in MEDIA:
        raise refusal(f"it is of type {kind}, and {TEXT_ALONE}")
    if kind == "refusal":
        raise refusal("what the model says is text")
    return part


class TextPart(OutsideObject):
    """A text."""

    type: Literal["text", "input_text", "output_text"]
    text: str
    annotations: Annotated[Any, Refused(TEXT_ALONE, [])] = None
    logprobs: Annotated[Any, Ignored("the log has them")] = None
    prompt_cache_breakpoint: Annotated[Any, Ignored(NO_CACHE_KEYS)] = None


def _parts(content: object) -> object:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise PydanticCustomError("content", "expected a text, or a list of parts of text")
    return content


Part = Annotated[TextPart, BeforeValidator(check_part)]
Content = Annotated[list[Part], BeforeValidator(_parts, json_schema_input_type=str | list[TextPart])]
"""A text, or its parts."""


class JsonTextBudget:
    """Maximum number of values in the JSON texts of a value, together; the `context` of its validation."""

    def __init__(self, values: int) -> None:
        self._left = values

    def spend(self, text: str) -> None:
        """Count the values of one. Raises json_text.ExtentError if there are too many."""
        self._left -= json_text.check_extent(text, self._left)


def _arguments(arguments: object, info: ValidationInfo) -> str:
    if isinstance(arguments, str) and not arguments.strip():
        return "{}"
    try:
        if isinstance(arguments, str) and isinstance(info.context, JsonTextBudget):
            info.context.spend(arguments)
        value = json_text.parse(arguments) if isinstance(arguments, str) else arguments
        may_have_nan = not isinstance(arguments, str) or "NaN" in arguments or "Infinity" in arguments
        text = json.dumps(value, allow_nan=False) if may_have_nan else ""
    except (TypeError, ValueError, RecursionError) as exc:
        raise PydanticCustomError("arguments", "they are not JSON: {why}", {"why": str(exc)}) from exc
    if not isinstance(value, dict):
        raise PydanticCustomError("arguments", "expected a JSON object, or its text")
    return arguments if isinstance(arguments, str) else text


Arguments = Annotated[str, BeforeValidator(_arguments, json_schema_input_type=str | dict[str, Any])]
"""Of a tool call: a JSON object, or its text, which is kept as it is."""


class FunctionIn(OutsideObject):
    """Which function is called, and how."""

    name: str = Field(min_length=1)
    arguments: Arguments | None = None


class CallIn(OutsideObject):
    """A call that the model made: with `function`, as OpenAI writes it, or with `name` and `arguments`, as a task."""

    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionIn | None = None
    name: str | None = Field(None, min_length=1)
    arguments: Arguments | None = None
    index: Annotated[int | None, Ignored("calls are in the order of the list")] = None

    @model_validator(mode="after")
    def _is_written_in_one_way(self) -> CallIn:
        if self.function is not None and (self.name, self.arguments) != (None, None):
            raise ValueError("give either function, or name and arguments")
        if self.function is None and self.name is None:
            raise ValueError("name is required, of the function that is called")
        return self

    @property
    def call(self) -> ToolCall:
        """The call as the log has it."""
        written = self.function or self
        return ToolCall(id=self.id, name=written.name or "", arguments=written.arguments or "{}")


def _role(role: object) -> object:
    if role == "function":
        raise PydanticCustomError("older_form", "{text}", {"text": FUNCTIONS.text})
    return role


class MessageIn(OutsideObject):
    """A message: its text, and of the model the calls that it made."""

    role: Annotated[Literal["system", "developer", "user", "assistant", "tool"], BeforeValidator(_role)]
    content: Content | None = None
    name: str | None = None
    tool_call_id: str | None = Field(None, description="of a tool's result")
    tool_calls: list[CallIn] | None = Field(None, description="of the assistant")
    refusal: Annotated[Any, Refused("the model's words are its content")] = None
    annotations: Annotated[Any, Refused(TEXT_ALONE, [])] = None
    audio: Annotated[Any, Refused(TEXT_ALONE)] = None
    function_call: Annotated[Any, Refused(OLD_CALLS)] = None

    @model_validator(mode="after")
    def _fits_its_role(self) -> MessageIn:
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"tool_calls are the assistant's, and the role is {self.role}")
        if self.tool_call_id is not None and self.role != "tool":
            raise ValueError(f"tool_call_id belongs to a result of a tool, and the role is {self.role}")
        if self.content is None and self.role not in ("assistant", "tool"):
            raise ValueError(f'content is required, since the role is {self.role}; "" is an empty text')
        return self

    @property
    def message(self) -> Message:
        """The message as the log has it."""
        return Message(
            role="system" if self.role == "developer" else self.role,
            content=join_texts(part.text for part in self.content or ()),
            name=self.name,
            tool_call_id=self.tool_call_id,
            tool_calls=tuple(call.call for call in self.tool_calls or ()),
        )


def not_empty(messages: list[T]) -> list[T]:
    """Return messages. Raises ValueError if there are none."""
    if not messages:
        raise ValueError("it is empty; expected at least one message")
    return messages


Conversation = Annotated[list[MessageIn], AfterValidator(not_empty), Field(json_schema_extra={"minItems": 1})]
"""Messages, at least one."""


def _schema(schema: Any) -> dict[str, Any]:
    """Check the JSON schema of a tool's parameters as far as templates and clients read it: an object's fields."""
    try:
        schema = json_text.parse(schema) if isinstance(schema, str) else schema
    except ValueError as exc:
        raise PydanticCustomError("tool_schema", "it is not JSON: {why}", {"why": str(exc)}) from exc
    if not isinstance(schema, dict):
        raise PydanticCustomError("tool_schema", "expected a JSON schema, an object")
    if schema.get("type", "object") != "object":
        raise PydanticCustomError("tool_schema", 'its "type" has to be "object"')
    properties, required = schema.get("properties") or {}, schema.get("required") or []
    if not isinstance(properties, dict) or not all(isinstance(each, dict | bool) for each in properties.values()):
        raise PydanticCustomError("tool_schema", '"properties" has to be an object of JSON schemas')
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise PydanticCustomError("tool_schema", '"required" has to be a list of names')
    return schema


ToolSchema = Annotated[dict[str, Any], AfterValidator(_schema)]
"""JSON schema of a tool's parameters."""


def _schema_text(schema: Any) -> str:
    """Return a schema as text, which is kept as it is where it came so."""
    value = _schema(schema)
    return schema if isinstance(schema, str) else json.dumps(value)


SchemaText = Annotated[str, BeforeValidator(_schema_text, json_schema_input_type=str | dict[str, Any])]


class ToolFunctionIn(OutsideObject):
    """What a tool is called and takes; `parameters` is a JSON schema, or its text."""

    name: str = Field(min_length=1)
    description: str | None = None
    parameters: SchemaText | None = None
    strict: Annotated[bool | None, Ignored("arguments follow the schema where a call is forced")] = None


class ToolIn(OutsideObject):
    """A function that may be called: with `function`, as OpenAI writes it, or with `name`, as a task."""

    type: Literal["function"] = "function"
    function: ToolFunctionIn | None = None
    name: str | None = Field(None, min_length=1)
    description: str | None = None
    parameters: SchemaText | None = None

    @model_validator(mode="after")
    def _is_written_in_one_way(self) -> ToolIn:
        if (self.function is None) == (self.name is None):
            raise ValueError("give either function, or name, description and parameters")
        return self

    @property
    def tool(self) -> Tool:
        """The tool as the log has it."""
        written = self.function or self
        return Tool(
            name=written.name or "",
            description=written.description or "",
            parameters=written.parameters or "{}",
        )


def read_as(kind: Any, value: Any, path: str) -> Any:
    """Return messages or tools, as `kind` reads them; `path` is their own. Raises ValueError with the first fault."""
    try:
        return _adapter(kind).validate_python(value)
    except ValidationError as exc:
        raise ValueError(next(faults(exc, kind, value, path)).text) from exc


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
