"""Ask the version in force one question, and record what somebody thinks of an answer.

    question ──► a `serve` task ──► (a policy agent) ──► its response
    response id, value ──► the response in the log ──► a reward from source `feedback/NAME`, in the same partition

Both are ordinary records, so they can be queried, traced and audited. Feedback enters no group: one answer has no
siblings to be better than (schemas/conventions.py).
"""

from __future__ import annotations

import time
import uuid

from schemas.conventions import FEEDBACK
from schemas.events import Coordinates, Message, Response, Reward, Sampling, Task, derive_id
from streams.errors import EventError, NotFoundError, RefusedError, StreamwardError
from streams.kafka.admin import offsets
from streams.kafka.producer import Producer
from streams.kafka.reader import PartitionReader, read
from streams.kafka.record import partition_of
from streams.kafka.times import now_ms
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.stages.tasks.submit import submit

SCENARIO = "ask"
SCORER_VERSION = "feedback/1"


def question(settings: Settings, text: str, *, system: str | None, sampling: Sampling, wait_s: float) -> Task:
    """Return the task that asks policy.name for one answer, which nobody scores."""
    messages = (Message(role="user", content=text),)
    return Task(
        task_id=derive_id(SCENARIO, uuid.uuid4()),  # asked again, it is another question
        created_at=now_ms(),
        policy=settings.policy.name,
        purpose="serve",
        scenario=SCENARIO,
        group_size=1,
        deadline_at=now_ms() + int(wait_s * 1000),
        sampling=sampling,
        messages=messages if system is None else (Message(role="system", content=system), *messages),
    )


def ask(settings: Settings, task: Task, *, wait_s: float) -> Response:
    """Submit a task of one slot and return its answer.

    Raises StreamwardError if there is none within `wait_s` seconds, EventError if it failed.
    """
    topic = topics(settings.topics)["responses"]
    tp = (topic.name, partition_of(task.task_id, topic.partitions))
    _, end = offsets(settings, ["responses"])[tp]
    submit(settings, [task])
    stop_at = time.monotonic() + wait_s
    with PartitionReader(settings, {tp: end}) as reader:
        while time.monotonic() < stop_at:
            for record in reader.poll():
                response = record.decode(Response) if record.key == task.task_id.encode() else None
                if isinstance(response, Response):
                    if response.error is not None:
                        raise EventError(f"task {task.task_id} has no answer: {response.error}")
                    return response
    raise StreamwardError(
        f"no answer to task {task.task_id} within {wait_s:g} s; does a policy agent of {task.policy} run? Start one "
        "with `streamward policy` or `streamward up`, or wait longer with --wait"
    )


def give_feedback(
    settings: Settings, response_id: str, value: float, *, source: str, reason: str | None
) -> Coordinates:
    """Record somebody's opinion of a response, and return where it is. The same opinion again is not written again.

    Raises NotFoundError if there is no such response, RefusedError if the source said otherwise about it before.
    """
    response = find_response(settings, response_id)
    name = FEEDBACK + source
    opinion = Reward(
        reward_id=derive_id(response_id, name),
        response_id=response_id,
        task_id=response.task_id,
        created_at=now_ms(),
        policy=response.policy,
        slot=response.slot,
        source=name,
        value=value,
        scorer_version=SCORER_VERSION,
        rationale=reason,
    )
    topic = topics(settings.topics)["rewards"]
    tp = (topic.name, partition_of(response.task_id, topic.partitions))
    low, high = offsets(settings, ["rewards"])[tp]
    for record in read(settings, {tp: low}, {tp: high}):
        known = record.decode(Reward) if record.key == response.task_id.encode() else None
        if isinstance(known, Reward) and known.reward_id == opinion.reward_id:
            if (known.value, known.rationale) == (value, reason):
                return record.at
            raise RefusedError(
                f"{record.at}: {source} gave response {response_id} {known.value:g} before, and the log keeps it; "
                "record a second opinion under another --source"
            )
    written: list[Coordinates] = []
    with Producer(settings) as producer:
        producer.send(opinion, on_ack=written.append)
    return written[0]


def find_response(settings: Settings, response_id: str) -> Response:
    """Return a response by its id, which does not say where it is: the topic is read. Raises NotFoundError."""
    bounds = offsets(settings, ["responses"])
    starts, ends = {tp: low for tp, (low, _) in bounds.items()}, {tp: high for tp, (_, high) in bounds.items()}
    for record in read(settings, starts, ends):
        if response_id.encode() not in (record.payload or b""):  # much quicker than decoding each
            continue
        response = record.decode(Response)
        if isinstance(response, Response) and response.response_id == response_id:
            return response
    raise NotFoundError(
        f"no response {response_id} in {topics(settings.topics)['responses'].name}; `streamward events tail responses "
        "--from -20 --until-end --output jsonl` shows the newest with their ids"
    )
