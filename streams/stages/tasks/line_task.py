"""A line completed to a task: with the prompt, the tools, the environment and the rewards that it names.

    TaskLine ──► Reading finds what it names in the log ──► Task, whose id is derived from the line's content

The version of a prompt or tool is part of the task: a line without an id becomes another task with another version.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from schemas.conventions import TOOL_IDS
from schemas.events import EpisodeStart, Message, PromptUse, RewardSource, Sampling, Task, derive_id
from streams.environments.listed import LISTED
from streams.environments.registry.named_tools import Entries, named_environment, named_tools, no_entries, reference
from streams.environments.registry.tool_state import ToolState
from streams.errors import EventError, NotFoundError
from streams.prompts import prompt_use
from streams.prompts.prompt_use import PromptReference, Resolver, no_prompts
from streams.settings.model import Topics
from streams.stages.tasks.task_line import EnvironmentLine, PromptLine, TaskLine, json_of, plain

OWN_OBJECTS = ("arguments", "parameters", "settings", "verifier")
"""Fields that hold a user's own objects, where null is a value."""


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
    rewards_of_agent: Callable[[str], tuple[RewardSource, ...]] = lambda _: ()
    """Finds reward sources for tasks that name an agent and no sources."""
    prompt_of_agent: Callable[[str], str | None] = lambda _: None
    """Finds the prompt of tasks that name an agent and no prompt."""
    prompts: Resolver = no_prompts
    """Finds the prompts that tasks name."""
    entries: Entries = no_entries
    """Finds the registry's tools or environments that tasks name."""


def complete(line: TaskLine, fields: Mapping[str, Any], place: str, reading: Reading) -> Task:
    """Return the task of a line, whose row has these fields. Raises ValueError for names that are not found."""
    task_id = line.task_id or _derived_id(fields, line)
    prompt_line = line.prompt_version or _prompt_of_agent(line, reading)
    prompt = None if prompt_line is None else prompt_of_line(prompt_line, line.thread or task_id, reading)
    if prompt is not None and line.task_id is None:  # with another prompt version it is another task
        task_id = derive_id("line", task_id, prompt)
    own_tools = tuple(tool.tool for tool in line.tools)
    named = named_tools(line.tool_ids, reading.entries, own_tools)
    start, entry = _environment(line.environment, reading)
    references = (*named.references, *([] if entry is None else [reference(entry.tool_id, entry)]))
    if references and line.task_id is None:  # described differently it is another task
        task_id = derive_id("line", task_id, *references)
    return Task(
        task_id=task_id,
        created_at=reading.now_ms if line.created_at is None else line.created_at,
        traceparent=line.traceparent,
        metadata={"source": place, **line.metadata, **({TOOL_IDS: " ".join(references)} if references else {})},
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
        max_turns=line.max_turns if entry is None or line.max_turns is not None else _max_turns(entry),
        thread=line.thread,
        environment=start,
        prompt_version=prompt,
        tools=(*own_tools, *named.tools),
        reward_sources=_sources(line, reading),
        messages=_messages(line) if prompt is None else after_prompt(prompt, _messages(line)),
    )


def prompt_of_line(given: PromptLine, unit: str, reading: Reading) -> PromptUse:
    """Return the version that a line refers to for a thread or a task, with its values. Raises ValueError."""
    try:
        reference = PromptReference.parse(given.name)
        return prompt_use.use(reading.prompts(reference, unit), reference, given.variables)
    except (EventError, NotFoundError) as exc:
        raise ValueError(f"prompt_version: {exc}") from exc


def after_prompt(prompt: PromptUse, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return messages with those of the prompt before them. Raises ValueError if they do not go together."""
    try:
        return prompt_use.before(prompt, messages)
    except EventError as exc:
        raise ValueError(f"prompt_version: {exc}") from exc


def _derived_id(fields: Mapping[str, Any], line: TaskLine) -> str:
    """Return the id of a line's content, independent of the form of its messages, answer and tools."""
    content = _without_nulls(fields)
    if line.messages is not None:
        content["messages"] = [_own_message(message.message) for message in line.messages]
    if line.answer is not None:
        content["answer"] = line.answer
    if line.tools:
        content["tools"] = [_own_tool(tool) for tool in content["tools"]]
    return derive_id("line", json.dumps(content, sort_keys=True, default=plain))


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


def _environment(given: EnvironmentLine | None, reading: Reading) -> tuple[EpisodeStart | None, ToolState | None]:
    """Return the environment of a task, and the registry entry that names it. Raises ValueError."""
    if given is None:
        return None, None
    settings = json_of(given.settings)
    entry = None
    if given.name not in LISTED and ":" not in given.name:
        entry = named_environment(given.name, reading.entries)
    if entry is None or entry.environment is None:
        return EpisodeStart(name=given.name, settings=settings, seed=given.seed), None
    if settings != "{}":
        raise ValueError(f"environment: {given.name} is registered with its settings; leave settings out")
    return replace(entry.environment, seed=given.seed), entry


def _max_turns(entry: ToolState) -> int | None:
    return None if entry.added is None else entry.added.max_turns


def _messages(line: TaskLine) -> tuple[Message, ...]:
    if line.messages is None and line.prompt is None:
        return ()  # the prompt has the question
    if line.messages is None:
        system = () if line.system is None else (Message(role="system", content=line.system),)
        return (*system, Message(role="user", content=line.prompt or ""))
    return tuple(message.message for message in line.messages)


def _prompt_of_agent(line: TaskLine, reading: Reading) -> PromptLine | None:
    name = None if line.agent is None else reading.prompt_of_agent(line.agent)
    return None if name is None else PromptLine(name=name)


def _sources(line: TaskLine, reading: Reading) -> tuple[RewardSource, ...]:
    if line.reward_sources is not None:
        return tuple(source.reward_source() for source in line.reward_sources)
    if line.agent is not None and (sources := reading.rewards_of_agent(line.agent)):
        return sources
    return () if line.answer is None else (RewardSource(name="exact"),)


def _verifier(line: TaskLine) -> str:
    if line.answer is not None:
        return json.dumps({"answer": line.answer})
    return "{}" if line.verifier is None else json_of(line.verifier)
