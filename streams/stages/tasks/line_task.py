"""A line completed to a task: with the prompt, the tools, the environment and the rewards that it names.

    TaskLine ──► the steps of what it names (line_steps.py) ──► Task, whose id is derived from the line's content

The version of a prompt or tool is part of the task: a line without an id becomes another task with another version.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from schemas import key_source, sealing
from schemas.conventions import TOOL_IDS
from schemas.events import Message, RewardSource, Sampling, Task, derive_id
from streams.settings.model import Topics
from streams.stages.tasks.line_steps import FIELDS, LineSteps
from streams.stages.tasks.task_line import PromptLine, TaskLine, json_of, plain

OWN_OBJECTS = ("arguments", "parameters", "settings", "verifier")
"""Fields that hold a user's own objects, where null is a value."""


class AgentOfTask(Protocol):
    """A registered agent, with what its tasks have by default."""

    @property
    def reward_sources(self) -> tuple[RewardSource, ...]:
        """Their scorers."""

    @property
    def prompt(self) -> str | None:
        """NAME@VERSION or NAME@ALIAS of what their messages begin with."""


AgentLookup = Callable[[str], AgentOfTask | None]
"""Returns the agent of a name; None: it is not registered. May raise LogError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Options for turning lines into tasks."""

    now_ms: int
    topic_settings: Topics
    defaults: Mapping[str, Any]
    """Default fields of tasks; at least `policy`."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The file's column for a field or its path, e.g. `prompt` or `metadata.topic`. If any is given, columns that are
    neither named nor a task's field are left out."""
    min_group: int = 2
    """Setting of `advantages`: minimum responses of a train task."""
    offers_map: bool = True
    """Whether the caller has --map, which messages may then offer."""
    agents: AgentLookup = lambda _: None
    """Finds the agents that tasks name: a task without sources or prompt has those of its agent."""
    caller: str | None = None
    """The key or user that sends the tasks."""
    steps: LineSteps = field(default_factory=LineSteps)
    """Complete what tasks name of the log."""


def complete(line: TaskLine, fields: Mapping[str, Any], place: str, reading: Reading) -> Task:
    """Return the task of a line, whose row has these fields. Raises ValueError for names that are not found."""
    agent = None if line.agent is None else reading.agents(line.agent)
    subject = _subject_of(line, reading)
    task = Task(
        task_id=line.task_id or _derived_id(fields, line, subject),
        created_at=reading.now_ms if line.created_at is None else line.created_at,
        traceparent=line.traceparent,
        metadata={"source": place, **line.metadata},
        subject=subject,
        policy=line.policy,
        purpose=line.purpose,
        scenario=line.scenario,
        tenant=line.tenant,
        group_size=line.group_size,
        deadline_at=line.deadline_at,
        adapter_version=line.adapter_version,
        sampling=Sampling(**line.sampling.model_dump()),
        verifier=_verifier(line),
        agent=line.agent,
        max_turns=line.max_turns,
        thread=line.thread,
        tools=tuple(tool.tool for tool in line.tools),
        reward_sources=_sources(line, agent),
        messages=_messages(line),
    )
    names = {name: value for name in FIELDS if (value := getattr(line, name))}
    return with_named(task, agent, names, reading.steps, is_derived=line.task_id is None)


def with_named(
    task: Task, agent: AgentOfTask | None, names: Mapping[str, Any], steps: LineSteps, *, is_derived: bool = False
) -> Task:
    """Return a task with its agent's prompt and what fields of its line name; with another version of that, a derived
    id is another. Raises ValueError for names that are not found.
    """
    if agent is not None and agent.prompt is not None:
        names = {"prompt_version": PromptLine(name=agent.prompt), **names}
    task_id, references = task.task_id, list[str]()
    for name, value in names.items():
        task, added = steps.complete(name, task, value)
        references += added
    metadata = {**task.metadata, **({TOOL_IDS: " ".join(references)} if references else {})}
    if is_derived and task.prompt_version is not None:
        task_id = derive_id("line", task_id, task.prompt_version)
    if is_derived and references:
        task_id = derive_id("line", task_id, *references)
    return replace(task, task_id=task_id, metadata=metadata)


def _subject_of(line: TaskLine, reading: Reading) -> str | None:
    """Return the pseudonym of the person whose words a line has; None: nothing is sealed. Raises ValueError."""
    try:
        return key_source.current().subject_of(line.tenant, line.user, reading.caller, line.policy)
    except key_source.ErasedError:
        raise ValueError("user: this person was erased, and nothing is recorded for one any more") from None


def _derived_id(fields: Mapping[str, Any], line: TaskLine, subject: str | None) -> str:
    """Return the id of a line's content, independent of the form of its messages, answer and tools; a subject's cannot
    be guessed."""
    content = _without_nulls(fields)
    if line.messages is not None:
        content["messages"] = [_own_message(message.message) for message in line.messages]
    if line.answer is not None:
        content["answer"] = line.answer
    if line.tools:
        content["tools"] = [_own_tool(tool) for tool in content["tools"]]
    salt = () if subject is None else (sealing.salt(subject),)
    return derive_id("line", *salt, json.dumps(content, sort_keys=True, default=plain))


def _own_message(message: Message) -> dict[str, Any]:
    """Return a message in the form of a task's line, without unset fields."""
    fields = {name: value for name, value in asdict(message).items() if value is not None}
    return fields if message.tool_calls else {name: value for name, value in fields.items() if name != "tool_calls"}


def _own_tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a tool in the form of a task's line; OpenAI nests its fields in `function`."""
    fields = tool.get("function", tool)
    return {name: value for name, value in fields.items() if name not in ("type", "strict")}


def _without_nulls(value: Any) -> Any:
    """Return a value without null fields; a user's own objects stay unchanged."""
    if isinstance(value, Mapping):
        present = {name: inner for name, inner in value.items() if inner is not None}
        return {name: inner if name in OWN_OBJECTS else _without_nulls(inner) for name, inner in present.items()}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def _messages(line: TaskLine) -> tuple[Message, ...]:
    if line.messages is None and line.prompt is None:
        return ()  # the prompt has the question
    if line.messages is None:
        system = () if line.system is None else (Message(role="system", content=line.system),)
        return (*system, Message(role="user", content=line.prompt or ""))
    return tuple(message.message for message in line.messages)


def _sources(line: TaskLine, agent: AgentOfTask | None) -> tuple[RewardSource, ...]:
    if line.reward_sources is not None:
        return tuple(source.reward_source() for source in line.reward_sources)
    if agent is not None and agent.reward_sources:
        return agent.reward_sources
    return () if line.answer is None else (RewardSource(name="exact"),)


def _verifier(line: TaskLine) -> str:
    if line.answer is not None:
        return json.dumps({"answer": line.answer})
    return "{}" if line.verifier is None else json_of(line.verifier)
