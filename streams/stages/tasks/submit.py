"""Send tasks that are not in the log yet.

    Task … ──► LogIndex of `tasks`, in their partitions ──► those that are missing ──► tasks

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
from streams.kafka.log_index import LogIndex
from streams.kafka.producer import Producer
from streams.kafka.reader import read
from streams.kafka.record import Record, TopicPartition, partition_of
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
    wanted = [*task_ids]
    index = _index(settings, wanted, "tasks")
    return {task_id for task_id in wanted if index.find(task_id.encode())}


def records_of(settings: Settings, task_ids: Iterable[str], label: str = "tasks") -> Iterator[Record]:
    """Yield every record of a topic with one of these task ids as its key, the first of each id first."""
    wanted = {task_id.encode() for task_id in task_ids}
    index, name = _index(settings, (key.decode() for key in wanted), label), topics(settings.topics)[label].name
    places: dict[TopicPartition, list[int]] = {}
    for row in (row for key in wanted for row in index.find(key)):
        places.setdefault((name, row.partition), []).append(row.offset)
    ends = {tp: max(of_partition) + 1 for tp, of_partition in places.items()}
    for record in read(settings, {tp: min(of_partition) for tp, of_partition in places.items()}, ends):
        if record.key in wanted:
            yield record


def _index(settings: Settings, task_ids: Iterable[str], label: str) -> LogIndex:
    """Return the rows of the partitions of these tasks, up to their present ends."""
    topic = topics(settings.topics)[label]
    partitions = {partition_of(task_id, topic.partitions) for task_id in task_ids}
    bounds = {tp: bound for tp, bound in offsets(settings, [label]).items() if tp[1] in partitions}
    index = LogIndex(settings, topic.name, bounds)
    for record in read(settings, index.starts, {tp: end for tp, (_, end) in bounds.items()}):
        if record.key is not None:
            index.add(record.key, record.at)
        index.cover(record)
    index.save()
    return index
