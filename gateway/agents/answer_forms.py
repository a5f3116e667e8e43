"""The forms that a client may force on an answer, in the terms of each protocol.

    response_format, text.format, output_config.format ─┐
    tool_choice, parallel_tool_calls                    ┴──► AnswerForm, and the parameter that asked for it

A call that is forced excludes text, so a format has no effect on it. Where tools are offered, a format leaves the
choice between text and calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Discriminator, Field, Tag

from gateway.http.body import Body, compact
from schemas.events import Tool
from schemas.faults import Ignored
from streams.engines.rendering.answer_form import JSON_OBJECT, AnswerForm
from streams.errors import CallError

NOT_SHOWN = "the model does not see it; say in a message what you want"
ALWAYS_STRICT = "an answer always follows the schema"
FORMAT = "text, any JSON object, or JSON of a schema, which bears no loss"
PARALLEL = "false: at most one call, and the answer ends with it"

Schema = Annotated[dict[str, Any], Field(alias="schema")]
"""A JSON schema. A keyword that cannot be enforced is refused when the call begins."""


class TextFormat(Body):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(Body):
    """Any JSON object."""

    type: Literal["json_object"]


class SchemaFormat(Body):
    """JSON of a schema, as responses have it."""

    type: Literal["json_schema"]
    wanted: Schema
    name: Annotated[str | None, Ignored(NOT_SHOWN)] = None
    description: Annotated[str | None, Ignored(NOT_SHOWN)] = None
    strict: Annotated[bool | None, Ignored(ALWAYS_STRICT)] = None


class NamedSchema(Body):
    """A schema with its name."""

    wanted: Schema = Field({}, alias="schema")
    name: Annotated[str | None, Ignored(NOT_SHOWN)] = None
    description: Annotated[str | None, Ignored(NOT_SHOWN)] = None
    strict: Annotated[bool | None, Ignored(ALWAYS_STRICT)] = None


class ChatSchemaFormat(Body):
    """JSON of a schema, as chat has it."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


class MessagesSchemaFormat(Body):
    """JSON of a schema, as messages have it."""

    type: Literal["json_schema"]
    wanted: Schema


class NamedFunction(Body):
    """Which function is to be called."""

    name: str


class ChatFunctionChoice(Body):
    """A function that has to be called, as chat has it."""

    type: Literal["function"]
    function: NamedFunction


class FunctionChoice(Body):
    """A function that has to be called, as responses have it."""

    type: Literal["function"]
    name: str


def _is_word(value: object) -> str:
    return "word" if isinstance(value, str) else "named"


Word = Annotated[Literal["auto", "none", "required"], Tag("word")]
CHOICES = "`auto`, `none`, `required`, or the function that has to be called"
ChatToolChoice = Annotated[Word | Annotated[ChatFunctionChoice, Tag("named")], Discriminator(_is_word)]
ResponsesToolChoice = Annotated[Word | Annotated[FunctionChoice, Tag("named")], Discriminator(_is_word)]
Format = TextFormat | JsonObjectFormat | SchemaFormat | ChatSchemaFormat | MessagesSchemaFormat


class ToolsChoice(NamedTuple):
    """Whether tools are called."""

    kind: Literal["auto", "none", "required"] = "auto"
    name: str | None = None
    """The one that has to be called; None: any."""
    several: bool = True

    @classmethod
    def of(cls, choice: object, name: str | None, several: bool | None) -> ToolsChoice:
        """Return the choice in OpenAI's parameters; `name`: a function that has to be called."""
        if name is not None or choice == "required":
            return cls("required", name, several is not False)
        return cls("none" if choice == "none" else "auto", None, several is not False)


FormParameters = tuple[str, str, str]
"""What a protocol calls the format, the choice of tools, and whether there may be several calls."""


class ForcedForm(NamedTuple):
    """The forced form of the answer to a `ModelCall`."""

    form: AnswerForm | None = None
    form_parameter: str | None = None
    one_call: str | None = None


def forced(
    tools: Sequence[Tool], choice: ToolsChoice, text_format: Format | None, parameters: FormParameters
) -> ForcedForm:
    """Return the form that is forced. Raises CallError for a choice that cannot be made."""
    of_format, of_choice, of_several = parameters
    names = tuple(tool.name for tool in tools)
    if choice.kind == "required":
        chosen = names if choice.name is None else (choice.name,)
        if not chosen or not set(chosen) <= set(names):
            problem = "there are no tools" if not names else f"there is no tool {choice.name}, only {', '.join(names)}"
            raise CallError("invalid", f"{of_choice} asks for a call, and {problem}", of_choice)
        return ForcedForm(AnswerForm(tools=chosen, several=choice.several), of_choice)
    offered = names if choice.kind == "auto" else ()
    schema = _schema(text_format, of_format)
    if schema is not None:
        return ForcedForm(AnswerForm(schema=schema, tools=offered, several=choice.several), of_format)
    return ForcedForm(one_call=of_several if offered and not choice.several else None)


def _schema(text_format: Format | None, parameter: str) -> str | None:
    if text_format is None or isinstance(text_format, TextFormat):
        return None
    if isinstance(text_format, JsonObjectFormat):
        return JSON_OBJECT
    named = text_format.json_schema if isinstance(text_format, ChatSchemaFormat) else text_format
    return compact(named.wanted, parameter)
