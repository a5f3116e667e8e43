"""The trainer against a real log: batches in order, and whatever kills it, the same bytes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from schemas.events import AnsweringAgent, Coordinates, DeadLetter, Sampling, derive_id
from streams.adapters import store
from streams.adapters.versions import read_state
from streams.engines.base_model import Base, load_base
from streams.errors import RefusedError, SettingsError
from streams.kafka import admin
from streams.kafka.producer import Producer
from streams.kafka.retry import BrokerOutage
from streams.settings.load import to_env
from streams.settings.model import Model, Settings
from tests.support.commands import invoke
from tests.support.factories import PROGRAM
from tests.support.models.tiny import save_tiny, tiny_model
from tests.support.models.tiny_log import PER_BATCH, batch_of, cut, groups_of, manifests, settings_in, trained, write
from tests.support.models.tiny_settings import settings
from trainer import fleet, policy_trainer
from trainer.batch_source import PolicyBatches
from trainer.fleet import TrainerFleet
from trainer.policy_trainer import TrainerIO
from trainer.step.grpo import LogGRPOTrainer
from trainer.step.model import pin
from trainer.versions import checkpoint
from trainer.versions.learner import Learner

__all__ = ["settings"]

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("torch_as_before")]


def train(settings: Settings, steps: int) -> None:
    fleet.run(settings, steps=steps, stop=threading.Event())


@pytest.fixture(scope="module")
def expected(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory, base: Base) -> list[tuple[int, Any]]:
    """The manifests of versions 1 to 4, trained in one go."""
    whole = settings_in(tmp_path_factory.mktemp("whole"), kafka_bootstrap, base)
    write(whole, base, range(4))
    train(whole, 4)
    found = manifests(whole)
    assert [version for version, _ in found] == [1, 2, 3, 4]
    assert len({files for _, files in found}) == 4
    return found


def test_each_batch_becomes_one_version_with_its_recipe_metrics_and_files(
    settings: Settings, base: Base, tmp_path: Path
) -> None:
    write(settings, base, range(2))
    train(settings, 2)
    first, second = trained(settings)
    assert (first.version, first.parent_version, first.first_batch, first.last_batch) == (1, 0, 0, 0)
    assert (second.version, second.parent_version, second.first_batch, second.last_batch) == (2, 1, 0, 1)
    assert second.event_id == derive_id("default", 2, "trained")
    assert second.base_digest == second.recipe["base_digest"] == base.base_digest
    assert second.recipe["threads"] == "1" and second.recipe["trainer.loss"] == "dapo"
    assert second.metrics["groups"] == PER_BATCH and second.metrics["responses"] == 4 * PER_BATCH
    assert second.metrics["grad_norm"] > 0
    assert second.uri is not None
    folder = store.fetch(settings.adapters.store, second.uri, second.files, tmp_path / "fetched")
    assert {path.name for path in folder.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}


class Crash(BaseException):
    """As if the process had ended here: nothing after it runs but what the operating system does."""


@pytest.mark.parametrize("moment", ["step", "checkpoint", "store", "log"])
def test_a_trainer_that_dies_after_any_part_of_a_step_ends_with_the_same_bytes(
    settings: Settings, base: Base, expected: list[tuple[int, Any]], moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies in the third step; the parts are: the step itself, checkpoint, store, log (before the commit)."""
    write(settings, base, range(4))
    owner, name = {
        "step": (LogGRPOTrainer, "train_batch"),
        "checkpoint": (policy_trainer.checkpoint, "save"),
        "store": (policy_trainer.store, "publish"),
        "log": (policy_trainer.Producer, "flush"),
    }[moment]
    real = getattr(owner, name)
    calls = 0

    def dies_after_the_third(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        result = real(*args, **kwargs)
        if calls == 3:
            raise Crash
        return result

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, dies_after_the_third)
        with pytest.raises(Crash):
            train(settings, 4)
    already = len(trained(settings))
    assert already == (3 if moment == "log" else 2)
    train(settings, 2 if moment == "step" else 1)
    assert manifests(settings) == expected


