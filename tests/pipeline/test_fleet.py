"""A fleet of trainers against a real log: the versions of each policy, byte for byte as of a trainer alone."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from schemas.events import Message, Response, Sampling
from streams.engines.base_model import Base, load_base
from streams.engines.local.transformers_engine import TransformersEngine
from streams.engines.protocol import Completion, EnginePart
from streams.files import sha256_of
from streams.kafka import admin
from streams.kafka.client import POLL_S
from streams.kafka.producer import Producer
from streams.kafka.retry import BrokerOutage
from streams.observability import catalog
from streams.observability.metrics import Meter
from streams.settings.load import to_env
from streams.settings.model import Fleet, Model, Settings
from streams.stages.policy.policy_agent import PolicyAgent
from tests.support.factories import task
from tests.support.models.tiny import sampled_logps
from tests.support.models.tiny_log import manifests_of, settings_in, write
from tests.support.processes import read, until
from trainer import fleet
from trainer.batch_source import FleetBatches
from trainer.fleet import TrainerFleet
from trainer.policy_trainer import TrainerIO
from trainer.step.model import pin
from trainer.versions.learner import Learner

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("torch_as_before")]

POLICIES = ("ada", "bob", "eve")
BATCHES = 3
TASKS = 5


@pytest.fixture
def settings(settings: Settings, base: Base) -> Settings:
    """Settings of this test's own topics, which exist, with the tiny model as base."""
    changes = {"model": Model(base=base.model.config._name_or_path)}
    changes |= {"topics": settings.topics.model_copy(update={"policy_partitions": 2})}
    tiny = settings.model_copy(update=changes)
    admin.apply_topics(tiny)
    return tiny


def with_fleet(settings: Settings, **changes: Any) -> Settings:
    return settings.model_copy(update={"fleet": Fleet(**changes)})


def of_policy(settings: Settings, policy: str) -> Settings:
    return settings.model_copy(update={"policy": settings.policy.model_copy(update={"name": policy})})


def files_of(settings: Settings, policy: str) -> dict[str, str]:
    """The sha256 of every tensor file in a policy's newest checkpoint, and where it resumes. The rest has timings."""
    folder = max((settings.trainer.checkpoints / policy).glob("v*"))
    found = {str(path.relative_to(folder)): sha256_of(path) for path in folder.rglob("*.safetensors")}
    assert len(found) == 3  # adapter, optimizer, RNG
    return found | {"next": str(json.loads((folder / "state.json").read_text())["next_offset"])}


def write_all(settings: Settings, base: Base, sequences: range = range(BATCHES)) -> None:
    """Batches of every policy, in turn."""
    for sequence in sequences:
        for policy in POLICIES:
            write(settings, base, range(sequence, sequence + 1), policy=policy)


Expected = dict[str, tuple[list[tuple[int, Any]], dict[str, str]]]


@pytest.fixture(scope="module")
def expected(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory, base: Base) -> Expected:
    """Of each policy, the manifests of its versions and its last checkpoint, as a trainer of its own makes them."""
    alone = settings_in(tmp_path_factory.mktemp("alone"), kafka_bootstrap, base)
    write_all(alone, base)
    for policy in POLICIES:
        fleet.run(of_policy(alone, policy), steps=BATCHES, stop=threading.Event())
    found = {policy: (manifests_of(alone, policy), files_of(alone, policy)) for policy in POLICIES}
    assert len({files for versions, _ in found.values() for _, files in versions}) == BATCHES * len(POLICIES)
    return found


def found_in(settings: Settings) -> Expected:
    return {policy: (manifests_of(settings, policy), files_of(settings, policy)) for policy in POLICIES}


