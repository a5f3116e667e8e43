"""Turn the lines of a file into tasks, and check each before anything is sent.

    {"prompt": "…", "answer": "…"}  one per line ──► Task, or BadLine(file, line number, what is wrong)

A line has a task's own fields (schemas/README.md). Only `messages` is required, or `prompt` (and `system`) instead; and
`reward_sources`, unless its agent is registered with some, or `answer` is given, which is checked with `exact`. A
task's id is derived from its line's content, so submitting the same lines again adds nothing, even under another file
name. For file formats see streams/arrow/file_rows.py.
"""

from __future__ import annotations

import datetime
import decimal
import hashlib
import json
import math
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from schemas import serde
from schemas.conventions import CONTAMINATION_ALLOWED_BY, TOOL_IDS
from schemas.conversation import Conversation, ToolIn
from schemas.events import EpisodeStart, Message, PromptUse, Purpose, RewardSource, Sampling, Task, derive_id
from schemas.faults import OutsideObject, ValueFault, faults, names_in_quotes, nearest
from streams.arrow.file_rows import Row, fields_of
from streams.environments.listed import LISTED
from streams.environments.registry.named_tools import Entries, named_environment, named_tools, no_entries, reference
from streams.environments.registry.tool_state import ToolState
from streams.errors import EventError, NotFoundError, SettingsError
from streams.prompts import prompt_use
from streams.prompts.prompt_use import PromptReference, Resolver, no_prompts
from streams.scorers import source_problems
from streams.scorers.verdict import ScoreError, answers
from streams.settings.model import Topics
from streams.stages.tasks.column_paths import (
    MEANT,
    fields_from,
    fitting_columns,
    map_options,
    put_field,
)
from streams.stages.tasks.repeated_questions import RepeatedQuestions

RECORD_OVERHEAD_BYTES = 512
"""Kafka's overhead for a payload: batch header, key, headers."""
EPOCH = "epoch"
"""Metadata of a task that repeats an earlier one: its epoch, from the second on."""
NUMBERS_SHOWN = 5
"""Maximum number of line numbers printed for one kind of mistake."""
OWN_OBJECTS = ("arguments", "parameters", "settings", "verifier")
"""Fields that hold a user's own objects, where null is a value."""
OF_PROGRAMS = re.compile(r"(?<!\d)[-+]?\d++\.0++|[Nn]a[Nn]|None|null|<NA>|NaT")
"""Answers as programs write them: 5.0 for a whole number, or a name for a hole."""
_VALUES = re.compile(r"[0-9a-f-]{36}|\(got [^()]*\)|'[^']*'|-?\d+")
"""The parts that differ between two mistakes of one kind."""


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
        return RewardSource(name=self.name, weight=self.weight, settings=_json(self.settings))


class PromptLine(OutsideObject):
    """A prompt that a task's messages begin with; a text alone is NAME, NAME@3 or NAME@ALIAS."""

    name: str = Field(min_length=1, description="NAME, NAME@3 or NAME@ALIAS; NAME alone is NAME@production")
    variables: dict[str, Any] = Field(default_factory=dict, description="the value of each variable: data, never run")

    @model_validator(mode="before")
    @classmethod
    def _name_alone(cls, given: Any) -> Any:
        return {"name": given} if isinstance(given, str) else given

    def use(self, unit: str, reading: Reading) -> PromptUse:
        """Return the version that it refers to for a thread or a task, with its values. Raises ValueError."""
        try:
            reference = PromptReference.parse(self.name)
            return prompt_use.use(reading.prompts(reference, unit), reference, self.variables)
        except (EventError, NotFoundError) as exc:
            raise ValueError(f"prompt_version: {exc}") from exc


class TaskLine(OutsideObject):
    """One line of a submission."""

    prompt: Text | None = Field(None, description="shorthand for one user message")
    system: Text | None = Field(None, description="shorthand for a system message before the prompt")
    answer: Answer | None = Field(None, description="shorthand for a verifier with this answer, checked with exact")
    task_id: Annotated[str, Field(min_length=1), BeforeValidator(_as_text)] | None = None
    created_at: int | None = None
    traceparent: str | None = None
    metadata: Annotated[dict[str, str], BeforeValidator(_metadata)] = Field(default_factory=dict)
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


