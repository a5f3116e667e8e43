"""Ask the primary version one question, and record feedback on an answer.

    question ──► a `serve` task ──► (a policy agent) ──► its response
    its id, value ──► the response, turn or trajectory in the log ──► a reward from source `feedback/NAME`

Both are ordinary records, so they can be queried, traced and audited. Feedback does not join a group: a single answer
has no siblings to compare with (schemas/conventions.py).
"""

from __future__ import annotations

import time
import uuid

from schemas.conventions import FEEDBACK, RatedAnswer, feedback
from schemas.events import (
    Coordinates,
    Message,
    Response,
    Reward,
    Sampling,
    Task,
    TrajectoryEvent,
    Turn,
    derive_id,
)
from schemas.serde import Poison
from streams.errors import EventError, LogError, NotFoundError, RefusedError, StreamwardError
from streams.kafka.admin import offsets, offsets_at, read_topic
from streams.kafka.producer import Producer
from streams.kafka.reader import PartitionReader, read
from streams.kafka.record import TopicPartition, partition_of
from streams.kafka.times import now_ms
from streams.kafka.topics import topics
from streams.settings.model import Settings
from streams.stages.tasks.submit import submit

SCENARIO = "ask"
ID_PREFIXES = ("chatcmpl-", "cmpl-", "resp_", "msg_")
"""What the protocols of agents write before the id of a turn."""
CLOCKS_MS = 3_600_000
"""How much earlier than its answer an opinion may seem to be: clocks of two machines differ."""


def question(settings: Settings, text: str, *, system: str | None, sampling: Sampling, wait_s: float) -> Task:
    """Return a task that asks policy.name for one answer, without scorers."""
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
    settings: Settings, answer: RatedAnswer, value: float, *, source: str, reason: str | None
) -> Coordinates:
    """Record a user's opinion of an answer, and return its place. The same opinion is not written twice. Raises
    RefusedError if the source rated it otherwise before, LogError if the broker does not answer.
    """
    opinion = feedback(answer, value, source=source, reason=reason, now_ms=now_ms())
    return write_reward(settings, opinion, since_ms=answer.created_at)


def write_reward(settings: Settings, reward: Reward, *, since_ms: int) -> Coordinates:
    """Record a reward of an answer that came at `since_ms`, and return where it is; the same again is not written.

    Raises RefusedError if its source said otherwise before, or at the same moment; LogError if the broker does not
    answer.
    """
    topic = topics(settings.topics)["rewards"]
    tp = (topic.name, partition_of(reward.task_id, topic.partitions))
    low, high = offsets(settings, ["rewards"])[tp]
    since = offsets_at(settings, ["rewards"], max(0, since_ms - CLOCKS_MS))[tp]
    first = _first_of(settings, reward, tp, max(low, since) if since >= 0 else high, high)
    if first is None:
        written: list[Coordinates] = []
        with Producer(settings) as producer:
            producer.send(reward, on_ack=written.append)
        first = _first_of(settings, reward, tp, high, written[0].offset + 1)
    if first is None:
        raise LogError(f"{tp[0]}[{tp[1]}]: a reward that was acknowledged is not there; see `streamward doctor`")
    at, known = first
    if _says(known) == _says(reward):
        return at
    said = f"{reward.source.removeprefix(FEEDBACK)} gave {reward.response_id} {known.value} before"
    raise RefusedError(f"{at}: {said}, and the log keeps it; record a second opinion under another source")


def _first_of(
    settings: Settings, reward: Reward, tp: TopicPartition, start: int, end: int
) -> tuple[Coordinates, Reward] | None:
    """Return the first reward of an id, with its coordinates."""
    for record in read(settings, {tp: start}, {tp: end}):
        known = record.decode(Reward) if record.key == reward.task_id.encode() else None
        if isinstance(known, Reward) and known.reward_id == reward.reward_id:
            return record.at, known
    return None


def _says(reward: Reward) -> tuple[object, ...]:
    return reward.value, reward.rationale, dict(reward.components), dict(reward.metadata)


def bare_id(name: str) -> str:
    """Return the id of a response, turn or trajectory, which the protocols of agents write with a prefix.

    >>> bare_id("chatcmpl-2f1c"), bare_id("2f1c")
    ('2f1c', '2f1c')
    """
    for prefix in ID_PREFIXES:
        name = name.removeprefix(prefix)
    return name


def find_answer(settings: Settings, name: str) -> RatedAnswer:
    """Return a response, a turn or a trajectory by its id. The id does not tell its place, so the topics are read.
    Raises NotFoundError.
    """
    wanted = bare_id(name)
    kinds: dict[str, type[Response | Turn | TrajectoryEvent]] = {
        "responses": Response,
        "turns": Turn,
        "trajectories": TrajectoryEvent,
    }
    for label, kind in kinds.items():
        for record in read_topic(settings, label):
            if wanted.encode() not in (record.payload or b""):  # much quicker than decoding each
                continue
            event = record.decode(kind)
            if not isinstance(event, Poison) and _id_of(event) == wanted:
                about = (event.task_id, event.policy, event.slot or 0, event.created_at, event.subject)
                return RatedAnswer(wanted, *about)
    raise NotFoundError(
        f"no response {wanted} in {topics(settings.topics)['responses'].name}, and no turn or trajectory of that id; "
        "`streamward events tail responses turns --from -20 --until-end --output jsonl` shows the newest with their ids"
    )


def _id_of(event: Response | Turn | TrajectoryEvent) -> str:
    match event:
        case Response():
            return event.response_id
        case Turn():
            return event.turn_id
    return event.trajectory_id