@contextmanager
def a_fleet(settings: Settings, meter: Meter) -> Iterator[TrainerFleet]:
    """A fleet that has read every batch. Before that, policies whose partition comes first have several turns."""
    pin(settings)
    outage = BrokerOutage(settings.kafka, threading.Event(), meter)
    with Producer(settings) as producer:
        learner = Learner(settings, load_base(settings.model))
        io = TrainerIO(producer, outage, meter, is_fleet=True)
        with ExitStack() as stack:
            source = FleetBatches(settings, producer, outage, stack)
            trainers = stack.enter_context(TrainerFleet(settings, learner, io, source))
            while sum(waiting for waiting, _ in source.queue.backlog().values()) < BATCHES * len(POLICIES):
                source.poll(POLL_S)
            yield trainers


@pytest.mark.parametrize("states", [2, 3])
def test_policies_that_take_turns_have_the_bytes_of_policies_alone(
    settings: Settings, base: Base, expected: Expected, states: int
) -> None:
    """With room for two of three each turn finds its policy gone from memory; with room for three none does."""
    write_all(settings, base)
    meter = Meter("train")
    with a_fleet(with_fleet(settings, states=states), meter) as made:
        trained = 0
        while trained < BATCHES * len(POLICIES):
            trained += made.turn()
            assert len(made.resident) <= states
    assert found_in(settings) == expected
    from_memory = (BATCHES - 1) * len(POLICIES)
    assert meter.value(catalog.FLEET_SWAPS, "memory") == (from_memory if states == 3 else None)
    assert meter.value(catalog.FLEET_EVICTIONS) == (None if states == 3 else BATCHES * len(POLICIES) - states)


def test_a_fleet_continues_what_trainers_alone_have_begun_and_they_continue_what_it_has(
    settings: Settings, base: Base, expected: Expected
) -> None:
    write_all(settings, base, range(1))
    fleet.run(of_policy(settings, "ada"), steps=1, stop=threading.Event())
    write_all(settings, base, range(1, BATCHES))
    fleet.run(settings, is_fleet=True, steps=5, stop=threading.Event())
    for policy in POLICIES:
        if left := BATCHES - len(manifests_of(settings, policy)):
            fleet.run(of_policy(settings, policy), steps=left, stop=threading.Event())
    assert found_in(settings) == expected


def test_a_policy_without_its_checkpoints_is_trained_again_from_the_log_and_nothing_is_doubled(
    settings: Settings, base: Base, expected: Expected, tmp_path: Path
) -> None:
    write_all(settings, base, range(2))
    fleet.run(settings, is_fleet=True, steps=2 * len(POLICIES), stop=threading.Event())
    write_all(settings, base, range(2, BATCHES))
    moved = settings.trainer.model_copy(update={"checkpoints": tmp_path / "another machine"})
    elsewhere = settings.model_copy(update={"trainer": moved})
    fleet.run(elsewhere, is_fleet=True, steps=BATCHES * len(POLICIES), stop=threading.Event())
    assert found_in(elsewhere) == expected


@pytest.mark.kills
def test_of_two_fleets_one_is_killed_with_9_and_every_version_is_there_once(
    settings: Settings, base: Base, expected: Expected, tmp_path: Path
) -> None:
    """It dies at whatever it does just then; the other takes over once the broker has missed it.

    Both are processes of their own: a checkpoint has the state of its process's random numbers, which this one draws.
    """
    write_all(settings, base, range(2))
    command = "import threading; from streams.settings.load import load; from trainer import fleet; "
    command += "fleet.run(load(), is_fleet=True, stop=threading.Event())"
    environment = {**os.environ, **to_env(settings), "PYTHONPATH": str(Path(fleet.__file__).parents[1])}
    with ExitStack() as stack:

        def started() -> subprocess.Popen[bytes]:
            process = subprocess.Popen([sys.executable, "-c", command], env=environment, cwd=tmp_path)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        first = started()
        until(lambda: any(settings.trainer.checkpoints.glob("*/v*")), "a checkpoint")
        started()
        until(lambda: len(versions(settings)) >= 3, "three versions")
        first.send_signal(signal.SIGKILL)
        first.wait()
        write_all(settings, base, range(2, BATCHES))
        until(lambda: len(versions(settings)) >= BATCHES * len(POLICIES), "all of them")
    assert found_in(settings) == expected


