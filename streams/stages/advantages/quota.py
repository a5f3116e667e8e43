"""How much of each topic a group may remember, so that its row always fits into the table's changelog.

    an event about a task ──► its weight in the row ──► the use of its topic's share ──► counted
                                                        in the order of offsets      └─► over_quota: a dead letter

A row grows with each record about its task, whoever wrote it. So each of three topics has a share of the row. The first
record that does not fit into it is refused, and with it every later one about the task in that topic. Offsets of one
topic alone decide this, so it is the same in whatever order the topics are read side by side. A record that is read
again after a restart is recognised by its offset, and not counted twice.

A weight is an upper bound of what the record adds to the row, whatever becomes of it: it waits, enters, is rejected, or
is remembered after the group left. A repetition has the same weight.
"""

from __future__ import annotations

import json
from json.encoder import encode_basestring_ascii as quoted

from schemas.events import Coordinates
from streams.stages.advantages.checks import Rejection
from streams.stages.advantages.state import QuotaUse, ResponseCandidate, RewardRef, ShareUse, TaskInfo

RESERVED_BYTES = 2048
"""Of each row: for the names of its fields, and what Kafka adds to a record."""
EIGHTHS = (1, 3, 4)
"""Of the rest: the shares of tasks, responses and rewards."""
TASK_BYTES, RESPONSE_BYTES, REWARD_BYTES = 256, 256, 128
"""The most that a record takes beyond its texts, components and steps: numbers, digests, a response_id."""
NUMBER_BYTES = 26
"""The most that a number takes, with its separators."""


def count_record(
    use: QuotaUse,
    task_id: str,
    event: TaskInfo | ResponseCandidate | RewardRef,
    coordinates: Coordinates,
    row_bytes: int,
) -> tuple[QuotaUse, Rejection | None]:
    """Return the use of the shares after the record at `coordinates`, and why it is refused, or None.

    `row_bytes` is the most that a row and its key may have.
    """
    number, weight = _weigh(event)
    used, last, full_at = use[number]
    if full_at is not None:
        return use, _over_quota(task_id, coordinates, full_at) if coordinates.offset >= full_at else None
    if coordinates.offset <= last:
        return use, None  # read again
    room = row_bytes - RESERVED_BYTES - len(task_id.encode())
    if room <= 0:  # with this key no row fits, and to refuse everything none is needed
        return use, _over_quota(task_id, coordinates, coordinates.offset)
    if number == 0 and used:
        weight = TASK_BYTES  # of a further task only a digest is remembered
    fits = used + weight <= room * EIGHTHS[number] // 8
    after = ShareUse(used + weight, coordinates.offset) if fits else ShareUse(used, last, coordinates.offset)
    shares = QuotaUse._make((*use[:number], after, *use[number + 1 :]))
    return shares, None if fits else _over_quota(task_id, coordinates, coordinates.offset)


def _over_quota(task_id: str, coordinates: Coordinates, full_at: int) -> Rejection:
    return "over_quota", (
        f"from offset {full_at} on, the join remembers no more of {coordinates.topic} about task {task_id:.100}. Look "
        "for the producer of so many or so large records about one task; if all are needed, raise "
        "topics.max_record_bytes"
    )


def _weigh(event: TaskInfo | ResponseCandidate | RewardRef) -> tuple[int, int]:
    """Return the place of the event's topic in QuotaUse, and how many bytes a record of it takes at most."""
    if isinstance(event, RewardRef):
        parts, steps = event.score.components, event.score.steps
        weight = REWARD_BYTES + len(quoted(event.response_id)) + len(quoted(event.source))
        if parts or steps:
            weight += sum(map(len, map(quoted, parts))) + NUMBER_BYTES * (len(parts) + len(steps))
        return 2, weight
    if isinstance(event, ResponseCandidate):  # a closed group also names the sampling that it was made of
        return 1, RESPONSE_BYTES + 2 * len(quoted(event.sampling_id)) + len(quoted(event.policy))
    return 0, TASK_BYTES + len(json.dumps(event))