class _WrongFields(ValueError):
    """Fields of a line are wrong."""

    def __init__(self, wrong: list[ValueFault]) -> None:
        super().__init__("; ".join(fault.text for fault in wrong))
        self.faults = wrong


class BadLine(NamedTuple):
    """A line that is not a task, and why."""

    source: str
    line: int
    error: str

    def __str__(self) -> str:
        return f"{self.source}:{self.line}: {self.error}"


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


@dataclass(frozen=True, slots=True)
class Checked:
    """The tasks and problems of a file."""

    tasks: list[Task]
    problems: list[BadLine]
    repeated: int
    """Number of lines with the same content as an earlier one; `tasks` has only the first."""
    unused: tuple[str, ...] = ()
    """Columns of the lines that `Reading.names` left out."""
    notes: tuple[str, ...] = ()
    """Sentences about lines that are no mistakes, but may be unintended."""
    contradictory: int = 0
    """Tasks with the question of an earlier line and another answer."""

    @property
    def rows(self) -> str:
        """Outcomes of all rows, as counts that add up."""
        count = sum(EPOCH not in task.metadata for task in self.tasks)
        total = count + self.repeated + len(self.problems)
        tasks = "1 task" if count == 1 else f"{count} tasks"
        tasks += f" ({self.contradictory} contradictory)" if self.contradictory else ""
        return f"{total} rows: {tasks}, {self.repeated} repeated, {len(self.problems)} skipped"


def check_rows(rows: Iterable[tuple[int, Row]], source: str, reading: Reading) -> Checked:
    """Return every task and every problem of a file's numbered rows. `source` is the file's name."""
    tasks: list[Task] = []
    problems: list[BadLine] = []
    first: dict[str, tuple[int, bytes]] = {}
    repeated = 0
    unused: dict[str, None] = {}
    questions = RepeatedQuestions()
    answered: list[int] = []
    without_answer: list[int] = []
    odd_answers: dict[int, str] = {}
    maps = _FittingMaps(reading)
    for number, row in rows:
        try:
            task, left = _read_task(row, f"{source}:{number}", reading)
        except ValueError as exc:
            problems.append(BadLine(source, number, _explain_row(exc, row, reading, maps)))
            continue
        unused |= left
        digest = _digest(task)
        if task.task_id not in first:
            first[task.task_id] = (number, digest)
            tasks.append(task)
            questions.add(number, task, digest)
            answered += [number] if task.messages and task.messages[-1].role == "assistant" else []
            without_answer += [number] if task.reward_sources and task.verifier == "{}" else []
            if (odd_answer := _odd_answer(task)) is not None:
                odd_answers[number] = odd_answer
        elif first[task.task_id][1] == digest:
            repeated += 1
        else:
            error = f"task_id {task.task_id} is already used in line {first[task.task_id][0]}, with different content"
            problems.append(BadLine(source, number, f"{error}; give this task its own id"))
    notes = [*questions.notes(), *_answered_note(answered)]
    if len(without_answer) < len(tasks):
        notes += _without_answer_note(without_answer)
    notes += _odd_answers_note(odd_answers)
    return Checked(tasks, problems, repeated, tuple(unused), tuple(notes), questions.contradictory)


def _answered_note(numbers: list[int]) -> Iterator[str]:
    """Yield a sentence about conversations that end with an answer, if any."""
    if numbers:
        lines = "1 line ends" if len(numbers) == 1 else f"{len(numbers)} lines end"
        yield (
            f"{lines} with a message of the assistant, which the model reads before it answers: {_some(numbers)} "
            "(--map messages=messages.:-1 leaves it out)"
        )


