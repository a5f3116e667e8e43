"""Follow the offset of each task of the log in a thread, and write new tasks once.

    tasks ──► LogIndex, and a thread for what came since ──► task_id ──► offset of its first record
    submit ──► known? ──► tasks ──► taken in ──► the first of its id? ──► SubmittedTask, or another task has the id

Of one id with two contents the first in the log counts, as for the agents; so if two servers get different tasks with
one id at once, one reports that the id is taken.

Not covered: a task that retention has deleted: its id is free again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import NamedTuple, Self

from schemas.events import Coordinates, Task
from schemas.serde import Poison
from streams.errors import LogError, RefusedError
from streams.kafka import times
from streams.kafka.admin import check_topics, offsets
from streams.kafka.followed import FollowedTopic
from streams.kafka.log_index import LogIndex
from streams.kafka.reader import fetch
from streams.kafka.record import Record, TopicPartition, partition_of
from streams.kafka.topics import topics
from streams.observability.trace_context import Context
from streams.observability.tracing import tracer as tracing
from streams.settings.model import Settings


class SubmittedTask(NamedTuple):
    """A task in the log."""

    at: Coordinates
    timestamp_ms: int
    task: Task


class TaskIndex(FollowedTopic):
    """The tasks of the log by their ids, once it `is_read`. Methods may be called from any thread."""

    def __init__(self, settings: Settings) -> None:
        """Raises NotFoundError if the topic does not exist, SettingsError if it has other partitions than it should,
        LogError."""
        check_topics(settings, ["tasks"])
        super().__init__(settings, "tasks")
        self._topic = topics(settings.topics)["tasks"]
        self._opened = ExitStack()
        self._tracer = self._opened.enter_context(tracing.open_tracer(settings, "submit"))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        self._opened.close()

    def find(self, task_id: str) -> SubmittedTask | None:
        """Return a task; None if the log has no task with this id now. Raises RefusedError if its record cannot be
        read."""
        if (found := self._known(task_id)) is not None:
            return found
        place = self._place(task_id)
        _, end = offsets(self._settings, ["tasks"])[place]
        self._wait_for(Coordinates(*place, end - 1))  # another process may have just written it
        return self._known(task_id)

    def submit(self, task: Task, *, under: Context | None = None) -> SubmittedTask:
        """Return a task in the log, writing it if it is missing. A task without its own trace joins the trace `under`.
        Raises RefusedError if another task has its id, LogError if the broker does not answer, EncodeError or
        EventError for a task that no record can hold.
        """
        known = self._known(task.task_id)
        if known is None:
            trace = self._tracer.begins(task, under)
            at = self._write(task, tracing.headers_of(trace))
            if (told := self._tracer.on_ack(task, trace)) is not None:
                told(at)
            if self._offset(task.task_id) == at.offset:
                return SubmittedTask(at, times.now_ms(), task)
            known = self._known(task.task_id)
        if known is None or not same(known.task, task):
            where = "" if known is None else f" at {known.at}"
            raise RefusedError(f"task_id {task.task_id} is that of another task{where}; give this one an id of its own")
        return known

    def _known(self, task_id: str) -> SubmittedTask | None:
        place, offset = self._place(task_id), self._offset(task_id)
        if offset is None:
            return None
        at = Coordinates(*place, offset)
        try:
            record = fetch(self._settings, [at])[at]
        except LogError:
            if offsets(self._settings, ["tasks"])[place][0] <= offset:
                raise
            return None
        task = record.decode(Task)
        if isinstance(task, Poison):
            raise RefusedError(f"{at}: the record of task {task_id} cannot be read: {task.error}; take another id")
        return SubmittedTask(at, record.timestamp_ms, task)

    def _offset(self, task_id: str) -> int | None:
        with self._changed:
            self._raise_error()
            rows = self._rows.find(task_id.encode())
        partition = self._place(task_id)[1]  # a record outside its key's partition is not a task
        return min((row.offset for row in rows if row.partition == partition), default=None)

    def _place(self, task_id: str) -> tuple[str, int]:
        return self._topic.name, partition_of(task_id, self._topic.partitions)

    def _starts(self, bounds: Mapping[TopicPartition, tuple[int, int]]) -> dict[TopicPartition, int]:
        self._rows = LogIndex(self._settings, topics(self._settings.topics)["tasks"].name, bounds)
        return self._rows.starts

    def _take(self, record: Record) -> None:
        if record.key is not None:
            self._rows.add(record.key, record.at)
        self._rows.cover(record)

    def _take_all(self, records: Sequence[Record]) -> None:
        super()._take_all(records)
        if self._has_begun():
            self._rows.save()


def same(one: Task, other: Task) -> bool:
    """Return whether two tasks have the same content, independent of sender and time."""
    return _said(one) == _said(other)


def _said(task: Task) -> Task:
    metadata = {name: value for name, value in task.metadata.items() if name != "source"}
    return replace(task, created_at=0, traceparent=None, metadata=metadata)
