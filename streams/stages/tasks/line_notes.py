"""Notes about a file of tasks: lines that are valid and may be unintended, a sentence for each kind.

    task of a line ──► LineNotes ──► repeated questions, answers in the conversation, missing or odd answers

Not covered: a third line that repeats the second counts as another answer if the first has another one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence

from schemas.events import Task
from streams.scorers.verdict import ScoreError, answers

SHOWN = 5
"""Maximum number of line numbers printed for one kind."""
OF_PROGRAMS = re.compile(r"(?<!\d)[-+]?\d++\.0++|[Nn]a[Nn]|None|null|<NA>|NaT")
"""Answers as programs write them: 5.0 for a whole number, or a name for a hole."""


class LineNotes:
    """Notes about the lines of a file, each of which is a task of its own."""

    def __init__(self) -> None:
        self._tasks = 0
        self._questions = RepeatedQuestions()
        self._answered: list[int] = []
        self._without_answer: list[int] = []
        self._odd_answers: dict[int, str] = {}

    def add(self, line: int, task: Task, content: bytes) -> None:
        """Add the task of a line; `content` is a digest of its content without metadata."""
        self._tasks += 1
        self._questions.add(line, task, content)
        if task.messages and task.messages[-1].role == "assistant":
            self._answered.append(line)
        if task.reward_sources and task.verifier == "{}":
            self._without_answer.append(line)
        if (odd_answer := _odd_answer(task)) is not None:
            self._odd_answers[line] = odd_answer

    @property
    def contradictory(self) -> int:
        """Lines that repeat a question with another answer."""
        return self._questions.contradictory

    def sentences(self) -> Iterator[str]:
        """Yield a sentence for each kind."""
        yield from self._questions.notes()
        yield from _answered_note(self._answered)
        if len(self._without_answer) < self._tasks:
            yield from _without_answer_note(self._without_answer)
        yield from _odd_answers_note(self._odd_answers)


class RepeatedQuestions:
    """The questions of a file, each with its first line."""

    def __init__(self) -> None:
        self._first: dict[bytes, tuple[int, bytes, str]] = {}
        self._alike: list[tuple[int, int]] = []
        self._contradictory: list[tuple[int, int]] = []

    def add(self, line: int, task: Task, content: bytes) -> None:
        """Add the task of a line; `content` is a digest of its content without metadata."""
        question = repr((task.messages, task.environment, task.agent, task.purpose, task.policy, task.tenant))
        key = hashlib.sha256(question.encode()).digest()[:16]
        first, earlier_content, earlier_answer = self._first.setdefault(key, (line, content, task.verifier))
        if first == line:
            return
        if content == earlier_content:
            self._alike.append((line, first))
        elif task.verifier != earlier_answer:
            self._contradictory.append((line, first))

    @property
    def contradictory(self) -> int:
        """Lines that repeat a question with another answer."""
        return len(self._contradictory)

    def notes(self) -> Iterator[str]:
        """Yield a sentence for each kind of repetition."""
        if self._alike:
            yield f"{_count(self._alike)}, differing in task_id or metadata alone: {_pairs(self._alike)}"
        if self._contradictory:
            yield f"{_count(self._contradictory)}, with another answer: {_pairs(self._contradictory)}"


def _count(pairs: list[tuple[int, int]]) -> str:
    return "1 line repeats an earlier question" if len(pairs) == 1 else f"{len(pairs)} lines repeat an earlier question"


def _pairs(pairs: list[tuple[int, int]]) -> str:
    shown = ", ".join(f"{line} (as {first})" for line, first in pairs[:SHOWN])
    return shown + (", …" if len(pairs) > SHOWN else "")


def _answered_note(numbers: list[int]) -> Iterator[str]:
    """Yield a sentence about conversations that end with an answer, if any."""
    if numbers:
        lines = "1 line ends" if len(numbers) == 1 else f"{len(numbers)} lines end"
        yield (
            f"{lines} with a message of the assistant, which the model reads before it answers: {some_lines(numbers)} "
            "(--map messages=messages.:-1 leaves it out)"
        )


def _without_answer_note(numbers: list[int]) -> Iterator[str]:
    """Yield a sentence about tasks without a reference for their scorer, if others have one."""
    if numbers:
        lines = "1 line has" if len(numbers) == 1 else f"{len(numbers)} lines have"
        yield f"{lines} no answer, and others do; a scorer that reads one fails there: {some_lines(numbers)}"


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
            f"{next(iter(of_lines.values()))}: {some_lines(list(of_lines))}); --scorer numeric compares numbers; or "
            "write a column of whole numbers, and leave holes empty"
        )


def some_lines(numbers: Sequence[int]) -> str:
    """Return the first numbers, as a list in a sentence."""
    return ", ".join(map(str, numbers[:SHOWN])) + (", …" if len(numbers) > SHOWN else "")
