"""Lines that repeat the question of an earlier line but are other tasks: reported in a note, not an error.

    task ──► its question, its whole content ──► as of an earlier line ──► a note with the count and the lines

Not covered: a third line that repeats the second counts as another answer if the first has another one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from schemas.events import Task

LINES_SHOWN = 5


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
    shown = ", ".join(f"{line} (as {first})" for line, first in pairs[:LINES_SHOWN])
    return shown + (", …" if len(pairs) > LINES_SHOWN else "")
