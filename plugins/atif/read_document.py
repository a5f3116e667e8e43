"""Read ATIF documents, ours or those of other programs, as rows to tune on or as tasks.

    steps of the agent with token ids ──► input_ids, assistant_masks ─┐
    a document without token ids ──► messages, tools ─────────────────┴─► rows to imitate
    steps before the first call ──► messages, tools ──► a line of `streamward tasks submit`

While the prompt of a call begins with all tokens before it, the calls are one row, so that each token is learned from
once and none is tokenized again. Where it does not (a history that was cut or rendered again), a new row begins. Copied
steps, and calls whose form was forced, bear no loss. Sub-agents in a document are documents of their own.

Not covered: pictures and sound; a continuation in another file, which is read as a trajectory of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from schemas.conversation import Content, join_texts, read_as
from schemas.faults import OutsideObject
from schemas.json_text import parse
from streams.errors import EventError, NotFoundError

Row = dict[str, Any]
Kind = Literal["rows", "tasks"]
SHOWN = 5
"""Maximum number of faults that are named."""


class AtifPart(OutsideObject, extra="ignore"):
    """An object of a document; fields that are not read here are ignored."""


class CallMetrics(AtifPart):
    """The tokens of a call."""

    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None


class CalledTool(AtifPart):
    """A call of a tool."""

    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]
    extra: dict[str, Any] = Field(default_factory=dict)


class ObservedResult(AtifPart):
    """What a tool or an environment answered."""

    source_call_id: str | None = None
    content: Content | None = None
    extra: dict[str, Any] = Field(default_factory=dict)


class Observations(AtifPart):
    """All results of a step."""

    results: list[ObservedResult]


class AtifStep(AtifPart):
    """A step of a trajectory."""

    step_id: int
    source: Literal["system", "user", "agent"]
    message: Content
    tool_calls: list[CalledTool] = Field(default_factory=list)
    observation: Observations | None = None
    metrics: CallMetrics = CallMetrics()
    is_copied_context: bool = False
    llm_call_count: int | None = None
    extra: dict[str, Any] = Field(default_factory=dict)

    @property
    def is_call(self) -> bool:
        """Whether a model was called for it in this trajectory."""
        return self.source == "agent" and not self.is_copied_context and self.llm_call_count != 0

    @property
    def messages(self) -> Iterator[Row]:
        """Its messages, as chat templates have them."""
        role = "assistant" if self.source == "agent" else self.source
        message: Row = {"role": role, "content": join_texts(part.text for part in self.message), **_named(self.extra)}
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": call.tool_call_id, "name": call.function_name, "arguments": _arguments(call)}
                for call in self.tool_calls
            ]
        if message["content"] or self.tool_calls or self.source == "agent":
            yield message
        for result in () if self.observation is None else self.observation.results:
            called = result.source_call_id or result.extra.get("tool_call_id")
            of_tool = {"role": "user"} if called is None else {"role": "tool", "tool_call_id": called}
            yield {**of_tool, "content": join_texts(part.text for part in result.content or ()), **_named(result.extra)}


class AtifAgent(AtifPart):
    """The agent of a trajectory."""

    tool_definitions: list[dict[str, Any]] = Field(default_factory=list)
    extra: dict[str, Any] = Field(default_factory=dict)


class AtifDocument(AtifPart):
    """A trajectory."""

    schema_version: str = Field(pattern=r"^ATIF-v1\.\d+$")
    session_id: str | None = None
    trajectory_id: str | None = None
    agent: AtifAgent
    steps: list[AtifStep] = Field(min_length=1)
    subagent_trajectories: list[AtifDocument] = Field(default_factory=list)
    extra: dict[str, Any] = Field(default_factory=dict)

    @property
    def lineage(self) -> dict[str, str]:
        """Its ids."""
        ids = {"trajectory_id": self.trajectory_id or self.session_id, "task_id": self.extra.get("task_id")}
        return {name: value for name, value in ids.items() if isinstance(value, str)}


def read_file(path: Path, kind: Kind) -> list[Row]:
    """Return the rows or tasks of a file: JSON lines, or one document.

    Raises NotFoundError if it cannot be read or has none, EventError, with places, if a document is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise NotFoundError(f"{path}: cannot be read: {exc}; name a file with ATIF documents") from exc
    made, problems = list[Row](), list[str]()
    for place, document in _documents(text):
        try:
            made += _rows_or_tasks(read_as(AtifDocument, document(), "document"), kind)
        except ValueError as exc:
            problems.append(f"{path}:{place}: {exc}")
    if problems:
        unnamed = len(problems) - SHOWN
        shown = [*problems[:SHOWN], *([f"and {unnamed} more"] if unnamed > 0 else [])]
        raise EventError("\n".join([*shown, "Nothing was written; correct these documents, or leave them out"]))
    if not made:
        raise NotFoundError(f"{path}: it has no call of a model; expected ATIF documents with steps of source agent")
    return made