def _without_answer_note(numbers: list[int]) -> Iterator[str]:
    """Yield a sentence about tasks without a reference for their scorer, if others have one."""
    if numbers:
        lines = "1 line has" if len(numbers) == 1 else f"{len(numbers)} lines have"
        yield f"{lines} no answer, and others do; a scorer that reads one fails there: {_some(numbers)}"


def _odd_answer(task: Task) -> str | None:
    """Return an answer for `exact` that looks written by a program, not a person, if it is one."""
    is_compared = any(source.name == "exact" for source in task.reward_sources)
    try:
        return next(filter(OF_PROGRAMS.fullmatch, answers(task, "exact")), None) if is_compared else None
    except ScoreError:  # it has none: the scorer reports it
        return None


def _odd_answers_note(of_lines: Mapping[int, str]) -> Iterator[str]:
    """Yield a sentence about answers that `exact` can never find in a model's text, if any."""
    if of_lines:
        yield (
            f"answers that end in .0, or are a word for a hole, and that exact compares as texts: {len(of_lines)} (as "
            f"{next(iter(of_lines.values()))}: {_some(list(of_lines))}); --scorer numeric compares numbers; or write a "
            "column of whole numbers, and leave holes empty"
        )


def epochs(tasks: Iterable[Task], count: int) -> Iterator[Task]:
    """Yield the tasks `count` times over. Later epochs have their own ids, so more can be submitted later.

    >>> from schemas.events import Task
    >>> [task.metadata for task in epochs([Task(task_id="a", created_at=0, policy="p")], 2)]
    [{}, {'epoch': '2'}]
    """
    once = list(tasks)
    yield from once
    for epoch in range(2, count + 1):
        for task in once:
            task_id = derive_id("epoch", task.task_id, epoch)
            yield replace(task, task_id=task_id, metadata={**task.metadata, EPOCH: str(epoch)})


def by_kind(problems: Iterable[BadLine]) -> list[str]:
    """Return one message for each kind of mistake: its first line in full, the others by number.

    >>> by_kind([BadLine("a.csv", n, f"group_size is {-n}; expected 1") for n in (2, 3, 5)])
    ['a.csv:2: group_size is -2; expected 1 (and 2 more lines: 3, 5)']
    """
    kinds: dict[str, list[BadLine]] = {}
    for problem in problems:
        kinds.setdefault(_VALUES.sub("…", problem.error), []).append(problem)
    return [f"{same[0]}{_and_others(same[1:])}" for same in kinds.values()]


def _and_others(others: list[BadLine]) -> str:
    if not others:
        return ""
    numbers = _some([problem.line for problem in others])
    return f" (and {len(others)} more line{'s' if len(others) > 1 else ''}: {numbers})"


def _some(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:NUMBERS_SHOWN])) + (", …" if len(numbers) > NUMBERS_SHOWN else "")


def task_problems(task: Task, topic_settings: Topics, min_group: int = 2) -> Iterator[str]:
    """Yield each problem of a task, before it is sent: fields, size, group, sampling, scorers."""
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
        if problem := group_problem(task.group_size, min_group):
            yield problem
        yield from _untrainable(task.sampling)
    yield from source_problems(task)


def group_problem(group_size: int, min_group: int = 2) -> str | None:
    """Return why a train task's group of this size would teach nothing."""
    if group_size >= min_group:
        return None
    reason = "which are compared" if min_group == 2 else f"with a score each (advantages.min_group is {min_group})"
    return (
        f"group_size is {group_size}, and a train task needs at least {min_group} responses, {reason}; use "
        f"{min_group} or more, or purpose eval or serve"
    )


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


def _read_task(row: Row, place: str, reading: Reading) -> tuple[Task, dict[str, None]]:
    """Return the task of a row, and the columns that it does not use. Raises ValueError."""
    line, unused = _chosen(row, reading)
    task = _task(line, place, reading)
    if error := "; ".join(task_problems(task, reading.topic_settings, reading.min_group)):
        raise ValueError(error)
    return task, unused


