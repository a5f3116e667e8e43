"""Send tasks that are not in the log yet.

    Task … ──► keys of `tasks`, in their partitions ──► those that are missing ──► tasks

Two submissions at the same moment may both find a task missing. The policy agent skips the second copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from schemas import key_source
from schemas.events import Task
from streams.kafka.admin import check_topics, offsets
from streams.kafka.producer import Producer
from streams.kafka.reader import read
from streams.kafka.record import Record, partition_of
from streams.kafka.topics import topics
from streams.observability.trace_context import Context
from streams.observability.tracing import tracer as tracing
from streams.settings.model import Settings


class Submitted(NamedTuple):
    """The result of a submission."""

    sent: tuple[Task, ...]
    known: tuple[Task, ...]
    """Number of tasks that were already in the log."""


def submit(settings: Settings, tasks: Iterable[Task], *, under: Context | None = None) -> Submitted:
    """Send the tasks that are not in the log yet, and return once they are acknowledged.

    Tasks without their own trace join the trace `under`. Raises NotFoundError if the topic is missing,
    SettingsError if it has other partitions than it should, LogError if the broker refuses, EncodeError for a malformed
    task.
    """
    check_topics(settings, ["tasks"])
    wanted = {task.task_id: task for task in tasks}
    there = known_ids(settings, wanted)
    new = tuple(task for task_id, task in wanted.items() if task_id not in there)
    with tracing.open_tracer(settings, "submit") as tracer, Producer(settings) as producer:
        for task in map(_of_present_subject, new):
            trace = tracer.begins(task, under)
            producer.send(task, on_ack=tracer.on_ack(task, trace), headers=tracing.headers_of(trace))
    return Submitted(sent=new, known=tuple(wanted[task_id] for task_id in wanted if task_id in there))


def _of_present_subject(task: Task) -> Task:
    """Return a task under its person's present pseudonym: a person may have expired, which no file says."""
    if task.subject is None:
        return task
    keys = key_source.current()
    try:
        keys.key_of(task.subject)
    except key_source.UnknownKeyError:
        return task  # it cannot be written, which the producer says
    except key_source.ErasedError:
        with suppress(key_source.ErasedError):  # erased for good: it is written without its words
            return replace(task, subject=keys.subject_of(task.tenant, task.subject, None) or task.subject)
    return task


def known_ids(settings: Settings, task_ids: Iterable[str]) -> set[str]:
    """Return those of `task_ids` that are in the log now."""
    return {record.key.decode() for record in records_of(settings, task_ids) if record.key}


def records_of(settings: Settings, task_ids: Iterable[str], label: str = "tasks") -> Iterator[Record]:
    """Yield every record of a topic with one of these task ids as its key, the first of each id first."""
    wanted = {task_id.encode() for task_id in task_ids}
    if not wanted:
        return
    topic = topics(settings.topics)[label]
    partitions = {partition_of(key.decode(), topic.partitions) for key in wanted}
    bounds = {tp: bound for tp, bound in offsets(settings, [label]).items() if tp[1] in partitions}
    starts, ends = {tp: low for tp, (low, _) in bounds.items()}, {tp: high for tp, (_, high) in bounds.items()}
    for record in read(settings, starts, ends):
        if record.key in wanted:
            yield record
