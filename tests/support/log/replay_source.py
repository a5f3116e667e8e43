"""A source log for replays: one policy's tasks, answered by two versions, beside what no experiment may touch.

    write(settings) ──► NUMBER train tasks, each whole before the next, a lag among them ──► what the join makes of it

Each task is answered in SIZE slots and scored by `exact`, so its group stands where its last reward stands. Version 1
is announced after the first half; task FRESH is then answered by it, the tasks after that still by version 0.

Not covered: groups and batches as a live worker writes them. Whoever compares asks the batch driver.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from schemas.events import AdapterEvent, AdvantagedGroup, Event, Response, Reward, RewardSource
from schemas.serde import encode
from streams.engines.base_model import load_base
from streams.kafka import admin
from streams.kafka.producer import Producer
from streams.kafka.record import key_of
from streams.kafka.topics import topic_of, topics
from streams.settings.model import Batches, Kafka, Model, Settings, Topics
from tests.support import factories
from tests.support.factories import T0, response, reward, task
from tests.support.log.shared_node import own_prefix
from tests.support.models.tiny import save_tiny

NUMBER, SIZE, HALF = 8, 3, 4
FRESH = 4
"""The first task behind version 1; it is answered by that version, and those behind it are one version behind."""
STEP_MS = 5
BEGUN_MS = 1_750_000_000_000
"""When the first record was written."""


def shaped(settings: Settings) -> Settings:
    """Return settings with few partitions and batches of two groups."""
    return settings.model_copy(
        update={
            "topics": Topics(prefix=settings.topics.prefix, partitions=3, policy_partitions=2, retention_days=0),
            "batches": Batches(groups=2, max_policy_lag=1),
        }
    )


def name_of(number: int) -> str:
    return f"task-{number}"


def answers(task_id: str, version: int = 0, **changes: Any) -> list[Response]:
    return [
        response(
            task_id=task_id,
            sampling_id=f"{task_id}/first",
            slot=slot,
            group_size=SIZE,
            adapter_version=version,
            text="1" * (slot + 1),
            **changes,
        )
        for slot in range(SIZE)
    ]


def verdicts(slots: list[Response]) -> list[Reward]:
    return [reward(slot, value=float(slot.slot == 1)) for slot in slots]


def about(number: int, **sampled: Any) -> list[Event]:
    """Return everything about one train task, in order; `sampled` is said by each of its responses."""
    asked = task(task_id=name_of(number), group_size=SIZE, scenario="odd" if number % 2 else "even")
    slots = answers(asked.task_id, **{"version": 1 if number == FRESH else 0} | sampled)
    return [asked, *slots, *verdicts(slots)]


def trained(version: int) -> AdapterEvent:
    metrics = {"step_s": 2.0, "groups": 2.0, "tokens_run": 8.0}
    return factories.trained(version, created_at=T0, uri=None, metrics=metrics)


def strangers() -> list[Event]:
    """Return what no experiment on policy `default` may hold: another policy's task, and a held-out one."""
    held_out = task(task_id="held-out", purpose="eval", group_size=1, adapter_version=0)
    other = task(task_id="elsewhere", policy="other", group_size=SIZE, reward_sources=(RewardSource(name="exact"),))
    return [held_out, other, *answers("elsewhere", policy="other")]


def write(settings: Settings, **sampled: Any) -> int:
    """Make the topics and write the log; return the time behind its last record."""
    admin.apply_topics(settings)
    log: list[Event] = strangers()
    for number in range(NUMBER):
        if number == HALF:
            log.append(trained(1))
        log += about(number, **sampled)
    return append(settings, log, BEGUN_MS)


def write_tiny(bootstrap: str, folder: Path, version: int) -> Settings:
    """Write the log with responses of a version that are tokens of the tiny model, saved in `folder`."""
    model = Model(base=str(save_tiny(folder / "tiny")))
    base = load_base(model)
    settings = shaped(Settings(kafka=Kafka(bootstrap=bootstrap), topics=Topics(prefix=own_prefix()), model=model))
    digests = {"base_digest": base.base_digest, "tokenizer_digest": base.tokenizer_digest}
    write(settings, version=version, prompt_token_ids=(1, 5, 6), completion_token_ids=(7, 2), **digests)
    return settings


def append(settings: Settings, log: list[Event], begun_ms: int) -> int:
    """Write events with times of their own, STEP_MS apart; return the time behind the last."""
    now_ms = begun_ms
    with Producer(settings) as producer:
        for event in log:
            topic = topic_of(type(event), settings.topics)
            producer.send_bytes(topic.name, key_of(event, topic), encode(event), timestamp_ms=now_ms)
            now_ms += STEP_MS
    return now_ms


def without_place(group: AdvantagedGroup) -> AdvantagedGroup:
    """Return a group without what an experiment may have otherwise: policy, recorded lag, where its responses lie."""
    metadata = {key: text for key, text in group.metadata.items() if key != "policy_lag"}
    slots = tuple(replace(one, partition=0, offset=0) for one in group.responses)
    return replace(group, policy="any", metadata=metadata, responses=slots)


def contents(settings: Settings) -> dict[str, list[tuple[Any, ...]]]:
    """Return every record of every topic, by label: partition, offset, time, key, payload."""
    return {
        label: sorted(
            (r.at.partition, r.at.offset, r.timestamp_ms, r.key, r.payload) for r in admin.read_topic(settings, label)
        )
        for label in topics(settings.topics)
    }
