"""Why a task cannot be sent, or would teach nothing: it is looked at before anything is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from schemas import serde
from schemas.events import Sampling, Task
from streams.scorers import source_problems
from streams.settings.model import Topics

RECORD_OVERHEAD_BYTES = 512
"""Kafka's overhead for a payload: batch header, key, headers."""


def task_problems(task: Task, topic_settings: Topics, min_group: int = 2) -> Iterator[str]:
    """Yield each problem of a task, before it is sent: fields, size, group, sampling, scorers."""
    try:
        size = len(serde.encode(replace(task, subject=None)))
    except serde.EncodeError as exc:
        yield str(exc)
        return
    if task.subject is not None:
        size *= 2  # at most: what is in clear, and all of it once more
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
