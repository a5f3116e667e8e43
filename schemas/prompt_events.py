"""Versions of a prompt, their variables, and what a search among them found."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

from schemas import json_text, prompt_text
from schemas.event_types import KIB, Int, Millis, PersonalJson
from schemas.message_types import Message
from schemas.prompt_text import VariableType

PromptKind = Literal["created", "activated", "shared", "reflected", "reported", "withdrawn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptVariable:
    """What is put into a prompt's messages, wherever they have {{name}}."""

    name: str
    type: VariableType = "string"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptUse:
    """The version of a prompt that messages begin with, whole: what they were rendered with stays with them."""

    name: str
    version: Int
    alias: Annotated[str | None, "by which it was named; null: by its version"] = None
    values: Annotated[str, "JSON object: the value of each variable", PersonalJson] = "{}"
    variables: tuple[PromptVariable, ...] = ()
    messages: Annotated[tuple[Message, ...], "of the version, with the names of its variables"] = ()

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"

    def render(self) -> tuple[Message, ...]:
        """Return the messages with the values in place of the variables. Raises ValueError, KeyError."""
        values = json_text.parse(self.values)
        return tuple(replace(message, content=prompt_text.render(message.content, values)) for message in self.messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptArm:
    """A version that a share of an alias's users gets."""

    version: Int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptReflection:
    """A model's answer about what is wrong with a prompt, and what that took."""

    request_digest: Annotated[str, "sha256 over what it was asked; the same question is asked once"]
    model: str
    text: str
    prompt_tokens: Int = 0
    completion_tokens: Int = 0
    cost_usd: Annotated[float | None, "null: no price is set"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptEvent:
    """A version of a prompt, or what one of its names means. The state of a prompt is the fold of these.

    A version never changes: its number, its text and its variables are those of its `created` for ever. One that was
    withdrawn is not named any more, by an alias or by what is new.
    """

    MOST_BYTES: ClassVar[int] = 256 * KIB
    event_id: Annotated[str, "uuid5(prompt, kind, sequence)"]
    prompt: Annotated[str, "key of the record: its name, which begins with its tenant's"]
    created_at: Millis
    traceparent: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    kind: PromptKind
    sequence: Annotated[Int, "compare and swap: how many events of the prompt took effect before this one"]
    actor: str
    reason: str
    version: Annotated[
        Int | None, "created, reported, withdrawn: which; activated: what the alias means from now on"
    ] = None
    alias: Annotated[str | None, "activated, shared: of the prompt"] = None
    job_id: Annotated[str | None, "that decided it; null: a person"] = None
    digest: Annotated[str | None, "created: sha256 over messages and variables; the same text is the same version"] = (
        None
    )
    metrics: Annotated[dict[str, float], "activated by a job, reported: what answers earned"] = field(
        default_factory=dict
    )
    reflection: Annotated[PromptReflection | None, "set exactly when it was reflected"] = None
    variables: Annotated[tuple[PromptVariable, ...], "created"] = ()
    messages: Annotated[tuple[Message, ...], "created: with {{name}} where a variable is put in"] = ()
    arms: Annotated[tuple[PromptArm, ...], "shared: among whom the alias is until it is activated again"] = ()


PROMPT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
"""What a prompt may be called."""
ALIAS = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
"""What an alias may be called; it is no number, since those are versions."""
PROMPT_ROLES = ("system", "user", "assistant", "tool")
MOST_VARIABLES = 100


def prompt_digest(messages: tuple[Message, ...], variables: tuple[PromptVariable, ...]) -> str:
    """Return the sha256 of a prompt's text: messages and variables."""
    said = [[message.role, message.name, message.content, *_calls_of(message)] for message in messages]
    return hashlib.sha256(
        json_text.one_line([said, [[variable.name, variable.type] for variable in variables]]).encode()
    ).hexdigest()


def _calls_of(message: Message) -> list[Any]:
    """Return the calls of a message and the call that it answers; nothing of a text alone."""
    if not message.tool_calls and message.tool_call_id is None:
        return []
    return [[[call.id, call.name, call.arguments] for call in message.tool_calls], message.tool_call_id]


def prompt_problems(event: PromptEvent) -> Iterator[str]:
    """Return one sentence for each rule that a prompt breaks."""
    if PROMPT_NAME.fullmatch(event.prompt) is None:
        yield f"prompt is {event.prompt[:140]!r}; expected a letter or digit, and then at most 127 of A-Z a-z 0-9 _ . -"
    if event.sequence < 0:
        yield f"sequence is {event.sequence}; expected 0 or more"
    if event.kind in ("created", "activated", "reported", "withdrawn") and (event.version or 0) < 1:
        yield f"kind is {event.kind} and version {event.version}; versions are 1, 2, 3 and so on"
    if (event.alias is not None) != (event.kind in ("activated", "shared")):
        yield f"kind is {event.kind} and alias {event.alias!r}; activated and shared alone have one"
    elif event.alias is not None and ALIAS.fullmatch(event.alias) is None:
        yield f"alias is {event.alias[:80]!r}; expected a letter, and then at most 63 of A-Z a-z 0-9 _ . -"
    if event.kind == "created":
        yield from prompt_text_problems(event.messages, event.variables)
        if event.digest != prompt_digest(event.messages, event.variables):
            yield f"digest is {event.digest}, which is not that of its text; it is that of a created version"
    elif event.messages or event.variables:
        yield f"kind is {event.kind} and messages or variables are set; those of a version never change"
    if (event.kind == "reflected") != (event.reflection is not None):
        yield f"kind is {event.kind} and reflection {'null' if event.reflection is None else 'set'}; reflected has one"
    if event.kind in ("shared", "reflected", "reported") and event.job_id is None:
        yield f"kind is {event.kind} and job_id is null; a job decides it"
    yield from _arm_problems(event)


def _arm_problems(event: PromptEvent) -> Iterator[str]:
    if event.kind != "shared":
        if event.arms:
            yield f"kind is {event.kind} and arms has {len(event.arms)}; only shared has any"
        return
    versions = [arm.version for arm in event.arms]
    if len(versions) < 2 or len(set(versions)) < len(versions) or min(versions) < 1:
        yield f"arms has versions {versions}; expected 2 or more, each once"
    if not all(arm.share > 0 for arm in event.arms) or abs(math.fsum(arm.share for arm in event.arms) - 1) > 1e-9:
        yield f"arms has shares {[arm.share for arm in event.arms]}; expected more than 0 each, and 1 together"


def prompt_text_problems(messages: tuple[Message, ...], variables: tuple[PromptVariable, ...]) -> Iterator[str]:
    """Yield what is wrong with the text of a prompt."""
    if not messages:
        yield "messages is empty; a prompt has at least one"
    for number, message in enumerate(messages):
        if message.role not in PROMPT_ROLES:
            yield f"messages[{number}].role is {message.role[:40]!r}; expected {', '.join(PROMPT_ROLES)}"
        if message.role == "system" and number:
            yield f"messages[{number}] is a system message; expected one at most, the first"
    yield from _call_problems(messages)
    if not any(message.content.strip() for message in messages):
        yield "every message is empty; a prompt has a text"
    if len(variables) > MOST_VARIABLES:
        yield f"there are {len(variables)} variables; expected at most {MOST_VARIABLES}"
        return
    yield from prompt_text.template_problems([message.content for message in messages], variables)


def _call_problems(messages: tuple[Message, ...]) -> Iterator[str]:
    """Yield calls without a result, results without a call, and calls that cannot be read or have a variable."""
    given, open_calls = set[str](), dict[str, int]()
    for number, message in enumerate((*messages, Message(role="user", content=""))):
        place = f"messages[{number}]"
        if message.role == "tool":
            if open_calls.pop(message.tool_call_id or "", None) is None:
                named = f"{message.tool_call_id!r:.80}"
                yield f"{place} is the result of call {named}; expected a call of the answer before it"
            continue
        yield from (
            f"messages[{at}] makes call {call!r:.80}; add its result, of role tool" for call, at in open_calls.items()
        )
        if message.tool_call_id is not None or (message.tool_calls and message.role != "assistant"):
            yield f"{place} is of role {message.role[:40]}; calls are the assistant's, and tool_call_id is a tool's"
        for call in message.tool_calls:
            if not call.id or call.id in given:
                yield f"{place} makes call {call.id!r:.80}; expected an id that no other call of the prompt has"
            given.add(call.id)
            if not isinstance(json_text.parse_or_text(call.arguments), dict):
                yield f"{place}: arguments of {call.name[:80]} are {call.arguments[:80]!r}; expected a JSON object"
            if prompt_text.names_in(call.arguments):
                yield f"{place}: arguments of {call.name[:80]} have a {{{{variable}}}}; expected it in a content alone"
        open_calls = dict.fromkeys((call.id for call in message.tool_calls), number)


def prompt_use_problems(use: PromptUse) -> Iterator[str]:
    """Yield why a prompt cannot be rendered with its values."""
    if use.version < 1:
        yield f"prompt_version.version is {use.version}; versions are 1, 2, 3 and so on"
    texts = list(prompt_text_problems(use.messages, use.variables))
    try:
        values = json_text.parse(use.values)
    except ValueError as exc:
        values, texts = None, [*texts, f"values is no JSON: {exc}"]
    if isinstance(values, dict):
        texts += prompt_text.value_problems(use.variables, values)
    elif values is not None:
        texts.append(f"values is {use.values[:80]}; expected a JSON object")
    yield from (f"prompt {use}: {text}" for text in texts)