def versions(settings: Settings) -> list[tuple[int, Any]]:
    return [one for policy in POLICIES for one in manifests_of(settings, policy)]


def test_what_one_policy_cannot_be_trained_for_stops_no_other(
    settings: Settings, base: Base, expected: Expected, caplog: pytest.LogCaptureFixture
) -> None:
    small = settings.model_copy(update={"trainer": settings.trainer.model_copy(update={"lora_rank": 4})})
    write(settings, base, range(2), policy="broken")
    fleet.run(of_policy(small, "broken"), steps=1, stop=threading.Event())
    write(settings, base, range(1), policy="gap")
    write(settings, base, range(2, 3), policy="gap")
    write(settings, replace(base, base_digest="another base model"), range(2), policy="foreign")
    write_all(settings, base)
    with fleet.checkpoint.hold(settings.trainer.checkpoints, "held"):
        write(settings, base, range(1), policy="held")
        write(settings, base, range(1), policy="../outside")
        fleet.run(settings, is_fleet=True, steps=BATCHES * len(POLICIES) + 1, stop=threading.Event())
    assert {policy: manifests_of(settings, policy) for policy in POLICIES} == {
        policy: made for policy, (made, _) in expected.items()
    }
    assert [version for version, _ in manifests_of(settings, "gap")] == [1]
    assert [version for version, _ in manifests_of(settings, "broken")] == [1]
    assert manifests_of(settings, "foreign") == manifests_of(settings, "held") == []
    said = "\n".join(record.getMessage() for record in caplog.records)
    assert "policy foreign is set aside, the others continue: policy foreign is of base model another base" in said
    assert "policy broken is set aside" in said and "this adapter has r=4" in said
    assert "policy held is set aside" in said and "already being trained by process" in said
    assert "batch 2 of gap, expected 1: a batch is missing" in said
    assert not (settings.trainer.checkpoints / ".." / "outside").exists()


# --- the policy agent -------------------------------------------------------------------------------------------------


def test_policies_that_wait_are_sampled_in_one_round_and_each_answer_is_its_own_policys(
    settings: Settings, base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, rounds = TransformersEngine(base), list[int]()
    mixed = engine.sample_mixed

    def noted(parts: Sequence[EnginePart]) -> list[list[list[Completion]]]:
        rounds.append(len(parts))
        return mixed(parts)

    monkeypatch.setattr(engine, "sample_mixed", noted)
    settings = settings.model_copy(update={"policy": settings.policy.model_copy(update={"round_tasks": 1})})
    with Producer(settings) as producer:
        for policy, number in itertools.product(POLICIES, range(TASKS)):
            producer.send(
                task(
                    task_id=f"{policy}-{number}", policy=policy, purpose="eval", group_size=2,
                    sampling=Sampling(max_tokens=6), messages=(Message(role="user", content=f"{number} 7"),),
                )
            )  # fmt: skip
    outage = BrokerOutage(settings.kafka, threading.Event())

    def answered() -> bool:
        made.step()
        return len(read(settings, Response)) == 2 * TASKS * len(POLICIES)

    try:
        with PolicyAgent(settings, engine, outage, fleet=True) as made:
            until(answered, "every answer")
        found = [response for _, response in read(settings, Response)]
        for one in found:
            prompt, drawn = list(one.prompt_token_ids), list(one.completion_token_ids)
            assert one.task_id.startswith(one.policy) and one.adapter_version == 0
            assert list(one.logprobs) == pytest.approx(sampled_logps(base.model, prompt, drawn, 1.0), abs=1e-4)
    finally:
        engine.close()
    assert Counter(one.policy for one in found) == dict.fromkeys(POLICIES, 2 * TASKS)
    assert max(rounds) == 3, "of many rounds with a task of each, some are of all policies"
