"""One sequence of versions, made by batches and tuning: exact and reproducible whichever is faster or is killed."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from plugins.tuning.tuned_version import StartVersion
from schemas.conventions import OPTIMIZER
from schemas.events import AdapterEvent
from streams.adapters import store
from streams.adapters.versions import read_state
from streams.engines.base_model import Base
from streams.errors import RefusedError
from streams.kafka.producer import Producer
from streams.settings.model import Settings
from tests.plugins.tuning.test_tuned_versions import about_adapters, again, made, verdicts
from tests.support.commands import invoke
from tests.support.factories import outside
from tests.support.models.chat_tiny import base
from tests.support.models.tiny_log import trained, write
from tests.support.models.tiny_settings import settings
from tests.support.processes import command as process, environment, spawn
from trainer import fleet, policy_trainer
from trainer.versions import announce, checkpoint

__all__ = ["base", "settings"]

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("torch_as_before"), pytest.mark.kills]


def train(settings: Settings, steps: int) -> None:
    fleet.run(settings, steps=steps, stop=threading.Event())


def put(settings: Settings, event: AdapterEvent) -> None:
    with Producer(settings) as producer:
        producer.send(event)


def elsewhere(settings: Settings, folder: Path) -> Settings:
    """The settings of another machine: the same log and store, other locks and checkpoints."""
    return settings.model_copy(update={"trainer": settings.trainer.model_copy(update={"checkpoints": folder})})


def line(settings: Settings) -> list[tuple[int, int | None, int | None]]:
    """Version, parent and batch of each version that counts; None: it was tuned."""
    versions = read_state(settings, "default").versions
    return [(one.version, one.parent_version, one.last_batch) for number, one in sorted(versions.items()) if number]


def accounted(settings: Settings) -> set[str]:
    """What the audit finds of adapters: categories that it accounts for."""
    return {category for category, _ in about_adapters(settings)}


# --- a line of both ---------------------------------------------------------------------------------------------------


def test_batches_and_tuning_make_one_line_and_every_step_of_it_comes_out_equal(
    settings: Settings, base: Base, tmp_path: Path
) -> None:
    write(settings, base, range(2), adapter_version=0)
    made(settings, "sft")
    train(settings, 2)
    made(settings, "dpo", margin=1.0)
    write(settings, base, range(2, 4))
    train(settings, 2)
    made(settings, "sft", epochs=2)
    assert line(settings) == [
        (1, 0, None), (2, 1, 0), (3, 2, 1), (4, 3, None), (5, 4, 2), (6, 5, 3), (7, 6, None),
    ]  # fmt: skip
    state = read_state(settings, "default")
    assert [state.versions[number].trained_batches for number in range(8)] == [0, 0, 1, 2, 2, 3, 4, 4]
    fresh = {event.version: event.recipe.get(OPTIMIZER) for event in trained(settings) if event.tuning is None}
    assert fresh == {
        2: "fresh behind version 1, which was tuned", 3: None, 5: "fresh behind version 4, which was tuned", 6: None,
    }  # fmt: skip
    assert verdicts(again(settings)) == [(number, True) for number in range(1, 8)]
    assert verdicts(again(settings, start=4)) == [(5, True), (6, True), (7, True)], "from the files of version 4"
    assert verdicts(again(settings, start=5, version=6)) == [(6, True)], "from the checkpoint of version 5"
    kept = tmp_path / "kept"
    assert verdicts(again(settings, version=6, into=kept)) == [(number, True) for number in range(1, 7)]
    write(settings, base, range(4, 5))
    train(elsewhere(settings, kept), 1)
    assert line(settings)[-1] == (8, 7, 4)
    assert verdicts(again(settings)) == [(number, True) for number in range(1, 9)]
    assert about_adapters(settings) == []
    shown = invoke(settings, "adapters", "lineage", "5", "--output", "table").stdout
    assert "version 5 (trained), from version 4 by batches 2-2" in shown
    compared = json.loads(invoke(settings, "adapters", "diff", "2", "6", "--output", "jsonl").stdout)
    assert compared["batches_between"] == {"first": 1, "last": 3, "count": 3}
    sql = "SELECT DISTINCT version, batch FROM lineage WHERE batch IS NOT NULL ORDER BY version"
    rows = invoke(settings, "query", sql, "--output", "jsonl").stdout.splitlines()
    assert [tuple(json.loads(row).values()) for row in rows] == [(2, 0), (3, 1), (5, 2), (6, 3), (8, 4)]


def test_a_version_that_was_tuned_from_an_older_one_is_the_next_all_the_same(settings: Settings, base: Base) -> None:
    """What it leaves behind is made by batches 1 and 2, and nothing later comes from it."""
    write(settings, base, range(3), adapter_version=0)
    train(settings, 3)
    made(settings, "sft", start=StartVersion("default", 1))
    write(settings, base, range(3, 4))
    train(settings, 1)
    assert line(settings) == [(1, 0, 0), (2, 1, 1), (3, 2, 2), (4, 1, None), (5, 4, 3)]
    assert verdicts(again(settings)) == [(1, True), (4, True), (5, True)]
    assert verdicts(again(settings, version=3)) == [(1, True), (2, True), (3, True)]
    assert about_adapters(settings) == []


def test_a_trainer_without_its_checkpoints_begins_from_the_newest_tuned_version(
    settings: Settings, base: Base, tmp_path: Path
) -> None:
    write(settings, base, range(3), adapter_version=0)
    train(settings, 1)
    made(settings, "sft")
    train(settings, 2)
    there = elsewhere(settings, tmp_path / "there")
    train(there, 2)
    assert line(settings) == [(1, 0, 0), (2, 1, None), (3, 2, 1), (4, 3, 2)]
    assert checkpoint.versions(there.trainer.checkpoints / "default") == [3, 4]


def test_training_continues_from_the_weights_before_an_outside_model(settings: Settings, base: Base) -> None:
    write(settings, base, range(1), adapter_version=0)
    put(settings, outside(1))
    train(settings, 1)
    put(settings, outside(3))
    write(settings, base, range(1, 3), adapter_version=2, trained_batches=1)
    train(settings, 2)
    assert line(settings) == [(1, None, None), (2, 1, 0), (3, None, None), (4, 3, 1), (5, 4, 2)]
    fresh = {event.version: event.recipe.get(OPTIMIZER) for event in trained(settings) if event.outside is None}
    assert fresh == {
        2: "fresh behind version 1, which answers elsewhere",
        4: "fresh behind version 3, which answers elsewhere",
        5: None,
    }
    assert verdicts(again(settings)) == [(2, True), (4, True), (5, True)]
    assert verdicts(again(settings, start=2)) == [(4, True), (5, True)], "from the files of version 2"
    assert verdicts(again(settings, start=4)) == [(5, True)], "from the checkpoint of version 4"
    with pytest.raises(RefusedError, match="it has no weights here, so it cannot be reproduced"):
        again(settings, version=3)
    assert about_adapters(settings) == []


# --- both at once -----------------------------------------------------------------------------------------------------


def test_on_one_machine_the_trainer_waits_for_a_tuning_and_the_tuning_for_a_step(
    settings: Settings, base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(settings, base, range(2), adapter_version=0)
    stop, stepping = threading.Event(), threading.Event()
    save = policy_trainer.Learner.save

    def seen(*arguments: Any) -> Any:
        stepping.set()
        time.sleep(0.2)  # the tuner asks meanwhile
        return save(*arguments)

    monkeypatch.setattr(policy_trainer.Learner, "save", seen)
    trainer = threading.Thread(target=fleet.run, args=(settings,), kwargs={"steps": 2, "stop": stop})
    trainer.start()
    try:
        assert stepping.wait(300)
        event = made(settings, "sft")
    finally:
        trainer.join(300)
        stop.set()
    assert event.version == 2
    assert line(settings) == [(1, 0, 0), (2, 1, None), (3, 2, 1)]
    assert len(trained(settings)) == 3, "nothing was made in vain"
    assert verdicts(again(settings)) == [(1, True), (2, True), (3, True)]


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("moment", ["checkpoint", "store", "log"])
def test_a_step_that_loses_its_number_to_a_tuning_is_taken_again_on_top(
    settings: Settings, base: Base, tmp_path: Path, moment: str, dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On another machine a version is tuned after a part of the step that makes version 2; the trainer may die then."""
    write(settings, base, range(3), adapter_version=0)
    train(settings, 1)
    owner, name = {
        "checkpoint": (policy_trainer.checkpoint, "save"),
        "store": (policy_trainer.store, "publish"),
        "log": (policy_trainer.Producer, "send"),
    }[moment]
    real = getattr(owner, name)

    class Crash(BaseException):
        pass

    def is_overtaken(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(owner, name, real)
        if moment == "log":
            made(elsewhere(settings, tmp_path / "there"), "sft")
            result = real(*arguments, **named)
            arguments[0].flush()
        else:
            result = real(*arguments, **named)
            made(elsewhere(settings, tmp_path / "there"), "sft")
        if dies:
            raise Crash
        return result

    monkeypatch.setattr(owner, name, is_overtaken)
    if dies:
        with pytest.raises(Crash):
            train(settings, 2)
    train(settings, 2)
    assert line(settings) == [(1, 0, 0), (2, 1, None), (3, 2, 1), (4, 3, 2)]
    numbers = [event.version for event in trained(settings)]
    lost = moment == "log" or not dies
    assert numbers == ([1, 2, 2, 3, 4] if lost else [1, 2, 3, 4])
    assert verdicts(again(settings)) == [(number, True) for number in range(1, 5)]
    assert accounted(settings) == ({"superseded"} if lost else set())


def test_a_tuning_that_loses_its_number_to_a_batch_is_done_again_on_top(
    settings: Settings, base: Base, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(settings, base, range(1), adapter_version=0)
    publish, has_trained = store.publish, []

    def late(*arguments: Any, **named: Any) -> Any:
        if not has_trained:
            has_trained.append(True)
            train(elsewhere(settings, tmp_path / "there"), 1)
        return publish(*arguments, **named)

    monkeypatch.setattr(announce.store, "publish", late)
    event = made(settings, "sft")
    assert (event.version, event.parent_version) == (2, 1)
    assert line(settings) == [(1, 0, 0), (2, 1, None)]
    assert verdicts(again(settings)) == [(1, True), (2, True)]
    assert accounted(settings) == {"superseded"}


# --- killed -----------------------------------------------------------------------------------------------------------

BATCHES, TUNINGS = 5, 3
TRAINER = "import threading; from streams.settings.load import load; from trainer import fleet; "
TRAINER += "fleet.run(load(), stop=threading.Event())"


def tuned(settings: Settings) -> list[AdapterEvent]:
    return [event for event in trained(settings) if event.tuning is not None]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_trainer_and_a_tuner_killed_at_random_leave_one_line_that_is_made_again(
    settings: Settings, base: Base, tmp_path: Path, seed: int
) -> None:
    """Each on a machine of its own, so that both want the same numbers."""
    write(settings, base, range(BATCHES), adapter_version=0)
    there, draw = elsewhere(settings, tmp_path / "there"), random.Random(seed)
    trainer = [process("train")[0], "-c", TRAINER]

    def tuning() -> list[str]:
        return process("tune", "sft", "--epochs", str(1 + len(tuned(settings))), "--batch", "2", "--output", "jsonl")

    running: dict[str, subprocess.Popen[bytes]] = {}

    def run(name: str) -> subprocess.Popen[bytes]:
        arguments, own = (trainer, settings) if name == "trainer" else (tuning(), there)
        return spawn(arguments, env=environment(own), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def is_done() -> bool:
        state = read_state(settings, "default")
        return state.trained_batches == BATCHES and state.newest - BATCHES >= TUNINGS

    deadline, kills = time.monotonic() + 300, 0
    try:
        while not is_done():
            assert time.monotonic() < deadline, line(settings)
            for name in ("trainer", "tuner"):
                if name not in running or running[name].poll() is not None:
                    running[name] = run(name)
            time.sleep(draw.uniform(1.0, 9.0) if kills < 6 else 1.0)
            if kills < 6:
                victim = draw.choice(sorted(running))
                running[victim].send_signal(signal.SIGKILL)
                running[victim].wait()
                kills += 1
    finally:
        for child in running.values():
            child.kill()
            child.wait()
    found = line(settings)
    assert [batch for _, _, batch in found if batch is not None] == list(range(BATCHES)), "each batch once, in order"
    assert [version for version, _, _ in found] == list(range(1, len(found) + 1))
    assert all(parent == version - 1 for version, parent, _ in found)
    assert verdicts(again(settings)) == [(version, True) for version, _, _ in found]
    assert accounted(settings) <= {"superseded", "repeated"}
    assert invoke(settings, "adapters", "list").exit_code == 0
