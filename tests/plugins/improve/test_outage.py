"""The processes of `streamward improve run` during an outage of the broker: each waits, logs it once, and continues."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from schemas.events import Task, TriggerEvent
from streams.kafka.node import process as broker
from streams.settings.model import Metrics, Settings
from tests.chaos.proxy import free_ports
from tests.log.test_outages import PROPERTIES, node as node, read, settings as settings
from tests.support.processes import log_file, running, until
from tests.support.scrape import get, parse

pytestmark = [pytest.mark.kafka, pytest.mark.kills]


def test_what_learns_from_served_runs_outlives_its_broker_says_so_once_and_goes_on(
    settings: Settings, tmp_path: Path
) -> None:
    rule, catalogue = tmp_path / "retrain.toml", tmp_path / "sums.json"
    when = '[when]\nevery = "1s"\npromotable = 9\n[train]\nn_iterations = 1\n'
    rule.write_text(f'name = "often"\npolicy = "p"\nactions = ["train"]\n{when}', encoding="utf-8")
    scenario = {"name": "s", "questions": [{"question": "1 + 1 =", "expected": 2}]}
    catalogue.write_text(json.dumps({"name": "sums", "scenarios": [scenario]}), encoding="utf-8")
    commands = ["improve curate follow", "improve datasets follow good", f"improve retrain follow --rule {rule}"]
    commands.append(f"improve selfplay run {catalogue} --every 1s")
    ports = free_ports(len(commands))
    node = broker.status(settings.broker)
    assert node is not None

    def answers(path: str) -> list[tuple[int, str]]:
        return [get(f"http://127.0.0.1:{port}{path}") for port in ports]

    def ticks() -> Counter[str]:
        return Counter(event.rule for event in read(settings, "triggers", TriggerEvent) if event.kind == "ticked")

    with ExitStack() as stack:
        for line, port in zip(commands, ports, strict=True):
            stack.enter_context(running(settings.model_copy(update={"metrics": Metrics(port=port)}), tmp_path, line))
        until(lambda: answers("/readyz") == [(200, "ok\n")] * 4, "all to be ready", folder=tmp_path)
        until(lambda: len(ticks()) == 2, "the first tick of each", folder=tmp_path)
        until(lambda: "streamward_selfplay_questions_total{" in answers("/metrics")[3][1], "questions", folder=tmp_path)
        datasets, retrain, selfplay = (parse(text) for _, text in answers("/metrics")[1:])
        assert datasets.total("streamward_dataset_due_ratio", dataset="good") == 0
        assert retrain.total("streamward_retrain_due_ratio", rule="often", signal="promotable") == 0
        assert selfplay.total("streamward_selfplay_questions_total", catalogue="sums") > 0
        os.kill(node.pid, signal.SIGKILL)
        until(lambda: {status for status, _ in answers("/readyz")} == {503}, "all to notice", folder=tmp_path)
        assert all("kafka: Kafka at" in reason for _, reason in answers("/readyz"))
        assert {status for status, _ in answers("/healthz")} == {200}, "an outage is no reason to be restarted"
        broker.start(settings.broker, properties=PROPERTIES)
        before = ticks()
        until(lambda: all(ticks()[name] > before[name] + 1 for name in before), "further ticks", folder=tmp_path)
        until(lambda: answers("/readyz") == [(200, "ok\n")] * 4, "all to be ready again", folder=tmp_path)
        for line in commands:
            log = log_file(tmp_path, line).read_text()
            assert (log.count(": waiting, 600 s"), log.count("answers again")) == (1, 1), log
    asked = Counter(task.task_id for task in read(settings, "tasks", Task))
    assert set(asked.values()) == {1}, "a question was asked twice"
