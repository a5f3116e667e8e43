"""A fleet of policy agents on a real log: each policy is answered as by an agent of its own, and stops no other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from schemas.events import AdapterEvent, Response, Task
from streams.engines.scripted.scripted_engine import ScriptedEngine
from streams.kafka import admin as cluster
from streams.settings.model import Batches, Fleet, Policy, Settings
from streams.stages.policy import policy_agent
from tests.support import factories
from tests.support.beside import running_beside
from tests.support.log.policy_agents import forget_commits, stored, sum_task
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


def task(policy: str, number: int, **changes: Any) -> Task:
    return sum_task(f"{policy}-{number}", **{"policy": policy, "group_size": 2} | changes)


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


def test_each_policy_is_answered_by_its_own_version_once_and_a_fleet_that_died_is_continued(
    settings: Settings, tmp_path: Path
) -> None:
    """With one adapter in memory, every round of `new` and `old` in turn exchanges it."""
    write(settings, stored(settings, 1, tmp_path, policy="new"), promoted("new"))
    names = ("new", "old")
    write(settings, *(task(policy, number) for number in range(4) for policy in names))
    with running(settings):
        until(lambda: len(answered(settings)) == 8, "eight answers")
    versions = {(one.policy, one.adapter_version) for one in responses(settings)}
    assert versions == {("new", 1), ("old", 0)}
    forget_commits(settings, f"policy-@{settings.fleet.name}")
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
    write(
        settings, stored(settings, 1, tmp_path, policy="foreign", base_digest="another base model"), promoted("foreign")
    )
    write(settings, *(task(policy, 0) for policy in ("foreign", "theirs", "../outside", "ours-1", "ours-2")))
    with running(ours, WithWeights()):
        until(lambda: len(answered(settings)) == 2, "answers")
    assert set(answered(settings)) == {"ours-1-0", "ours-2-0"}
    assert "policy foreign is of base model another base" in caplog.text
