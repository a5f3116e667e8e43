"""`streamward evaluate` on a real log: what it asks, what it waits for, and what it prints."""

from __future__ import annotations

import json
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from schemas.events import AdapterEvent, AdvantagedGroup, Task
from streams.evaluation import results, version_scores
from streams.kafka import admin
from streams.settings.model import Kafka, Settings, Topics
from streams.stages.tasks import suites
from tests.support.commands import invoke
from tests.support.factories import adapter_event, group, member
from tests.support.log.shared_node import own_prefix
from tests.support.processes import read, write

pytestmark = pytest.mark.kafka
SUITE = """\
name: sums
scenarios:
  short: {generator: sums, count: 20}
  long: {generator: sums, count: 20, options: {terms: 3}, thresholds: {success: 0.1}}
"""


about = partial(adapter_event, policy="p", created_at=1, actor="trainer")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("suite") / "suite.yaml"
    file.write_text(SUITE)
    return file


@pytest.fixture(scope="module")
def source(kafka_bootstrap: str) -> Settings:
    """A log with versions 1, which is primary, 2, and 3, the newest, which is retired."""
    settings = Settings(kafka=Kafka(bootstrap=kafka_bootstrap), topics=Topics(prefix=own_prefix()))
    admin.apply_topics(settings)
    promotion = about("promoted", 1, expected_version=0)
    write(settings, about("trained", 1), promotion, about("trained", 2), about("trained", 3), about("retired", 3))
    return settings


def run(settings: Settings, file: Path, *args: str) -> Result:
    options = ("evaluate", "--policy", "p", "--version", "2", "--suite", str(file))
    return invoke(settings, *options, *args)


def row(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.stderr
    (line,) = result.stdout.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def result_of(settings: Settings, version: int, right: int) -> AdapterEvent:
    """Return what the stage counts when a version answers so many of the tasks in the log rightly."""
    suite = None
    made: list[AdapterEvent] = []
    for _, task in read(settings, Task):
        if task.adapter_version == version:
            suite, done = results.count(suite, answered(task, int(task.metadata["suite_index"]) < right))
            made += done
    (result,) = made
    return result


def answered(task: Task, right: bool) -> AdvantagedGroup:
    response = member(reward=float(right), components={"exact": float(right)}, latency_ms=10.0)
    return group(
        task_id=task.task_id, created_at=task.created_at, policy="p", purpose="eval", scenario=task.scenario,
        metadata=task.metadata | {"pinned_version": str(task.adapter_version)}, group_size=1,
        adapter_version=task.adapter_version or 0, responses=(response,),
    )  # fmt: skip


def test_a_version_the_primary_and_the_base_are_asked_waited_for_and_compared(source: Settings, file: Path) -> None:
    first = run(source, file, "--no-wait")
    assert (row(first)["waiting"], row(first)["scores"]) == ([2, 1, 0], [])
    assert "version 2, 1, 0 of p: 120 tasks submitted, 0 already in the log" in first.stderr
    again = run(source, file, "--no-wait")
    assert "0 tasks submitted, 120 already in the log" in again.stderr
    asked = [task for _, task in read(source, Task)]
    assert {(task.adapter_version, task.purpose, task.policy) for task in asked} == {
        (number, "eval", "p") for number in (0, 1, 2)
    }
    write(source, result_of(source, 1, right=10), result_of(source, 0, right=0))
    later = threading.Timer(1.0, write, (source, result_of(source, 2, right=30)))
    later.start()
    found = row(run(source, file))
    later.join()

    assert (found["version"], found["waiting"], found["suite"]) == (2, [], suites.load(file).name)
    whole = {score["version"]: score for score in found["scores"] if score["scenario"] == "all"}
    assert {number: score["success"] for number, score in whole.items()} == {2: 0.75, 1: 0.25, 0: 0.0}
    assert whole[2]["success_low"] < 0.75 < whole[2]["success_high"] and whole[2]["n"] == 40
    by_scenario = {score["scenario"]: score["success"] for score in found["scores"] if score["version"] == 2}
    assert by_scenario == {"all": 0.75, "short": 1.0, "long": 0.5}
    gains = {gain["against"]: gain for gain in found["gains"] if gain["scenario"] == "all"}
    assert {number: gain["gain"] for number, gain in gains.items()} == {1: 0.5, 0: 0.75}
    assert gains[1]["gain_low"] > 0 and gains[1]["tokens_ratio"] == 1.0
    assert (found["guard"]["verdict"], found["guard"]["against"]) == ("promote", 1)

    table = run(source, file, "--output", "table")
    assert "0.75 (0.598 to 0.858)" in table.stdout and "gain in reward" in table.stdout
    assert "by the rule in [guard], against version 1: promote" in table.stdout
    assert table.stderr == ""  # all have their result: nothing is asked


def test_a_wait_says_who_does_not_move(made: Settings, file: Path) -> None:
    write(made, about("trained", 1))
    suite, stop = suites.load(file), threading.Event()
    said: list[str] = []

    def told(text: str) -> None:
        said.append(text)
        stop.set()

    suites.ask(made, suite, "p", [1])
    state = version_scores.wait(
        made, version_scores.AwaitedResults("p", suite.name, [1]), stop=stop, report=told, quiet_s=0.2
    )
    assert said == [
        "waiting for version 1 (0 tasks since); no response has come: run `streamward policy` with policy.name=p"
    ]
    assert version_scores.open_versions(state, suite.name, [1]) == [1]


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("--version", "9"), 3, "policy p has no version 9; the newest is 3"),
        (("--against", "9"), 3, "policy p has no version 9"),
        (("--version", "3"), 4, "version 3 of policy p is retired"),
        (("--suite", "nowhere.yaml"), 3, "nowhere.yaml: No such file"),
    ],
)
def test_refuses_what_cannot_be_asked(
    source: Settings, file: Path, args: tuple[str, ...], code: int, says: str
) -> None:
    result = run(source, file, *args)
    assert (result.exit_code, result.stdout) == (code, "")
    assert says in result.stderr


def test_asks_for_a_suite_if_none_is_named(source: Settings) -> None:
    result = invoke(source, "evaluate")
    assert result.exit_code == 2
    assert "name its file with --suite, or set guard.suite" in result.stderr