def _chosen(row: Row, reading: Reading) -> tuple[dict[str, Any], dict[str, None]]:
    """Return the fields of a row under their own names, with the defaults, and its unused columns."""
    columns = fields_of(row)
    empty = _empty_columns(row)
    values, used = fields_from(columns, reading.names)
    line = {name: value for name, value in columns.items() if name not in empty and name not in used}
    unused = {name: None for name in line if reading.names and name not in TaskLine.model_fields}
    line = {name: value for name, value in line.items() if name not in unused}
    for path, value in values.items():
        if reading.names[path] not in empty:
            put_field(line, path, value)
    for path, value in reading.defaults.items():
        if path != "system" or "messages" not in line:
            put_field(line, path, value, unless_there=True)
    return line, unused


def columns_by_field(names: Iterable[str]) -> dict[str, str]:
    """Return the column of each field, of FIELD=COLUMN as --map takes them. Raises SettingsError."""
    columns: dict[str, str] = {}
    for text in names:
        path, equals, column = text.partition("=")
        field = path.partition(".")[0]
        if not (path and equals and column):
            raise SettingsError(f"--map {text}: expected FIELD=COLUMN, e.g. --map prompt=question")
        if field not in TaskLine.model_fields:
            swapped = f"did you mean {map_options({column: path})}?" if column in TaskLine.model_fields else ""
            raise SettingsError(
                f"--map {text}: a task has no field {field}; {swapped or nearest(field, TaskLine.model_fields)}"
            )
        if path in columns:
            raise SettingsError(f"--map {text}: {path} is already read from {columns[path]}")
        columns[path] = column
    return columns


def _empty_columns(row: Row) -> list[str]:
    """Return the columns without a value in this row of a table."""
    return [name for name, value in row.items() if value is None] if isinstance(row, Mapping) else []


def _task(fields: dict[str, Any], place: str, reading: Reading) -> Task:
    """Return the task. Raises ValidationError for wrong fields, ValueError for malformed JSON."""
    try:
        text = json.dumps(fields, default=_plain)
        line = TaskLine.model_validate_json(text)
    except ValidationError as exc:
        raise _WrongFields(list(faults(exc, TaskLine, fields))) from exc
    except (TypeError, ValueError, RecursionError) as exc:  # a number too long to be text, or a value of no JSON type
        raise ValueError(f"not usable as JSON: {exc}") from exc
    task_id = line.task_id or _derived_id(fields, line)
    prompt_line = line.prompt_version or _prompt_of_agent(line, reading)
    prompt = None if prompt_line is None else prompt_line.use(line.thread or task_id, reading)
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


