"""A log for the tiny model: batches, the groups they name, and what a trainer made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import confluent_kafka as ck
from confluent_kafka import admin

from schemas.events import AdapterEvent, AdvantagedGroup, Batch, Coordinates, Event, derive_id
from schemas.serde import encode
from streams.engines.base_model import Base
from streams.kafka import admin as cluster
from streams.kafka.client import client_config
from streams.kafka.record import partition_of
from streams.kafka.topics import topics
from streams.settings.model import Settings
from tests.support.factories import changed
from tests.support.log.shared_node import own_prefix
from tests.support.models.tiny import tiny_group, tiny_model
from tests.support.processes import Writer

PER_BATCH = 2


def settings_in(folder: Path, bootstrap: str, base: Base) -> Settings:
    """Settings of topics of their own, which exist, with the tiny model as base; all else lies in `folder`."""
    made = Settings.model_validate(
        {
            "kafka": {"bootstrap": bootstrap},
            "topics": {"prefix": own_prefix(), "partitions": 4, "policy_partitions": 2},
            "trainer": {"checkpoints": folder / "checkpoints"},
            "adapters": {"store": str(folder / "adapters")},
            "model": {"base": base.model.config._name_or_path},
        }
    )
    cluster.apply_topics(made)
    return made


def groups_of(base: Base, sequence: int, policy: str = "default") -> list[AdvantagedGroup]:
    """The groups of a batch; those of another policy than the default are other groups."""
    first = 0 if policy == "default" else 1000 * sum(policy.encode())
    of_base = {"base_digest": base.base_digest, "tokenizer_digest": base.tokenizer_digest}
    about = {"policy": policy, "adapter_version": max(0, sequence - 1), **of_base}
    return [changed(sampled(first + 10 * sequence + number), **about) for number in range(PER_BATCH)]


@cache
def sampled(seed: int) -> AdvantagedGroup:
    """A group of the tiny model, which is sampled once."""
    return tiny_group(tiny_model(), seed)


def batch_of(sequence: int, offsets: list[Coordinates], policy: str = "default") -> Batch:
    return Batch(
        batch_id=derive_id(policy, sequence),
        policy=policy,
        created_at=0,
        sequence=sequence,
        closed_by="count",
        max_policy_lag=1,
        groups=len(offsets),
        responses=4 * len(offsets),
        loss_tokens=0,
        groups_partition=offsets[0].partition,
        groups_offsets=tuple(at.offset for at in offsets),
    )


def write(
    settings: Settings,
    base: Base,
    sequences: range,
    *,
    encoded: Callable[[Event], bytes] = encode,
    headers: Mapping[str, bytes] | None = None,
    policy: str = "default",
    **changes: Any,
) -> None:
    """Write batches of `policy`, with `headers`, and their groups; `changes` go into the first group of each batch."""
    writer = Writer(settings)
    for sequence in sequences:
        first, *rest = groups_of(base, sequence, policy)
        offsets = writer.write(replace(first, **changes), *rest, encoder=encoded)
        writer.write(batch_of(sequence, offsets, policy), headers=headers)


def trained(settings: Settings) -> list[AdapterEvent]:
    events = [record.decode(AdapterEvent) for record in cluster.read_topic(settings, "adapters")]
    return [event for event in events if isinstance(event, AdapterEvent)]


def manifests_of(settings: Settings, policy: str) -> list[tuple[int, Any]]:
    return [(event.version, event.files) for event in trained(settings) if event.policy == policy]


def manifests(settings: Settings) -> list[tuple[int, Any]]:
    return [(event.version, event.files) for event in trained(settings)]


def cut(settings: Settings, label: str, before: int) -> None:
    """Delete what lies before an offset in the policy's partition, as retention does."""
    partition = partition_of("default", settings.topics.policy_partitions)
    client = admin.AdminClient(client_config(settings.kafka))
    wanted = ck.TopicPartition(topics(settings.topics)[label].name, partition, before)
    for future in client.delete_records([wanted]).values():
        future.result()
