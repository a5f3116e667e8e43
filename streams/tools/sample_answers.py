"""Sample answers with the expected ones, for diagnoses of groups that taught nothing.

GroupFacts of the newest groups ──► their responses, by offset, and tasks, by key ──► SampleAnswer
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from schemas import json_text
from schemas.events import Response, Task
from streams.adapters.learning import GroupFacts
from streams.evaluation.diagnosis import SHOWN_ANSWERS, SampleAnswer
from streams.kafka import admin
from streams.kafka.reader import read
from streams.kafka.record import TopicPartition, partition_of
from streams.kafka.topics import topics
from streams.settings.model import Settings

TASKS_READ = 20_000
"""Newest tasks of a partition in which those of the answers are looked for; of older ones nothing is expected."""


def sample_of(task: Task | None, text: str) -> SampleAnswer:
    """Return an answer with what its task expects; without the task, alone."""
    if task is None:
        return SampleAnswer("", (), text)
    question = task.messages[-1].content if task.messages else ""
    return SampleAnswer(question, expected_answers(task.verifier), text)


def expected_answers(verifier: str) -> tuple[str, ...]:
    """Return the right answers in a verifier; none if it names none.

    >>> expected_answers('{"answer": 2}'), expected_answers('{"answer": ["a", "b"]}'), expected_answers("{}")
    (('2',), ('a', 'b'), ())
    """
    try:
        answer = json_text.parse(verifier).get("answer")
    except (ValueError, AttributeError):
        return ()
    if isinstance(answer, list | tuple):
        return tuple(map(str, answer))
    return () if answer is None else (str(answer),)


def sample_answers(settings: Settings, groups: Sequence[GroupFacts]) -> list[SampleAnswer]:
    """Return answers of the newest scored groups, first one of each group. Raises LogError."""
    scored = [facts for facts in groups if facts.places][-SHOWN_ANSWERS:]
    if not scored:
        return []
    texts = _texts(settings, scored)
    tasks = _tasks(settings, [facts.task_id for facts in scored])
    slots = range(max(len(facts.places) for facts in scored))
    return [
        sample_of(tasks.get(facts.task_id), texts[facts.places[slot]])
        for slot in slots
        for facts in scored
        if slot < len(facts.places) and facts.places[slot] in texts
    ]


def _texts(settings: Settings, groups: Sequence[GroupFacts]) -> dict[tuple[int, int], str]:
    """Return the text of each answer of these groups, by partition and offset; retention may have taken some."""
    name = topics(settings.topics)["responses"].name
    bounds = admin.offsets(settings, ["responses"])
    places = {place for facts in groups for place in facts.places}
    texts: dict[tuple[int, int], str] = {}
    for facts in groups:
        (tp, first, last) = _range(name, facts)
        if tp not in bounds:
            continue
        start, end = max(first, bounds[tp][0]), min(last + 1, bounds[tp][1])
        for record in read(settings, {tp: start}, {tp: max(start, end)}):
            response = record.decode(Response)
            if isinstance(response, Response) and (tp[1], record.at.offset) in places:
                texts[tp[1], record.at.offset] = response.text
    return texts


def _range(topic: str, facts: GroupFacts) -> tuple[TopicPartition, int, int]:
    """Return the part of a partition that has the answers of a group."""
    partition, offsets = facts.places[0][0], [offset for _, offset in facts.places]
    return (topic, partition), min(offsets), max(offsets)


def _tasks(settings: Settings, task_ids: Sequence[str]) -> dict[str, Task]:
    return {task.task_id: task for task in _newest_tasks(settings, task_ids) if task.task_id in task_ids}


def _newest_tasks(settings: Settings, task_ids: Sequence[str]) -> Iterator[Task]:
    topic = topics(settings.topics)["tasks"]
    partitions = {partition_of(task_id, topic.partitions) for task_id in task_ids}
    bounds = {tp: bound for tp, bound in admin.offsets(settings, ["tasks"]).items() if tp[1] in partitions}
    starts = {tp: max(first, end - TASKS_READ) for tp, (first, end) in bounds.items()}
    keys = {task_id.encode() for task_id in task_ids}
    for record in read(settings, starts, {tp: bounds[tp][1] for tp in starts}):
        if record.key in keys and isinstance(task := record.decode(Task), Task):
            yield task
