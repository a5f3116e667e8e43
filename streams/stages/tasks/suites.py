"""Read a suite, the held-out questions for every version, from a YAML file.

    suite.yaml ──► scenarios: a generator's held-out tasks, or a file of JSON lines ──► questions, in a fixed order
                                                                                   └──► name@digest

Results are recorded under a name that ends with a digest of the questions: texts, verifiers, sampling and scorers, in
order. So equal names mean equal questions, even if a generator or a file of tasks has changed since; thresholds and
comments are not part of it. By default each question is answered once, greedily. A question may not occur twice in a
suite, since repeating it adds no evidence.

    name: sums                        also what `streamward adapters list` shows
    scenarios:
      one-digit:                      as named in results
        generator: sums               or `file: tasks.jsonl`, next to the suite, as `streamward tasks submit` takes it
        count: 35                     of a file: its first tasks; default: all
        seed: 0                       of a generator, like `options`
        group_size: 1                 responses per task
        sampling: {temperature: 0}    and top_p, max_tokens, seed, stop; default: the task's own
        reward_sources: [exact]       instead of the task's own
        prompt: greet@3               before the messages of tasks that name none; or {name, variables}
        success: reward >= 0.8        a right answer; default: `exact` gave 1, without it: the reward is 1
        thresholds: {success: 0.5, mean_reward: 0.4}      the guard promotes nothing below
    expectations:                     of the columns of training rows, for checks of rows
      answer: {nulls: 0.01}           and range, characters, one_of, unique (streams/evaluation/expectations.py)

A prompt is rendered when the suite is read, and its text is part of the questions: once an alias means another version,
the suite has another name. A suite has at most MAX_TASKS questions: its results are one table row, rewritten for each
answer.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator, model_validator

from schemas.events import MAX_GROUP_SIZE, RewardSource, Task
from schemas.faults import nearest
from schemas.file_text import FileTextError, whole_text
from streams.arrow.file_rows import rows
from streams.errors import EventError, NotFoundError, SettingsError
from streams.evaluation.expectations import Expectation
from streams.evaluation.suite import SUCCESS_REWARD, Suite, generated_name
from streams.evaluation.suite_tasks import in_turns
from streams.kafka import times
from streams.settings.model import Settings, Topics
from streams.stages.tasks.generators import TaskSpec, generate
from streams.stages.tasks.line_steps import LineSteps, log_now
from streams.stages.tasks.line_task import Reading
from streams.stages.tasks.lines import by_kind, check_rows
from streams.stages.tasks.submit import Submitted, submit
from streams.stages.tasks.task_line import PromptLine, RewardSourceLine
from streams.stages.tasks.task_problems import task_problems

MAX_TASKS = 1000
DEADLINE_MS = 24 * 3600 * 1000
"""Time limit for the answer to a question of `ask`; a question without an answer by then counts as failed."""
NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,59}$"
SUCCESS = re.compile(r"reward\s*>=\s*(-?\d+(?:\.\d+)?)")
Name = Annotated[str, StringConstraints(pattern=NAME)]
KeyPath = tuple[str | int, ...]


class _SuiteModel(BaseModel):
    """Strict types, no unknown keys, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class SamplingPart(_SuiteModel):
    """How tokens are drawn."""

    temperature: float = Field(0.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    max_tokens: int | None = Field(None, ge=1)
    seed: int | None = None
    stop: tuple[str, ...] | None = None


class ThresholdsPart(_SuiteModel):
    """Figures that a version must reach, independent of the primary."""

    success: float | None = Field(None, ge=0, le=1)
    mean_reward: float | None = None


class ScenarioPart(_SuiteModel):
    """One family of questions."""

    generator: str | None = None
    options: dict[str, Any] | None = None
    seed: int | None = None
    file: str | None = None
    count: int | None = Field(None, ge=1, le=MAX_TASKS)
    group_size: int = Field(1, ge=1, le=MAX_GROUP_SIZE)
    sampling: SamplingPart = SamplingPart()
    reward_sources: tuple[RewardSourceLine, ...] | None = Field(None, min_length=1)
    prompt: PromptLine | None = None
    success: str | None = None
    thresholds: ThresholdsPart = ThresholdsPart()

    @field_validator("success")
    @classmethod
    def _is_a_rule(cls, text: str | None) -> str | None:
        if text is not None and SUCCESS.fullmatch(text.strip()) is None:
            raise ValueError("expected the least reward of a right answer, as `reward >= 0.8`")
        return text

    @model_validator(mode="after")
    def _has_one_origin(self) -> ScenarioPart:
        if (self.generator is None) == (self.file is None):
            raise ValueError("give either generator or file")
        if self.generator is not None and self.count is None:
            raise ValueError("a generator makes any number of tasks; give count")
        if self.file is not None and (self.options is not None or self.seed is not None):
            raise ValueError("options and seed are for generators, not for a file of tasks")
        if self.group_size > 1 and self.sampling.temperature == 0:
            raise ValueError(
                f"group_size {self.group_size} at temperature 0 is the same answer {self.group_size} times; set "
                "sampling.temperature, or leave group_size out"
            )
        return self


class SuitePart(_SuiteModel):
    """The file."""

    name: Name
    about: str = ""
    scenarios: dict[Name, ScenarioPart] = Field(min_length=1)
    expectations: dict[str, Expectation] = Field(default_factory=dict)


def load(file: Path, topic_settings: Topics | None = None, steps: LineSteps | None = None) -> Suite:
    """Return the suite in a YAML file. `steps`: find what its questions name; None: without a log.

    Raises NotFoundError if the file, one it names, or a generator is missing; SettingsError, naming file, line and
    key, for every mistake in it.
    """
    text = _read(file)
    part = _parse(text, file)
    reading = Reading(
        now_ms=0,
        topic_settings=topic_settings or Topics(),
        defaults={"policy": "-", "purpose": "eval"},
        offers_map=False,
        steps=steps or LineSteps(),
    )
    questions: list[Task] = []
    for name, scenario in part.scenarios.items():
        try:
            asked = [_question(task, name, scenario) for task in _tasks(scenario, file, reading)]
        except NotFoundError as exc:
            raise NotFoundError(f"{file}: scenarios.{name}: {exc}") from exc
        except (EventError, SettingsError) as exc:
            raise SettingsError(f"{file}: scenarios.{name}: {exc}") from exc
        for number, task in enumerate(asked, 1):
            if problem := "; ".join(task_problems(task, topic_settings or Topics())):
                raise SettingsError(f"{file}: scenarios.{name}: task {number}: {problem}")
        questions += asked
    if len(questions) > MAX_TASKS:
        raise SettingsError(f"{file}: {len(questions)} tasks, expected at most {MAX_TASKS}; split them into two suites")
    _refuse_repeated(questions, file)
    thresholds = {
        name: {key: value for key, value in scenario.thresholds.model_dump().items() if value is not None}
        for name, scenario in part.scenarios.items()
    }
    return Suite(
        name=f"{part.name}@{_digest(questions)}",
        questions=tuple(questions),
        thresholds={name: least for name, least in thresholds.items() if least},
        expectations=part.expectations,
    )


def of_file(settings: Settings, file: Path) -> Suite:
    """Return the suite in a YAML file, with what it names of the log. Raises as `load`, and LogError."""
    return load(file, settings.topics, LineSteps(log_now(settings)))


def of_guard(settings: Settings) -> Suite | None:
    """Return the suite in `guard.suite`, None if no file is set. Raises as `of_file`."""
    return None if settings.guard.suite is None else of_file(settings, settings.guard.suite)


def generated(generator: str, *, count: int, seed: int, options: Mapping[str, Any] | None = None) -> Suite:
    """Return a generator's held-out tasks as a suite of one scenario, named by `generated_name`.

    Raises as `generators.generate`.
    """
    spec = TaskSpec(family=generator, count=count, seed=seed, purpose="eval", policy="", options=options or {})
    name = generated_name(generator, count, seed, spec.options)
    return Suite(name=name, questions=tuple(generate(spec, now_ms=0)), thresholds={})


def of_tasks(name: str, tasks: Sequence[Task]) -> Suite:
    """Return tasks, unchanged, as a suite of one scenario, under a name that identifies them. Raises SettingsError if
    they are too many, or one occurs twice.
    """
    if len(tasks) > MAX_TASKS:
        raise SettingsError(f"{name}: {len(tasks)} questions, expected at most {MAX_TASKS}")
    questions = [replace(_unbound(task), scenario=name) for task in tasks]
    _refuse_repeated(questions, name)
    return Suite(name=f"{name}@{_digest(questions)}", questions=tuple(questions), thresholds={})


def ask(settings: Settings, suite: Suite, policy: str, versions: Sequence[int]) -> Submitted:
    """Submit the suite's tasks for these versions, in turn, except those already in the log. Raises as `submit`."""
    now_ms = times.now_ms()
    questions = in_turns(suite, policy=policy, versions=versions, now_ms=now_ms, deadline_ms=now_ms + DEADLINE_MS)
    return submit(settings, questions)


# --- questions --------------------------------------------------------------------------------------------------------


def _tasks(scenario: ScenarioPart, file: Path, reading: Reading) -> Iterator[Task]:
    """Yield the unchanged tasks of a scenario's generator or file, each after its prompt."""
    if scenario.generator is not None:
        spec = TaskSpec(
            family=scenario.generator,
            count=scenario.count or 0,
            seed=scenario.seed or 0,
            purpose="eval",
            policy="",
            options=scenario.options or {},
        )
        yield from (_with_prompt(task, scenario.prompt, reading.steps) for task in generate(spec, now_ms=0))
        return
    source = file.parent / (scenario.file or "")
    if scenario.prompt is not None:
        reading = replace(reading, defaults={**reading.defaults, "prompt_version": scenario.prompt.model_dump()})
    checked = check_rows(rows(source), source.name, reading)
    if checked.problems:
        raise SettingsError("; ".join(by_kind(checked.problems)))
    wanted = len(checked.tasks) if scenario.count is None else scenario.count
    if not checked.tasks or wanted > len(checked.tasks):
        raise SettingsError(f"{source} has {len(checked.tasks)} different tasks, expected {max(wanted, 1)} or more")
    yield from islice(checked.tasks, wanted)


def _with_prompt(task: Task, prompt: PromptLine | None, steps: LineSteps) -> Task:
    """Return a generator's task after a prompt. Raises SettingsError if the prompt does not exist."""
    if prompt is None:
        return task
    try:
        return steps.complete("prompt_version", task, prompt).task
    except ValueError as exc:
        raise SettingsError(str(exc)) from exc


def _question(task: Task, scenario: str, part: ScenarioPart) -> Task:
    """Return a task in this suite's form."""
    rule = {} if part.success is None else {SUCCESS_REWARD: part.success.partition(">=")[2].strip()}
    said = {name: value for name, value in part.sampling.model_dump().items() if value is not None}
    sources = task.reward_sources
    if part.reward_sources is not None:
        sources = tuple(
            RewardSource(name=one.name, weight=one.weight, settings=_json(one.settings)) for one in part.reward_sources
        )
    return replace(
        _unbound(task),
        scenario=scenario,
        group_size=part.group_size,
        metadata=task.metadata | rule,
        sampling=replace(task.sampling, **said),
        reward_sources=sources,
    )


def _unbound(task: Task) -> Task:
    """Return a task as a question to any version of any policy, at any time."""
    return replace(task, policy="", purpose="eval", adapter_version=None, deadline_at=None, traceparent=None)


def _json(given: str | dict[str, Any]) -> str:
    return given if isinstance(given, str) else json.dumps(given)


def _content(task: Task) -> str:
    """Return the fields that identify a question."""
    fields = asdict(task)
    asked = ("scenario", "group_size", "sampling", "verifier", "reward_sources", "messages")
    rule = [task.metadata[SUCCESS_REWARD]] if SUCCESS_REWARD in task.metadata else []
    return json.dumps([*(fields[name] for name in asked), *rule], sort_keys=True)


def _digest(questions: list[Task]) -> str:
    return hashlib.sha256("\n".join(map(_content, questions)).encode()).hexdigest()[:8]


def _refuse_repeated(questions: list[Task], file: Path | str) -> None:
    """Refuse a repeated question: it would count as two pieces of evidence."""
    first: dict[tuple[Any, ...], int] = {}
    for number, task in enumerate(questions):
        said = (task.messages, task.verifier, task.environment)  # another seed of one is another question
        if said in first:
            text = task.messages[-1].content
            raise SettingsError(
                f"{file}: scenarios.{task.scenario}: task {number + 1} of the suite asks what task {first[said] + 1} "
                f"asks: {text if len(text) <= 80 else text[:77] + '...'} The same question again is no further "
                "evidence; lower the count, or take another seed or other options"
            )
        first[said] = number


# --- the file ---------------------------------------------------------------------------------------------------------


def _read(file: Path) -> str:
    try:
        return whole_text(file.read_bytes())
    except OSError as exc:
        raise NotFoundError(f"{file}: {exc.strerror}; docs/examples/suite.yaml is a suite to begin with") from exc
    except FileTextError as exc:
        raise SettingsError(exc.at(file)) from exc


def _parse(text: str, file: Path) -> SuitePart:
    """Return the file's content. Raises SettingsError with the line of each mistake."""
    try:
        lines = dict(_lines(yaml.compose(text, Loader=yaml.SafeLoader), text, file))
        data = yaml.safe_load(text)
        return SuitePart.model_validate_json(json.dumps(data, default=str))
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        where = f"{file}:{mark.line + 1}" if mark is not None else str(file)
        raise SettingsError(f"{where}: not YAML: {getattr(exc, 'problem', None) or exc}") from exc
    except RecursionError as exc:
        raise SettingsError(
            f"{file}: it is nested too deeply; docs/examples/suite.yaml is a suite to begin with"
        ) from exc
    except ValidationError as exc:
        raise SettingsError("\n".join(_explain(error, lines, file) for error in exc.errors())) from exc
    except ValueError as exc:  # a number of thousands of digits, or the 31st of February
        raise SettingsError(f"{file}: a value cannot be read: {exc}; write it as text, in quotes") from exc


def _lines(root: Any, text: str, file: Path) -> Iterator[tuple[KeyPath, int]]:
    """Yield (path, line) of every key and item; refuse aliases, repeated keys, and keys that are not text."""
    for token in yaml.scan(text, Loader=yaml.SafeLoader):
        if isinstance(token, yaml.AliasToken):
            raise SettingsError(f"{file}:{token.start_mark.line + 1}: *{token.value} is an alias; write it out")
    if not isinstance(root, yaml.MappingNode):
        raise SettingsError(f"{file}: expected name and scenarios; docs/examples/suite.yaml is a suite to begin with")
    yield (), root.start_mark.line + 1
    waiting: list[tuple[KeyPath, Any]] = [((), root)]
    while waiting:
        path, node = waiting.pop()
        if isinstance(node, yaml.SequenceNode):
            waiting += [((*path, number), item) for number, item in enumerate(node.value)]
            yield from (((*path, number), item.start_mark.line + 1) for number, item in enumerate(node.value))
        if not isinstance(node, yaml.MappingNode):
            continue
        seen: set[str] = set()
        for key, value in node.value:
            where = f"{file}:{key.start_mark.line + 1}: {'.'.join(map(str, path)) or 'the suite'}"
            if key.tag != "tag:yaml.org,2002:str":
                raise SettingsError(f"{where}: the key {key.value} is not text in YAML; quote it")
            if key.value in seen:
                raise SettingsError(f"{where} has {key.value} twice; only the last would count")
            seen.add(key.value)
            yield (*path, key.value), key.start_mark.line + 1
            if not isinstance(value, yaml.ScalarNode):
                waiting.append(((*path, key.value), value))


_MODELS: dict[str, type[BaseModel]] = {
    "sampling": SamplingPart,
    "thresholds": ThresholdsPart,
    "reward_sources": RewardSourceLine,
    "prompt": PromptLine,
    "expectations": Expectation,
}


def _explain(error: Any, lines: Mapping[KeyPath, int], file: Path) -> str:
    """Return one mistake: file, line, key, and the nearest known key for an unknown one."""
    loc: KeyPath = tuple(error["loc"])
    known = next((loc[:end] for end in range(len(loc), -1, -1) if loc[:end] in lines), ())
    where = f"{file}:{lines.get(known, 1)}: {'.'.join(map(str, known)) or 'the suite'}"
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        parent = next((str(part) for part in reversed(known[:-1]) if part in _MODELS), "")
        is_expected = known[0] == "expectations" and len(known) > 1
        default = Expectation if is_expected else SuitePart if len(known) == 1 else ScenarioPart
        model = _MODELS.get(parent, default)
        return f"{where}: there is no such key; {nearest(str(known[-1]), model.model_fields)}"
    if error["type"] == "missing":
        return f"{where} has no {loc[-1]}"
    got = json.dumps(error["input"], default=str)
    is_part = isinstance(error["input"], dict)
    return f"{where}: {message}" + ("" if is_part else f" (got {got if len(got) <= 60 else got[:57] + '...'})")
