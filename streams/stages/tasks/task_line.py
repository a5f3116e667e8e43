"""The form of a task's line: its fields, their types, and what they may be written as.

a row's fields ──► read_line ──► TaskLine, or WrongFields
"""

from __future__ import annotations

import datetime
import decimal
import json
import math
import uuid
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from schemas.conventions import CONTAMINATION_ALLOWED_BY
from schemas.conversation import Conversation, ToolIn
from schemas.events import Purpose, RewardSource
from schemas.faults import OutsideObject, ValueFault, faults


def _as_text(value: Any) -> Any:
    """Return a number as its text, without an exponent, anything else as it is."""
    if isinstance(value, float):
        return f"{decimal.Decimal(repr(value)):f}"
    return json.dumps(value) if isinstance(value, int) else value


def _texts(values: Any) -> Any:
    """Return an object with its numbers as texts and without its nulls, anything else as it is."""
    if not isinstance(values, Mapping):
        return values
    return {name: _as_text(value) for name, value in values.items() if value is not None}


def _metadata(values: Any) -> Any:
    """Return metadata as `_texts`. Raises an error that pydantic accepts, for a permission that only a job's task
    has."""
    if isinstance(values, Mapping) and CONTAMINATION_ALLOWED_BY in values:
        raise PydanticCustomError(
            "permission", f"{CONTAMINATION_ALLOWED_BY} is set by a job that is allowed it, not by a task; leave it out"
        )
    return _texts(values)


def _as_answer(value: Any) -> Any:
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, bool) or not (
            isinstance(text, str | int) or (isinstance(text, float) and math.isfinite(text))
        ):
            raise PydanticCustomError("answer", "expected a text, a number, or a list of these")
    return value


def _answer_texts(answer: str | float | list[str | int | float]) -> Any:
    return [_as_text(text) for text in answer] if isinstance(answer, list) else _as_text(answer)


Answer = Annotated[
    str | int | float | list[str | int | float], BeforeValidator(_as_answer), AfterValidator(_answer_texts)
]
"""One right answer, or several; numbers become texts, as which a CSV file has them, too."""
Text = Annotated[str, BeforeValidator(_as_text)]
"""A text; data sets have numbers in such columns, too."""


class SamplingLine(OutsideObject):
    """How tokens are drawn."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 256
    seed: int | None = None
    stop: tuple[str, ...] = Field((), strict=False)


class EnvironmentLine(OutsideObject):
    """The environment that a task takes place in, or an entry of the registry; settings as an object or JSON text."""

    name: str = Field(min_length=1)
    settings: str | dict[str, Any] = "{}"
    seed: int


class RewardSourceLine(OutsideObject):
    """A scorer, its weight, and its settings as an object or as its JSON text; a text alone is a scorer's name."""

    name: str
    weight: float = 1.0
    settings: str | dict[str, Any] = "{}"

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, given: Any) -> Any:
        return {"name": given} if isinstance(given, str) else given

    def reward_source(self) -> RewardSource:
        """Return it in the form of events."""
        return RewardSource(name=self.name, weight=self.weight, settings=json_of(self.settings))


class PromptLine(OutsideObject):
    """A prompt that a task's messages begin with; a text alone is NAME, NAME@3 or NAME@ALIAS."""

    name: str = Field(min_length=1, description="NAME, NAME@3 or NAME@ALIAS; NAME alone is NAME@production")
    variables: dict[str, Any] = Field(default_factory=dict, description="the value of each variable: data, never run")

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, given: Any) -> Any:
        return {"name": given} if isinstance(given, str) else given


class TaskLine(OutsideObject):
    """One line of a submission."""

    prompt: Text | None = Field(None, description="shorthand for one user message")
    system: Text | None = Field(None, description="shorthand for a system message before the prompt")
    answer: Answer | None = Field(None, description="shorthand for a verifier with this answer, checked with exact")
    task_id: Annotated[str, Field(min_length=1), BeforeValidator(_as_text)] | None = None
    created_at: int | None = None
    traceparent: str | None = None
    metadata: Annotated[dict[str, str], BeforeValidator(_metadata)] = Field(default_factory=dict)
    user: Text | None = Field(None, description="the person whose words these are, if words are sealed here")
    policy: str = Field(min_length=1)
    purpose: Purpose = "train"
    scenario: Text = "default"
    tenant: Text | None = None
    group_size: int = 8
    deadline_at: int | None = None
    adapter_version: int | None = None
    sampling: SamplingLine = SamplingLine()
    verifier: str | dict[str, Any] | None = None
    agent: str | None = Field(None, min_length=1)
    max_turns: int | None = None
    thread: Text | None = None
    environment: EnvironmentLine | None = None
    prompt_version: PromptLine | None = Field(None, description="a prompt of the log, before the task's own messages")
    tools: list[ToolIn] = Field(default_factory=list)
    tool_ids: list[str] = Field(default_factory=list, description="tools of the registry by their ids")
    reward_sources: list[RewardSourceLine] | None = None
    messages: Conversation | None = None

    @model_validator(mode="after")
    def _says_each_thing_once(self) -> TaskLine:
        if (self.prompt is None) == (self.messages is None) and (self.prompt or self.prompt_version is None):
            raise ValueError("give either prompt or messages")
        if self.system is not None and self.prompt is None:
            raise ValueError("system goes with prompt; write it as the first of messages")
        if self.answer is not None and self.verifier is not None:
            raise ValueError("give either answer or verifier; answer is short for a verifier with that answer")
        return self


class WrongFields(ValueError):
    """Fields of a line are wrong."""

    def __init__(self, wrong: list[ValueFault]) -> None:
        super().__init__("; ".join(fault.text for fault in wrong))
        self.faults = wrong


def read_line(fields: Mapping[str, Any]) -> TaskLine:
    """Return the line of a row's fields. Raises WrongFields, ValueError for a value that JSON does not have."""
    try:
        return TaskLine.model_validate_json(json.dumps(fields, default=plain))
    except ValidationError as exc:
        raise WrongFields(list(faults(exc, TaskLine, fields))) from exc
    except (TypeError, ValueError, RecursionError) as exc:  # a number too long to be text, or a value of no JSON type
        raise ValueError(f"not usable as JSON: {exc}") from exc


def json_of(given: str | dict[str, Any]) -> str:
    """Return an object as JSON; a text is JSON already."""
    return given if isinstance(given, str) else json.dumps(given)


def plain(value: Any) -> str:
    """Return a Parquet cell of a type unknown to JSON as text. Raises TypeError if it has no text form."""
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return f"{value:f}"
    if isinstance(value, uuid.UUID):
        return str(value)
    raise TypeError(f"a value of {type(value).__name__} is no text, number, list or record")
