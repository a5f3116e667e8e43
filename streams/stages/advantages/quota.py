"""How much of each topic a group may remember, so that its row always fits into the table's changelog.

    an event about a task ──► its weight in the row ──► the use of its topic's share ──► counted
                                                        in the order of offsets      └─► over_quota: a dead letter

A row grows with each record about its task, whichever client wrote it. So each of three topics has a share of the row.
The first record that does not fit into it is refused, as is every later one about the task in that topic. Only offsets
of one topic decide this, so the order in which topics are read does not matter. A record that is read again after a
restart is recognised by its offset, and not counted twice.

A weight is an upper bound of what the record adds to the row, whether it waits, enters, is rejected, or is remembered
after the group left. A repetition has the same weight.
"""

from __future__ import annotations

import json
from json.encoder import encode_basestring_ascii as quoted

from schemas.events import Coordinates
from streams.stages.advantages.checks import Rejection
from streams.stages.advantages.state import QuotaUse, ResponseCandidate, RewardRef, ShareUse, TaskInfo

RESERVED_BYTES = 2048
"""Bytes of each row for field names and for Kafka's overhead."""
EIGHTHS = (1, 3, 4)
"""How the rest is shared by tasks, responses and rewards."""
TASK_BYTES, RESPONSE_BYTES, REWARD_BYTES = 256, 256, 128
"""Maximum bytes of a record beyond its texts, components and steps: numbers, digests, a response_id."""
NUMBER_BYTES = 26
"""Maximum bytes of a number with its separators."""


def count_record(
    use: QuotaUse,
    task_id: str,
    event: TaskInfo | ResponseCandidate | RewardRef,
    coordinates: Coordinates,
    row_bytes: int,
) -> tuple[QuotaUse, Rejection | None]:
    """Return the use of the shares after the record at `coordinates`, and why it is refused, or None.

    `row_bytes` is the maximum size of a row with its key.
    """
    number, weight = _weigh(event)
    used, last, full_at = use[number]
    if full_at is not None:
        return use, _over_quota(task_id, coordinates, full_at) if coordinates.offset >= full_at else None
    if coordinates.offset <= last:
        return use, None  # read again
    room = row_bytes - RESERVED_BYTES - len(task_id.encode())
    if room <= 0:  # no row fits with this key; none is needed to refuse everything
        return use, _over_quota(task_id, coordinates, coordinates.offset)
    if number == 0 and used:
        weight = TASK_BYTES  # only a digest is kept of a further task
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
    """Return the place of the event's topic in QuotaUse, and the maximum number of bytes of its record."""
    if isinstance(event, RewardRef):
        parts, steps = event.score.components, event.score.steps
        weight = REWARD_BYTES + len(quoted(event.response_id)) + len(quoted(event.source))
        if parts or steps:
            weight += sum(map(len, map(quoted, parts))) + NUMBER_BYTES * (len(parts) + len(steps))
        return 2, weight
    if isinstance(event, ResponseCandidate):  # a closed group also names the sampling that it was made of
        return 1, RESPONSE_BYTES + 2 * len(quoted(event.sampling_id)) + len(quoted(event.policy))
    return 0, TASK_BYTES + len(json.dumps(event))