def _documents(text: str) -> Iterator[tuple[int, Callable[[], Any]]]:
    """Yield each document with its line, from 1: what parses it, which raises ValueError."""
    try:
        whole = parse(text)
    except ValueError:
        yield from ((place, partial(parse, line)) for place, line in enumerate(text.split("\n"), 1) if line.strip())
    else:
        yield 1, lambda: whole


def _rows_or_tasks(document: AtifDocument, kind: Kind) -> Iterator[Row]:
    yield from _rows(document) if kind == "rows" else _tasks(document)
    for part in document.subagent_trajectories:
        yield from _rows_or_tasks(part, kind)


# --- rows -------------------------------------------------------------------------------------------------------------


def _rows(document: AtifDocument) -> Iterator[Row]:
    """Yield the rows of a document. Raises ValueError."""
    calls = [step for step in document.steps if step.is_call]
    if not calls:
        return
    if not any(step.metrics.completion_token_ids for step in calls):
        yield {"messages": _messages(document.steps), **_tools(document), **document.lineage}
        return
    digest = document.agent.extra.get("tokenizer_digest")
    about = document.lineage | ({"tokenizer_digest": digest} if isinstance(digest, str) else {})
    ids, masks = list[int](), list[int]()
    for step in (step for step in document.steps if step.source == "agent" and step.llm_call_count != 0):
        prompt, completion = step.metrics.prompt_token_ids, step.metrics.completion_token_ids
        if not prompt or completion is None:
            if step.is_copied_context:
                continue
            raise ValueError(
                f"step {step.step_id}: it has no token ids, and other steps have some; expected prompt_token_ids and "
                "completion_token_ids in its metrics"
            )
        if prompt[: len(ids)] != ids:
            if any(masks):
                yield {"input_ids": ids, "assistant_masks": masks, **about}
            ids, masks = [], []
        bears_loss = int(step.is_call and not step.extra.get("constraint"))
        masks = masks + [0] * (len(prompt) - len(ids)) + [bears_loss] * len(completion)
        ids = prompt + completion
    if any(masks):
        yield {"input_ids": ids, "assistant_masks": masks, **about}


# --- tasks ------------------------------------------------------------------------------------------------------------


def _tasks(document: AtifDocument) -> Iterator[Row]:
    """Yield the task of a document: what its first call was asked."""
    first = next((place for place, step in enumerate(document.steps) if step.is_call), None)
    if first:
        messages = _messages(document.steps[:first])
        yield {"messages": messages, **_tools(document), "metadata": document.lineage}


def _messages(steps: list[AtifStep]) -> list[Row]:
    return [message for step in steps for message in step.messages]


def _tools(document: AtifDocument) -> Row:
    return {"tools": document.agent.tool_definitions} if document.agent.tool_definitions else {}


def _arguments(call: CalledTool) -> str:
    written = call.extra.get("arguments")
    return written if isinstance(written, str) else json.dumps(call.arguments)


def _named(extra: dict[str, Any]) -> Row:
    return {"name": extra["name"]} if isinstance(extra.get("name"), str) else {}
