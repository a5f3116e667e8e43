"""Read tasks from JSON lines, and check each before anything is sent.

    {"prompt": "…", "answer": "…"}  one per line ──► Task, or BadLine(file, line number, what is wrong)

A line has a task's own fields (schemas/README.md). Required are only `messages`, or `prompt` (and `system`) instead;
and `reward_sources`, unless `answer` is given, which is checked with `exact`. A task's id is derived from the source's
name and the line's content, so submitting the same file again adds nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from schemas import serde
from schemas.events import Message, Purpose, RewardSource, Sampling, Task, ToolCall, derive_id
from streams.scorers import source_problems
from streams.scorers.verdict import nearest
from streams.settings.model import Topics

RECORD_OVERHEAD_BYTES = 512
"""What Kafka adds to a payload: batch header, key, headers."""


class _LineModel(BaseModel):
    """Strict types, no unknown fields, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ToolCallLine(_LineModel):
    """A call the assistant made; `arguments` as an object or as its JSON text."""

    id: str
    name: str
    arguments: str | dict[str, Any] = "{}"


class MessageLine(_LineModel):
    """One turn of the conversation."""

    role: str
    content: str = ""
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: tuple[ToolCallLine, ...] = ()


class SamplingLine(_LineModel):
    """How tokens are drawn."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 256
    seed: int | None = None
    stop: tuple[str, ...] = ()


class RewardSourceLine(_LineModel):
    """A scorer, its weight, and its settings as an object or as its JSON text; a text alone is a scorer's name."""

    name: str
    weight: float = 1.0
    settings: str | dict[str, Any] = "{}"

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, given: Any) -> Any:
        return {"name": given} if isinstance(given, str) else given


class TaskLine(_LineModel):
    """One line of a submission."""

    prompt: str | None = Field(None, description="shorthand for one user message")
    system: str | None = Field(None, description="shorthand for a system message before the prompt")
    answer: str | int | float | tuple[str | int | float, ...] | None = Field(
        None, description="shorthand for a verifier with this answer, checked with exact"
    )
    task_id: str | None = Field(None, min_length=1)
    created_at: int | None = None
    traceparent: str | None = None
    metadata: dict[str, str] = Field(default_factory=dict)
    policy: str | None = Field(None, min_length=1)
    purpose: Purpose = "train"
    scenario: str = "default"
    tenant: str | None = None
    group_size: int = 8
    deadline_at: int | None = None
    adapter_version: int | None = None
    sampling: SamplingLine = SamplingLine()
    verifier: str | dict[str, Any] | None = None
    reward_sources: tuple[RewardSourceLine, ...] | None = None
    messages: tuple[MessageLine, ...] | None = None

    @model_validator(mode="after")
    def _says_each_thing_once(self) -> TaskLine:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        if self.system is not None and self.prompt is None:
            raise ValueError("system goes with prompt; write it as the first of messages")
        if self.answer is not None and self.verifier is not None:
            raise ValueError("give either answer or verifier; answer is short for a verifier with that answer")
        return self


class BadLine(NamedTuple):
    """A line that is not a task, and why."""

    source: str
    line: int
    error: str

    def __str__(self) -> str:
        return f"{self.source}:{self.line}: {self.error}"


@dataclass(frozen=True, slots=True)
class Checked:
    """The tasks and problems of a file."""

    tasks: list[Task]
    problems: list[BadLine]
    repeated: int
    """Lines with the same content as an earlier one; `tasks` has the first only."""


def read_jsonl(
    lines: Iterable[bytes | str], source: str, *, policy: str, now_ms: int, topic_settings: Topics
) -> Iterator[tuple[int, Task | BadLine]]:
    """Yield (line number, task or problem) for each line that is not blank; numbers start at 1.

    `source` is part of the ids: use the file's name without its folder. `policy` is for lines that name none.
    """
    for number, raw in enumerate(lines, 1):
        try:
            text = raw.decode() if isinstance(raw, bytes) else raw
        except UnicodeDecodeError as exc:
            yield (
                number,
                BadLine(source, number, f"not UTF-8: {exc.reason} at byte {exc.start}; save the file as UTF-8"),
            )
            continue
        if not text.strip():
            continue
        try:
            task = _task(TaskLine.model_validate_json(text), text, source, number, policy, now_ms)
        except ValidationError as exc:
            yield number, BadLine(source, number, _explain(exc))
            continue
        except ValueError as exc:  # a number too long for Python to turn into text and back
            yield number, BadLine(source, number, f"not usable JSON: {exc}")
            continue
        error = "; ".join(task_problems(task, topic_settings))
        yield number, BadLine(source, number, error) if error else task


def check_file(
    lines: Iterable[bytes | str], source: str, *, policy: str, now_ms: int, topic_settings: Topics
) -> Checked:
    """Return every task and every problem of a file. Arguments as `read_jsonl`."""
    tasks: list[Task] = []
    problems: list[BadLine] = []
    first: dict[str, tuple[int, bytes]] = {}
    repeated = 0
    for number, found in read_jsonl(lines, source, policy=policy, now_ms=now_ms, topic_settings=topic_settings):
        if isinstance(found, BadLine):
            problems.append(found)
            continue
        digest = _digest(found)
        if found.task_id not in first:
            first[found.task_id] = (number, digest)
            tasks.append(found)
        elif first[found.task_id][1] == digest:
            repeated += 1
        else:
            error = f"task_id {found.task_id} is already used in line {first[found.task_id][0]}, with different content"
            problems.append(BadLine(source, number, f"{error}; give this task its own id"))
    return Checked(tasks, problems, repeated)


