"""A fleet of policy agents on a real log: each policy is answered as by an agent of its own, and stops no other."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka as ck
import pytest
from confluent_kafka import admin

from schemas.events import AdapterEvent, Message, Response, RewardSource, Task
from streams.adapters import store
from streams.engines.scripted.scripted_engine import ScriptedEngine
from streams.kafka import admin as cluster
from streams.kafka.client import client_config
from streams.kafka.retry import BrokerOutage
from streams.kafka.topics import topics
from streams.settings.model import Batches, Fleet, Policy, Settings
from streams.stages.policy import policy_agent
from tests.support import factories
from tests.support.beside import running_beside
from tests.support.processes import until, write

pytestmark = pytest.mark.kafka


@pytest.fixture
def settings(settings: Settings) -> Settings:
    here = settings.model_copy(
        update={
            "topics": settings.topics.model_copy(update={"partitions": 2, "policy_partitions": 2}),
            "batches": Batches(groups=2, max_policy_lag=0),
            "policy": Policy(engine="scripted", round_tasks=4),
            "fleet": Fleet(states=1),
        }
    )
    cluster.apply_topics(here)
    return here


def task(policy: str, number: int, **changed: object) -> Task:
    fields: dict[str, object] = {
        "task_id": f"{policy}-{number}",
        "created_at": 1,
        "policy": policy,
        "purpose": "eval",
        "group_size": 2,
        "verifier": '{"answer": "2"}',
        "reward_sources": (RewardSource(name="exact"),),
        "messages": (Message(role="user", content="1 + 1 ="),),
    }
    return Task(**fields | changed)  # type: ignore[arg-type]


def trained(settings: Settings, policy: str, folder: Path, base: str | None = None) -> AdapterEvent:
    """Put version 1 of a policy into the store, and return the event that says so."""
    local = folder / policy
    local.mkdir()
    (local / "adapter_model.safetensors").write_bytes(policy.encode())
    uri, files = store.publish(local, settings.adapters.store, policy, 1)
    return factories.trained(1, policy=policy, created_at=1, uri=uri, files=files, base_digest=base)


def promoted(policy: str) -> AdapterEvent:
    return factories.promoted(1, policy=policy, created_at=1)


def responses(settings: Settings) -> list[Response]:
    found = [record.decode(Response) for record in cluster.read_topic(settings, "responses")]
    return [one for one in found if isinstance(one, Response)]


def answered(settings: Settings) -> Counter[str]:
    """How many complete answers each task has."""
    return Counter(one.task_id for one in responses(settings) if one.slot == one.group_size - 1)


@contextmanager
def running(settings: Settings, engine: ScriptedEngine | None = None) -> Iterator[None]:
    """Run a fleet beside the test. Leaving stops it, and raises what it raised."""
    with running_beside(
        lambda stop: policy_agent.run(settings, stop=stop, engine=engine or ScriptedEngine(), fleet=True)
    ):
        yield


def forget_commits(settings: Settings) -> None:
    """Leave the log as a fleet leaves it that is killed between an answer and its commit."""
    client = admin.AdminClient(client_config(settings.kafka))
    name = topics(settings.topics)["tasks"].name
    back = [ck.TopicPartition(name, p, 0) for p in range(settings.topics.partitions)]
    group = ck.ConsumerGroupTopicPartitions(f"{settings.topics.prefix}policy-@{settings.fleet.name}", back)
    BrokerOutage(settings.kafka, threading.Event()).ask(
        lambda: client.alter_consumer_group_offsets([group])[group.group_id].result(), "to forget commits"
    )


def test_each_policy_is_answered_by_its_own_version_once_and_a_fleet_that_died_is_continued(
    settings: Settings, tmp_path: Path
) -> None:
    """With one adapter in memory, every round of `new` and `old` in turn exchanges it."""
    write(settings, trained(settings, "new", tmp_path), promoted("new"))
    names = ("new", "old")
    write(settings, *(task(policy, number) for number in range(4) for policy in names))
    with running(settings):
        until(lambda: len(answered(settings)) == 8, "eight answers")
    versions = {(one.policy, one.adapter_version) for one in responses(settings)}
    assert versions == {("new", 1), ("old", 0)}
    forget_commits(settings)
    write(settings, *(task(policy, 4) for policy in (*names, "later")))
    with running(settings):
        until(lambda: len(answered(settings)) == 11, "three more")
    assert set(answered(settings).values()) == {1}


def test_a_policy_that_waits_for_its_trainer_holds_up_no_other(settings: Settings) -> None:
    """No batch is trained, so two train tasks of `stuck` may be answered (batches.groups), and none of the rest."""
    most = settings.policy.model_copy(update={"max_waiting": 20})
    write(settings, *(task("stuck", number, purpose="train") for number in range(60)))
    write(settings, *(task("free", number) for number in range(6)))

    def by_policy() -> Counter[str]:
        return Counter(name.partition("-")[0] for name in answered(settings))

    with running(settings.model_copy(update={"policy": most})):
        until(lambda: by_policy() == Counter(free=6, stuck=2), "answers of both policies")
    assert by_policy() == Counter(free=6, stuck=2)


class WithWeights(ScriptedEngine):
    """Stands for an engine that has a base model."""

    name = "weights"


def test_a_policy_of_another_base_model_and_those_of_another_fleet_are_left_alone(
    settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours = settings.model_copy(update={"fleet": Fleet(policies="ours*, foreign")})
    write(settings, trained(settings, "foreign", tmp_path, "another base model"), promoted("foreign"))
    write(settings, *(task(policy, 0) for policy in ("foreign", "theirs", "../outside", "ours-1", "ours-2")))
    with running(ours, WithWeights()):
        until(lambda: len(answered(settings)) == 2, "answers")
    assert set(answered(settings)) == {"ours-1-0", "ours-2-0"}
    assert "policy foreign is of base model another base" in caplog.text