@pytest.mark.parametrize("dies", [False, True])
def test_a_version_has_the_trace_and_the_agents_of_its_batch_even_if_it_is_announced_only_after_a_crash(
    settings: Settings, base: Base, dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    came = {"traceparent": b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
    first_slot, *others = groups_of(base, 0)[0].responses
    responses = (replace(first_slot, agent_id="calc", program=PROGRAM), *others)
    write(settings, base, range(1), headers=came, responses=responses)

    def dies_before_it_is_published(*_: Any) -> Any:
        raise Crash

    if dies:
        with monkeypatch.context() as patch, pytest.raises(Crash):
            patch.setattr(policy_trainer.store, "publish", dies_before_it_is_published)
            train(settings, 1)
        write(settings, base, range(1, 2))
    train(settings, 1)
    first, *_ = admin.read_topic(settings, "adapters")
    assert dict(first.headers) == came
    assert trained(settings)[0].agents == (AnsweringAgent(agent_id="calc", program=PROGRAM),)


@pytest.mark.kills
def test_a_trainer_killed_with_9_and_started_again_ends_with_the_same_bytes(
    settings: Settings, base: Base, expected: list[tuple[int, Any]]
) -> None:
    write(settings, base, range(4))
    command = "import threading; from streams.settings.load import load; from trainer import fleet; "
    command += "fleet.run(load(), stop=threading.Event())"
    root = Path(fleet.__file__).parents[1]
    environment = {**os.environ, **to_env(settings), "PYTHONPATH": str(root)}
    process = subprocess.Popen([sys.executable, "-c", command], env=environment, cwd=settings.broker.data_dir.parent)
    try:
        deadline = time.monotonic() + 300
        while not (settings.trainer.checkpoints / "default" / "v00000001").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.005)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    found = checkpoint.latest(settings.trainer.checkpoints / "default")
    assert found is not None
    if left := 4 - found[1].version:
        train(settings, left)
    else:  # it was quicker than the signal; the last version may still want announcing
        stop = threading.Event()
        stop.set()
        fleet.run(settings, stop=stop)
    assert manifests(settings) == expected


def test_without_its_checkpoints_it_trains_again_from_the_log_and_doubles_nothing(
    settings: Settings, base: Base, expected: list[tuple[int, Any]], tmp_path: Path
) -> None:
    write(settings, base, range(4))
    train(settings, 3)
    elsewhere = settings.trainer.model_copy(update={"checkpoints": tmp_path / "elsewhere"})
    train(settings.model_copy(update={"trainer": elsewhere}), 4)
    assert manifests(settings) == expected


def test_a_version_that_comes_out_other_than_the_log_says_is_refused(
    settings: Settings, base: Base, tmp_path: Path
) -> None:
    write(settings, base, range(2))
    train(settings, 1)
    other = settings.trainer.model_copy(update={"checkpoints": tmp_path / "elsewhere", "seed": 1})
    for _ in range(2):  # nor does it go on from its own version when a supervisor starts it again
        with pytest.raises(RefusedError, match="version 1 trained again has other bytes than in the log"):
            train(settings.model_copy(update={"trainer": other}), 1)


def test_a_batch_delivered_twice_is_trained_once(
    settings: Settings, base: Base, expected: list[tuple[int, Any]]
) -> None:
    write(settings, base, range(2))
    write(settings, base, range(4))
    train(settings, 4)
    assert manifests(settings) == expected


def test_a_missing_batch_stops_the_trainer_with_coordinates(settings: Settings, base: Base) -> None:
    write(settings, base, range(1))
    write(settings, base, range(2, 3))
    with pytest.raises(RefusedError, match=r"batches\[\d\]@1: batch 2 of default, expected 1"):
        train(settings, 2)
    assert [event.version for event in trained(settings)] == [1]


def test_a_broken_group_goes_to_dead_letters_and_the_step_is_taken_without_it(settings: Settings, base: Base) -> None:
    write(settings, base, range(1), sampling=Sampling(temperature=0.0))
    train(settings, 1)
    (event,) = trained(settings)
    assert (event.metrics["groups"], event.metrics["groups_refused"]) == (PER_BATCH - 1, 1)
    letters = [record.decode(DeadLetter) for record in admin.read_topic(settings, "dead-letters")]
    (letter,) = [letter for letter in letters if isinstance(letter, DeadLetter)]
    assert (letter.stage, letter.source_topic, letter.source_offset) == (
        "trainer",
        f"{settings.topics.prefix}groups",
        0,
    )
    assert "sampled greedily" in letter.error


def test_a_batch_without_one_good_group_is_a_version_that_changes_nothing(settings: Settings, base: Base) -> None:
    write(settings, base, range(1))
    train(settings, 1)
    with Producer(settings) as producer:
        offsets: list[Coordinates] = []
        producer.send(replace(groups_of(base, 1)[0], base_digest="another model"), on_ack=offsets.append)
        producer.flush()
        producer.send(batch_of(1, offsets))
    train(settings, 1)
    first, second = trained(settings)
    assert second.metrics["skipped"] == 1
    assert second.files == first.files
    assert second.reason == "batch 1; changes nothing: none of its groups could be used"
    shown = invoke(settings, "status", "--output", "table").stdout
    assert "2 (changes nothing)" in shown


def test_a_checkpoint_of_another_log_is_refused(settings: Settings, base: Base, tmp_path: Path) -> None:
    write(settings, base, range(2))
    train(settings, 2)
    fresh_log = settings.model_copy(
        update={"topics": settings.topics.model_copy(update={"prefix": settings.topics.prefix + "new."})}
    )
    admin.apply_topics(fresh_log)
    with pytest.raises(RefusedError, match="it belongs to another log, or only a newer program"):
        train(fresh_log, 1)


def test_a_checkpoint_of_another_base_model_is_refused(settings: Settings, base: Base, tmp_path: Path) -> None:
    write(settings, base, range(1))
    train(settings, 1)
    other = tmp_path / "other"
    save_tiny(other)
    tiny_model(seed=1).save_pretrained(other)
    with pytest.raises(SettingsError, match=r"restore model\.base"):
        train(settings.model_copy(update={"model": Model(base=str(other))}), 1)


def test_a_second_trainer_of_the_policy_is_refused(settings: Settings, base: Base) -> None:
    with (
        checkpoint.hold(settings.trainer.checkpoints, "default"),
        pytest.raises(RefusedError, match="already being trained by process"),
    ):
        train(settings, 1)


def elsewhere(settings: Settings, folder: Path, **changes: Any) -> Settings:
    """The settings of a trainer on another machine: a folder of checkpoints of its own, the same store."""
    return settings.model_copy(
        update={"trainer": settings.trainer.model_copy(update={"checkpoints": folder / "elsewhere", **changes})}
    )


@contextmanager
def trainer_of(settings: Settings) -> Iterator[TrainerFleet]:
    """A trainer of policy.name that takes its turns when it is told to."""
    outage = BrokerOutage(settings.kafka, threading.Event())
    with Producer(settings) as producer, ExitStack() as stack:
        source = PolicyBatches(settings, producer, outage, stack)
        learner = Learner(settings, load_base(settings.model))
        yield stack.enter_context(TrainerFleet(settings, learner, TrainerIO(producer, outage), source))


def test_two_trainers_with_a_folder_each_announce_the_same_bytes_and_the_first_counts(
    settings: Settings, base: Base, expected: list[tuple[int, Any]], tmp_path: Path
) -> None:
    write(settings, base, range(4))
    other = elsewhere(settings, tmp_path)
    with trainer_of(other) as slower:  # it knows no version
        train(settings, 2)
        pin(settings)
        trained_steps = 0
        while trained_steps < 2:
            trained_steps += slower.turn()
    assert manifests(settings) == [*expected[:2], *expected[:2]]
    state = read_state(settings, "default")
    assert [(number, one.files) for number, one in state.versions.items() if number] == expected[:2]
    train(other, 2)  # either goes on alone, from where both were
    assert manifests(settings)[4:] == expected[2:]


def test_a_second_trainer_of_another_recipe_is_refused_before_it_announces_anything(
    settings: Settings, base: Base, tmp_path: Path
) -> None:
    write(settings, base, range(1))
    with trainer_of(elsewhere(settings, tmp_path, seed=1)) as slower:
        train(settings, 1)
        with pytest.raises(RefusedError, match=r"there with other bytes.* which of two trainers"):
            while not slower.turn():
                pass
    assert len(trained(settings)) == 1


def test_groups_that_retention_has_cut_stop_the_trainer_with_what_to_do(settings: Settings, base: Base) -> None:
    write(settings, base, range(2))
    cut(settings, "groups", 1)
    with pytest.raises(
        RefusedError, match=r"groups\[\d\]@0: retention has cut 1 of 2 groups of batch 0; the first .*Restore the"
    ):
        train(settings, 1)
    assert trained(settings) == []


def test_a_batch_that_retention_has_cut_stops_the_trainer_with_what_to_do(settings: Settings, base: Base) -> None:
    write(settings, base, range(1))
    train(settings, 1)
    write(settings, base, range(1, 3))
    cut(settings, "batches", 2)
    with pytest.raises(RefusedError, match=r"batch 2 of default, expected 1: .*first record there has offset 2"):
        train(settings, 2)
    assert [event.version for event in trained(settings)] == [1]
