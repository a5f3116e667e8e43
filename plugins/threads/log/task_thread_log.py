"""Follow the threads that tasks name.

    tasks ──────► a thread ──► the tasks of each thread ◄── a thread ◄────── responses
                  every task that was answered is read before its answer

Lookups do not wait: until `is_read`, threads may be missing.

Not covered: a limit on memory. It keeps the texts of these tasks and answers, and the ids of all tasks.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Self

from plugins.threads.log.task_threads import TaskThread, ThreadTask
from schemas.conventions import ThreadName
from schemas.events import Response, Task
from streams.errors import StreamwardError
from streams.kafka.client import POLL_S
from streams.kafka.followed import FollowedTopic
from streams.kafka.record import Record
from streams.settings.model import Settings


class _ThreadTable:
    """The threads of both followers. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: dict[str, TaskThread] = {}
        self._names: dict[str, ThreadName] = {}
        """The thread of each task that has one."""

    def add(self, name: ThreadName, task: ThreadTask) -> None:
        with self._lock:
            self._names[task.task_id] = name
            before = self._threads.get(name.thread_id)
            thread = TaskThread(name, (task,)) if before is None else before.with_task(task)
            self._threads[name.thread_id] = thread

    def has_task(self, task_id: str) -> bool:
        return task_id in self._names

    def answer(self, response: Response) -> None:
        with self._lock:
            thread_id = self._names[response.task_id].thread_id
            self._threads[thread_id] = self._threads[thread_id].with_answer(response)

    def get(self, thread_id: str) -> TaskThread | None:
        with self._lock:
            return self._threads.get(thread_id)

    def threads(self) -> dict[str, TaskThread]:
        with self._lock:
            return dict(self._threads)


class _Follower(FollowedTopic):
    """One of the two topics. It is entered without waiting."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self


class _Questions(_Follower):
    def __init__(self, settings: Settings, table: _ThreadTable) -> None:
        super().__init__(settings, "tasks")
        self._table = table
        self._ids: set[bytes] = set()

    def has(self, task_id: bytes | None) -> bool:
        """Return whether this task was read."""
        return task_id in self._ids

    def _take(self, record: Record) -> None:
        if record.key is None or record.key in self._ids:  # of two with one id the first counts
            return
        if (task := self._decoded(record, Task)) is None:
            return
        if (name := ThreadName.of(task)) is not None:
            self._table.add(name, ThreadTask.of(task, record))
        self._ids.add(record.key)


class _Answers(_Follower):
    def __init__(self, settings: Settings, table: _ThreadTable) -> None:
        super().__init__(settings, "responses")
        self.questions = _Questions(settings, table)
        """Read to an end that was asked for after that of the answers: these are answers to those."""
        self._table = table

    def _follow(self) -> None:
        try:
            while not self._over.is_set() and not self.questions.is_read(POLL_S):
                pass
        except StreamwardError:
            return  # both are opened again
        super()._follow()

    def _take_all(self, records: Sequence[Record]) -> None:
        """Take in answers, after the tasks of those that are new."""
        new = (record for record in records if record.at.offset >= self._ends[record.at.topic, record.at.partition])
        if not all(self.questions.has(record.key) for record in new):
            self.questions.catch_up()
        super()._take_all(records)

    def _take(self, record: Record) -> None:
        if record.key is None or not self._table.has_task(record.key.decode(errors="replace")):
            return
        response = self._decoded(record, Response)
        if response is not None and response.error is None:
            self._table.answer(response)


class TaskThreadLog:
    """Every thread that a task names. Use as a context manager; methods may be called from any thread."""

    def __init__(self, settings: Settings) -> None:
        """Raises NotFoundError without the topics, LogError if the broker does not answer."""
        self._table = _ThreadTable()
        self._answers = _Answers(settings, self._table)
        self._questions = self._answers.questions
        self._followers = ExitStack()

    def __enter__(self) -> Self:
        self._followers.enter_context(self._questions)
        self._followers.enter_context(self._answers)
        return self

    def __exit__(self, *exc: object) -> None:
        self._followers.close()

    @property
    def is_broken(self) -> bool:
        """Whether a topic could no longer be read; then both have to be followed again."""
        return self._questions.is_broken or self._answers.is_broken

    def is_read(self, within_s: float) -> bool:
        """Return whether all that was in the log at the beginning was read, or is within so long. Raises LogError."""
        return self._questions.is_read(within_s) and self._answers.is_read(within_s)

    def find(self, thread_id: str) -> TaskThread | None:
        """Return a thread by its name in the log; None if no task that was read names it."""
        return self._table.get(thread_id)

    def catch_up(self) -> None:
        """Return once every task that is in the log by now was read. Raises LogError."""
        self._questions.catch_up()

    def threads(self) -> dict[str, TaskThread]:
        """Return every thread, by its name in the log."""
        return self._table.threads()
