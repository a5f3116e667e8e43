"""Canary and guard inside the stream worker, on a real log: what is better is promoted, what breaks a rule is not."""

from __future__ import annotations

import itertools
import json
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from schemas.events import AdapterEvent, AdvantagedGroup, Task
from schemas.serde import Poison
from streams.adapters.versions import read_state
from streams.kafka import admin
from streams.kafka.producer import Producer
from streams.settings.model import Canary, Guard, Rollouts, Settings
from tests.support import factories
from tests.support.commands import invoke
from tests.support.factories import group
from tests.support.processes import command, environment, spawn, until, write

pytestmark = pytest.mark.kafka

RULE = Canary(steps="0.05,0.5,1", step_groups=10)
numbers = itertools.count()


@contextmanager
def worker(settings: Settings) -> Iterator[None]:
    """Run a stream worker. Leaving kills it with -9."""
    process = spawn(command("streams"), env=environment(settings))
    try:
        yield
    finally:
        process.kill()
        process.wait()


def trained(version: int) -> AdapterEvent:
    return factories.trained(version, created_at=version)


def answers(version: int, *, reward: float, n: int = 10, **changed: Any) -> list[AdvantagedGroup]:
    """Return what agents and scorers make of n tasks now, a little better or worse each."""
    draw = random.Random(version)
    made = []
    for number in itertools.islice(numbers, n):
        value = reward + draw.uniform(-0.1, 0.1)
        one = replace(group().responses[0], reward=value, components={"exact": value}, latency_ms=5.0, **changed)
        made.append(
            group(
                task_id=f"task {number}",
                created_at=int(time.time() * 1000),
                adapter_version=version,
                reward_mean=value,
                responses=(one, replace(one, slot=1)),
            )
        )
    return made


def decisions(settings: Settings) -> list[AdapterEvent]:
    found = [record.decode(AdapterEvent) for record in admin.read_topic(settings, "adapters")]
    return [event for event in found if not isinstance(event, Poison) and event.actor == "rollouts"]


def status(settings: Settings, output: str = "json") -> str:
    result = invoke(settings, "adapters", "rollout", "--output", output)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.kills
def test_a_better_version_walks_to_its_promotion_through_a_kill_and_a_worse_one_is_rolled_back(made: Settings) -> None:
    settings = made.model_copy(update={"rollouts": Rollouts(mode="canary"), "canary": RULE})

    def said(count: int) -> AdapterEvent:
        until(lambda: len(decisions(settings)) >= count, f"{count} decisions of the stage")
        return decisions(settings)[count - 1]

    with Producer(settings) as producer:

        def put(*events: AdapterEvent | AdvantagedGroup) -> None:
            for event in events:
                producer.send(event)
            producer.flush()

        with worker(settings):
            put(trained(1))
            assert (said(1).kind, said(1).share) == ("canary_started", 0.05)
            first = answers(1, reward=0.5)
            put(*first[:5], *answers(0, reward=0.5)[:5])
        with worker(settings):
            put(*first, *answers(0, reward=0.5))  # the first five again: they count once
            advance = said(2)
            assert (advance.kind, advance.share) == ("canary_advanced", 0.5)
            assert advance.metrics["candidate_groups"] == 10.0
            put(*answers(1, reward=0.9, n=20), *answers(0, reward=0.4, n=20))
            assert (said(3).kind, said(3).share) == ("canary_advanced", 1.0)
            now = json.loads(status(settings))
            assert (now["primary"], now["candidate"], now["share"]) == (0, 1, 1.0)
            assert now["gain"]["low"] > 0
            assert "10 are needed" in now["waits_for"]
            put(*answers(1, reward=0.9))
            promotion = said(4)
            assert (promotion.kind, promotion.expected_version) == ("promoted", 0)
            assert promotion.metrics["low"] > 0
            assert promotion.gate["canary.step_groups"] == "10"

            put(trained(2))
            assert (said(5).kind, said(5).version, said(5).expected_version) == ("canary_started", 2, 1)
            put(*answers(2, reward=0.9, finish_reason="length"), *answers(1, reward=0.9))
            rejection = said(6)
            assert rejection.kind == "rejected"
            assert rejection.reason.startswith("canary: truncated is 1, 0 for the primary")
    state = read_state(settings, "default")
    assert (state.primary, state.versions[2].status, state.refused) == (1, "rejected", ())
    assert len(decisions(settings)) == 6
    shown = status(settings, "table")
    assert "truncated is 1, 0 for the primary" in shown
    assert "a new version" in shown


def test_the_guards_suite_is_asked_judged_and_carried_out(made: Settings, tmp_path: Path) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text("name: sums\nscenarios: {sums: {generator: sums, count: 30}}\n")
    settings = made.model_copy(
        update={"rollouts": Rollouts(mode="guarded"), "guard": Guard(suite=suite, min_tasks=20, every=2)}
    )

    def asked() -> list[Task]:
        found = [record.decode(Task) for record in admin.read_topic(settings, "tasks")]
        return [task for task in found if isinstance(task, Task)]

    with Producer(settings) as producer, worker(settings):
        for version in (1, 2):
            producer.send(trained(version))
        producer.flush()
        until(lambda: len(asked()) >= 60, "30 questions for each of two versions")
        assert {task.adapter_version for task in asked()} == {0, 2}  # every other version, and the primary
        for task in asked():
            right = float(task.adapter_version == 2 or int(task.metadata["suite_index"]) < 10)
            one = replace(group().responses[0], reward=right, components={"exact": right})
            producer.send(
                group(
                    task_id=task.task_id,
                    purpose="eval",
                    scenario=task.scenario,
                    group_size=1,
                    adapter_version=task.adapter_version,
                    metadata=task.metadata | {"pinned_version": str(task.adapter_version)},
                    responses=(one,),
                )
            )
        producer.flush()
        until(lambda: read_state(settings, "default").primary == 2, "version 2 as primary")
    found = [event for event in decisions(settings) if event.kind != "evaluated"]
    assert [(event.kind, event.version, event.verdict) for event in found] == [
        ("judged", 2, "promote"),
        ("promoted", 2, None),
    ]


def test_watching_shows_it_again_when_it_changes_and_ctrl_c_is_no_error(made: Settings) -> None:
    watching = spawn(
        command("adapters", "rollout", "--watch", "--output", "json"),
        env=environment(made),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert watching.stdout is not None
        before = json.loads(watching.stdout.readline())
        write(made, trained(1))
        after = json.loads(watching.stdout.readline())
        watching.send_signal(signal.SIGINT)
        more, said = watching.communicate(timeout=300)
    finally:
        watching.kill()
        watching.communicate()
    assert (before["newest"], after["newest"]) == (0, 1)
    assert (watching.returncode, more) == (0, ""), said
