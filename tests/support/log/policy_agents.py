"""What tests of policy agents on a log share.

sum_task ──► tasks      stored ──► the store, and the event for `adapters`      forget_commits: as after a kill
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import confluent_kafka as ck
from confluent_kafka import admin

from schemas.events import AdapterEvent, Message, Task
from streams.adapters import store
from streams.kafka.client import client_config
from streams.kafka.retry import BrokerOutage
from streams.kafka.topics import topics
from streams.settings.model import Settings
from tests.support import factories


def sum_task(name: str, **changes: Any) -> Task:
    """Return a task of policy `p` that asks for 1 + 1, for an evaluation."""
    question = Message(role="user", content="1 + 1 =")
    whole = {"policy": "p", "purpose": "eval", "verifier": '{"answer": "2"}', "messages": (question,)}
    return factories.task(**{"task_id": name, "created_at": 1} | whole | changes)


def stored(
    settings: Settings, version: int, folder: Path, *, policy: str = "p", key: Path | None = None, **changes: Any
) -> AdapterEvent:
    """Put an adapter into the store, signed if there is a key, and return the event that says so."""
    local = folder / f"{policy}-{version}"
    local.mkdir()
    (local / "adapter_model.safetensors").write_bytes(b"weights %d of %s" % (version, policy.encode()))
    uri, files = store.publish(local, settings.adapters.store, policy, version, key)
    return factories.trained(version, policy=policy, created_at=version, uri=uri, files=files, **changes)


def patient(settings: Settings) -> BrokerOutage:
    """Return what asks again where the node says that its coordinator is still loading."""
    return BrokerOutage(settings.kafka, threading.Event())


def forget_commits(settings: Settings, group: str) -> None:
    """Leave the log as agents of a group leave it that are killed between an answer and its commit."""
    name, client = topics(settings.topics)["tasks"].name, admin.AdminClient(client_config(settings.kafka))
    back = [ck.TopicPartition(name, p, 0) for p in range(settings.topics.partitions)]
    commits = ck.ConsumerGroupTopicPartitions(settings.topics.prefix + group, back)
    patient(settings).ask(
        lambda: client.alter_consumer_group_offsets([commits])[commits.group_id].result(), "to forget commits"
    )