def task_problems(task: Task, topic_settings: Topics) -> Iterator[str]:
    """Yield each problem of a task, before it is sent: fields, size, sampling, scorers."""
    try:
        size = len(serde.encode(task))
    except serde.EncodeError as exc:
        yield str(exc)
        return
    most = topic_settings.max_record_bytes - RECORD_OVERHEAD_BYTES
    if size > most:
        yield (
            f"the task has {size} bytes, and {most} fit into a record of {topic_settings.max_record_bytes} "
            "(topics.max_record_bytes); shorten it, or raise the setting before the topics are created"
        )
    if task.purpose == "train":
        yield from _untrainable(task.sampling)
    yield from source_problems(task)


def _untrainable(sampling: Sampling) -> Iterator[str]:
    """Yield why the trainer would refuse every group sampled this way."""
    if sampling.temperature == 0:
        yield (
            "sampling.temperature is 0, and greedy answers have no logprobs to learn from; use temperature 1, or "
            "purpose eval or serve"
        )
    if sampling.top_p != 1:
        yield (
            f"sampling.top_p is {sampling.top_p:g}, and the trainer needs logprobs of the whole distribution; use "
            "top_p 1, or purpose eval or serve"
        )


# --- a line becomes a task --------------------------------------------------------------------------------------------


def _task(line: TaskLine, text: str, source: str, number: int, policy: str, now_ms: int) -> Task:
    content = json.dumps(json.loads(text), sort_keys=True)
    policy = line.policy or policy
    return Task(
        task_id=line.task_id or derive_id("jsonl", source, policy, content),
        created_at=now_ms if line.created_at is None else line.created_at,
        traceparent=line.traceparent,
        metadata={"source": f"{source}:{number}", **line.metadata},
        policy=policy,
        purpose=line.purpose,
        scenario=line.scenario,
        tenant=line.tenant,
        group_size=line.group_size,
        deadline_at=line.deadline_at,
        adapter_version=line.adapter_version,
        sampling=Sampling(**line.sampling.model_dump()),
        verifier=_verifier(line),
        reward_sources=_sources(line),
        messages=_messages(line),
    )


def _messages(line: TaskLine) -> tuple[Message, ...]:
    if line.messages is None:
        system = () if line.system is None else (Message(role="system", content=line.system),)
        return (*system, Message(role="user", content=line.prompt or ""))
    return tuple(
        Message(
            role=message.role,
            content=message.content,
            name=message.name,
            tool_call_id=message.tool_call_id,
            tool_calls=tuple(
                ToolCall(id=call.id, name=call.name, arguments=_json(call.arguments)) for call in message.tool_calls
            ),
        )
        for message in line.messages
    )


def _sources(line: TaskLine) -> tuple[RewardSource, ...]:
    if line.reward_sources is None:
        return () if line.answer is None else (RewardSource(name="exact"),)
    return tuple(
        RewardSource(name=given.name, weight=given.weight, settings=_json(given.settings))
        for given in line.reward_sources
    )


def _verifier(line: TaskLine) -> str:
    if line.answer is not None:
        return json.dumps({"answer": line.answer})
    return "{}" if line.verifier is None else _json(line.verifier)


def _json(given: str | dict[str, Any]) -> str:
    return given if isinstance(given, str) else json.dumps(given)


def _digest(task: Task) -> bytes:
    """Return what a task says, its line number and time of submission left out."""
    plain = (task.policy, task.purpose, task.scenario, task.tenant, task.group_size, task.deadline_at)
    asked = (task.adapter_version, task.sampling, task.verifier, task.reward_sources, task.messages)
    return hashlib.sha256(repr((plain, asked)).encode()).digest()


_MODELS: dict[str, type[BaseModel]] = {
    "": TaskLine,
    "sampling": SamplingLine,
    "messages": MessageLine,
    "tool_calls": ToolCallLine,
    "reward_sources": RewardSourceLine,
}
_BRANCHES = {"str", "int", "float", "dict[str,any]", "tuple[union[str,int,float],...]"}
"""What pydantic puts into a path for the kinds a field may have."""


def _explain(exc: ValidationError) -> str:
    """Return the faults of a line as one sentence, with the nearest name for each unknown field."""
    faults: dict[str, None] = {}
    for error in exc.errors():
        loc = [part for part in error["loc"] if part not in _BRANCHES]
        path = ".".join(map(str, loc))
        if error["type"] == "extra_forbidden":
            inside = next((part for part in reversed(loc[:-1]) if part in _MODELS), "")
            hint = nearest(str(loc[-1]), _MODELS[str(inside)].model_fields)
            faults[f"there is no field {path}; {hint}"] = None
        elif error["type"] == "json_invalid":
            faults[f"not JSON: {error['msg'].removeprefix('Invalid JSON: ')}; write one object a line"] = None
        elif not path:
            faults[error["msg"].removeprefix("Value error, ")] = None
        else:
            got = repr(error["input"])
            faults[f"{path}: {error['msg']} (got {got if len(got) <= 60 else got[:57] + '...'})"] = None
    return "; ".join(faults)