def after_prompt(prompt: PromptUse, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return messages with those of the prompt before them. Raises ValueError if they do not go together."""
    try:
        return prompt_use.before(prompt, messages)
    except EventError as exc:
        raise ValueError(f"prompt_version: {exc}") from exc


def _derived_id(fields: dict[str, Any], line: TaskLine) -> str:
    """Return the id of a line's content, independent of the form of its messages, answer and tools."""
    content = _without_nulls(fields)
    if line.messages is not None:
        content["messages"] = [_own_message(message.message) for message in line.messages]
    if line.answer is not None:
        content["answer"] = line.answer
    if line.tools:
        content["tools"] = [_own_tool(tool) for tool in content["tools"]]
    return derive_id("line", json.dumps(content, sort_keys=True, default=_plain))


def _own_message(message: Message) -> dict[str, Any]:
    """Return a message in the form of a task's line, without unset fields."""
    fields = {name: value for name, value in asdict(message).items() if value is not None}
    return fields if message.tool_calls else {name: value for name, value in fields.items() if name != "tool_calls"}


def _own_tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a tool in the form of a task's line; OpenAI nests its fields in `function`."""
    fields = tool.get("function", tool)
    return {name: value for name, value in fields.items() if name not in ("type", "strict")}


def _plain(value: Any) -> str:
    """Return a Parquet cell of a type unknown to JSON as text. Raises TypeError if it has no text form."""
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return f"{value:f}"
    if isinstance(value, uuid.UUID):
        return str(value)
    raise TypeError(f"a value of {type(value).__name__} is no text, number, list or record")


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
    settings = _json(given.settings)
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
    return "{}" if line.verifier is None else _json(line.verifier)


def _json(given: str | dict[str, Any]) -> str:
    return given if isinstance(given, str) else json.dumps(given)


def _digest(task: Task) -> bytes:
    """Return a task's content, without its line number and time of submission."""
    plain = (task.policy, task.purpose, task.scenario, task.tenant, task.group_size, task.deadline_at)
    asked = (task.adapter_version, task.sampling, task.verifier, task.reward_sources, task.messages)
    by_agent = (task.agent, task.max_turns, task.thread, task.environment, task.tools)
    return hashlib.sha256(repr((plain, asked, by_agent)).encode()).digest()


def _explain_row(exc: ValueError, row: Row, reading: Reading, maps: _FittingMaps) -> str:
    """Return the faults of a row, and the --map that makes it a task, or its required cells that are empty."""
    if columns := maps.of(row):
        unknown = [name for name in fields_of(row) if name not in TaskLine.model_fields]
        no_field = "there is no field" if len(unknown) == 1 else "there are no fields"
        problem = f"{no_field} {names_in_quotes(unknown)}" if unknown else _explain(exc, reading)
        return f"{problem}; read it with {map_options(columns)}"
    needed = {"prompt", "messages", "answer", "verifier", "reward_sources", *reading.names.values()}
    empty = [name for name in _empty_columns(row) if name in needed]
    return _explain(exc, reading) + (f"; empty in this row: {names_in_quotes(empty)}" if empty else "")


class _FittingMaps:
    """The --map that makes rows tasks; in a table with empty cells, that of the first row for which one exists."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._of_columns: dict[tuple[str, ...], dict[str, str]] = {}

    def of(self, row: Row) -> dict[str, str]:
        """Return it; empty if a --map is given, or none helps."""
        if not isinstance(row, Mapping):
            return _map_that_works(row, self._reading)
        names = tuple(row)
        if names not in self._of_columns and (columns := _map_that_works(row, self._reading)):
            self._of_columns[names] = columns
        return self._of_columns.get(names, {})


def _map_that_works(row: Row, reading: Reading) -> dict[str, str]:
    """Return the columns that make a row of a known shape a task; none if a --map is given, or none helps."""
    if reading.names or not reading.offers_map or isinstance(row, ValueError):
        return {}
    try:
        fields = fields_of(row)
        columns = fitting_columns(fields)
        if all(field == column for field, column in columns.items()) and any(map(_is_meant, fields)):
            return {}
        _read_task(row, "", replace(reading, names=columns))
    except ValueError:
        return {}
    return columns


def _is_meant(name: str) -> bool:
    """Whether an unknown name is another name of a field, or a misspelt one."""
    is_near = nearest(name, TaskLine.model_fields).startswith("did you mean")
    return name not in TaskLine.model_fields and (name.lower() in MEANT or is_near)


def _explain(exc: ValueError, reading: Reading) -> str:
    """Return the faults of a line as one sentence; the valid fields in place of unknown ones come last."""
    if not isinstance(exc, _WrongFields):
        return str(exc)
    sentences: dict[str, None] = {}
    known: dict[str, None] = {}
    for fault in exc.faults:
        hint = _meant(fault, reading) or fault.hint
        if hint.startswith("known: "):
            known[hint] = None
            hint = ""
        sentences[f"{fault.message}; {hint}" if hint else fault.message] = None
    return "; ".join([*sentences, *known])


def _meant(fault: ValueFault, reading: Reading) -> str:
    """Return the task's field for another program's name of it; nothing if the name is unknown."""
    meant = MEANT.get(fault.path.lower()) if fault.kind == "unknown" else None
    if meant is None:
        return ""
    option = f" To take it as that: {map_options({meant: fault.path})}" if reading.offers_map else ""
    return f"did you mean {meant}?{option}"
