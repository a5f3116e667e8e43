"""The rollouts stage inside the stream worker, on a real log: a trained version is promoted, a suite is evaluated."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from schemas.events import AdapterEvent, AdvantagedGroup, DeadLetter, LeftOut, derive_id
from schemas.serde import Poison
from streams.adapters.versions import read_state
from streams.kafka import admin
from streams.kafka.producer import Producer
from streams.kafka.topics import topics
from streams.settings.model import Settings
from tests.support import factories
from tests.support.factories import member
from tests.support.processes import command, environment, spawn, until

pytestmark = pytest.mark.kafka

SUITE = {"suite": "sums", "suite_size": "2", "pinned_version": "1"}


def trained(version: int) -> AdapterEvent:
    return factories.trained(version, policy="p", created_at=version)


def group(name: str, *, answered: bool = True, metadata: dict[str, str] | None = None) -> AdvantagedGroup:
    return factories.group(
        group_id=f"g-{name}",
        task_id=derive_id(name),
        created_at=7,
        metadata=SUITE if metadata is None else metadata,
        policy="p",
        purpose="eval",
        group_size=1,
        adapter_version=1 if answered else -1,
        complete=answered,
        dropped_reason=None if answered else "unanswered",
        responses=(member(reward=1.0, components={"exact": 1.0}),) if answered else (),
        left_out=() if answered else (LeftOut(slot=0, reason="unanswered"),),
    )


@contextmanager
def worker(settings: Settings) -> Iterator[subprocess.Popen[bytes]]:
    """Run a stream worker. Leaving kills it with -9, if it still runs."""
    process = spawn(command("streams"), env=environment(settings))
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def kinds(settings: Settings) -> list[tuple[str, int]]:
    found = [record.decode(AdapterEvent) for record in admin.read_topic(settings, "adapters")]
    return [(event.kind, event.version) for event in found if not isinstance(event, Poison)]


@pytest.mark.kills
def test_trained_versions_are_promoted_and_suites_evaluated_through_a_kill(settings: Settings) -> None:
    admin.apply_topics(settings)
    adapters = topics(settings.topics)["adapters"].name
    with worker(settings), Producer(settings) as producer:
        producer.send_bytes(adapters, b"p", b"not avro")
        for event in (trained(1), trained(2), group("first"), group("no size", metadata={"suite": "odd"})):
            producer.send(event)
        producer.flush()
        until(lambda: ("promoted", 2) in kinds(settings), "the promotion of version 2")
    with worker(settings), Producer(settings) as producer:
        producer.send(group("first"))  # again: it counts once
        producer.send(group("second", answered=False))
        producer.send(trained(3))
        producer.flush()
        until(lambda: {("promoted", 3), ("evaluated", 1)} <= set(kinds(settings)), "version 3 promoted, 1 evaluated")
    state = read_state(settings, "p")
    assert (state.primary, state.newest, state.refused) == (3, 3, ())
    metrics = state.versions[1].evaluated["sums"]
    assert [metrics[name] for name in ("n", "failed", "exact", "mean_reward")] == [1.0, 1.0, 1.0, 1.0]
    letters = [record.decode(DeadLetter) for record in admin.read_topic(settings, "dead-letters")]
    reasons = {letter.reason for letter in letters if isinstance(letter, DeadLetter) and letter.stage == "rollouts"}
    assert reasons == {"not_avro", "contradictory"}
