"""Turn the lines of a file into tasks, and check each before anything is sent.

    {"prompt": "…", "answer": "…"}  one per line ──► Task, or BadLine(file, line number, what is wrong)

    row ──► map_row: columns under the names of fields ──► read_line ──► complete: with what it names ──► task_problems

A line has a task's own fields (schemas/README.md). Only `messages` is required, or `prompt` (and `system`) instead; and
`reward_sources`, unless its agent is registered with some, or `answer` is given, which is checked with `exact`. A
task's id is derived from its line's content, so submitting the same lines again adds nothing, even under another file
name. For file formats see streams/arrow/file_rows.py.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from schemas.events import Task, derive_id
from schemas.faults import ValueFault, names_in_quotes, nearest
from streams.arrow.file_rows import Row, fields_of
from streams.stages.tasks.column_paths import MEANT, fitting_columns, map_options
from streams.stages.tasks.line_notes import LineNotes, some_lines
from streams.stages.tasks.line_task import Reading, complete
from streams.stages.tasks.mapped_row import empty_columns, map_row
from streams.stages.tasks.task_line import TaskLine, WrongFields, read_line
from streams.stages.tasks.task_problems import task_problems

EPOCH = "epoch"
"""Metadata of a task that repeats an earlier one: its epoch, from the second on."""
_VALUES = re.compile(r"[0-9a-f-]{36}|\(got [^()]*\)|'[^']*'|-?\d+")
"""The parts that differ between two mistakes of one kind."""


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
    notes = LineNotes()
    maps = _FittingMaps(reading)
    for number, row in rows:
        try:
            task, left = _task_of(row, f"{source}:{number}", reading)
        except ValueError as exc:
            problems.append(BadLine(source, number, _explain_row(exc, row, reading, maps)))
            continue
        unused |= left
        digest = _digest(task)
        if task.task_id not in first:
            first[task.task_id] = (number, digest)
            tasks.append(task)
            notes.add(number, task, digest)
        elif first[task.task_id][1] == digest:
            repeated += 1
        else:
            error = f"task_id {task.task_id} is already used in line {first[task.task_id][0]}, with different content"
            problems.append(BadLine(source, number, f"{error}; give this task its own id"))
    return Checked(tasks, problems, repeated, tuple(unused), tuple(notes.sentences()), notes.contradictory)


def _task_of(row: Row, place: str, reading: Reading) -> tuple[Task, dict[str, None]]:
    """Return the task of a row, and the columns that it does not use. Raises ValueError."""
    fields, unused = map_row(row, reading.names, reading.defaults)
    task = complete(read_line(fields), fields, place, reading)
    if error := "; ".join(task_problems(task, reading.topic_settings, reading.min_group)):
        raise ValueError(error)
    return task, unused


def _digest(task: Task) -> bytes:
    """Return a task's content, without its line number and time of submission."""
    plain = (task.policy, task.purpose, task.scenario, task.tenant, task.group_size, task.deadline_at)
    asked = (task.adapter_version, task.sampling, task.verifier, task.reward_sources, task.messages)
    by_agent = (task.agent, task.max_turns, task.thread, task.environment, task.tools)
    return hashlib.sha256(repr((plain, asked, by_agent)).encode()).digest()


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
    numbers = some_lines([problem.line for problem in others])
    return f" (and {len(others)} more line{'s' if len(others) > 1 else ''}: {numbers})"


def _explain_row(exc: ValueError, row: Row, reading: Reading, maps: _FittingMaps) -> str:
    """Return the faults of a row, and the --map that makes it a task, or its required cells that are empty."""
    if columns := maps.of(row):
        unknown = [name for name in fields_of(row) if name not in TaskLine.model_fields]
        no_field = "there is no field" if len(unknown) == 1 else "there are no fields"
        problem = f"{no_field} {names_in_quotes(unknown)}" if unknown else _explain(exc, reading)
        return f"{problem}; read it with {map_options(columns)}"
    if isinstance(row, Mapping) and not reading.names and not {*TaskLine.model_fields} & {*fields_of(row)}:
        return f"{_explain(exc, reading)}; name the columns to read: --map prompt=COLUMN --map answer=COLUMN"
    needed = {"prompt", "messages", "answer", "verifier", "reward_sources", *reading.names.values()}
    empty = [name for name in empty_columns(row) if name in needed]
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
        _task_of(row, "", replace(reading, names=columns))
    except ValueError:
        return {}
    return columns


def _is_meant(name: str) -> bool:
    """Whether an unknown name is another name of a field, or a misspelt one."""
    is_near = nearest(name, TaskLine.model_fields).startswith("did you mean")
    return name not in TaskLine.model_fields and (name.lower() in MEANT or is_near)


def _explain(exc: ValueError, reading: Reading) -> str:
    """Return the faults of a line as one sentence; the valid fields in place of unknown ones come last."""
    if not isinstance(exc, WrongFields):
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
