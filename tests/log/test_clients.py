"""docs/clients.md: its programs in Python and Java send a task that is whole and in place, and read its rewards."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.events import Message, RewardSource, Sampling, Task
from streams.kafka import admin
from streams.kafka.producer import Producer
from streams.kafka.registry import server as schema_server
from streams.settings.model import Settings
from tests.support.factories import response, reward
from tests.support.java import java_program

pytestmark = pytest.mark.kafka

PAGE = Path(__file__).parents[2] / "docs" / "clients.md"


def program(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return str(found)


def test_the_python_program_sends_a_task_and_reads_its_rewards(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text(program("python"))
    check(settings, [sys.executable, str(tmp_path / "client.py")], tmp_path)


def test_the_java_program_sends_a_task_and_reads_its_rewards(settings: Settings, tmp_path: Path) -> None:
    check(settings, java_program(program("java"), "Client", tmp_path), tmp_path)


def check(settings: Settings, command: list[str], folder: Path) -> None:
    """Run a program against topics of its own, look at the task that it sent, and write two rewards for it."""
    admin.apply_topics(settings)
    with schema_server.serve(settings) as url, (folder / "stderr").open("w+") as stderr:
        arguments = [settings.kafka.bootstrap, url, settings.topics.prefix]
        client = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=stderr, text=True)
        assert client.stdout is not None
        try:
            word, _, task_id = client.stdout.readline().strip().partition(" ")
            assert word == "task", (folder / "stderr").read_text()
            (record,) = admin.read_topic(settings, "tasks")
            asked = record.decode_placed(Task, settings.topics.partitions)
            assert isinstance(asked, Task), asked
            assert asked == Task(
                task_id=task_id,
                created_at=asked.created_at,
                policy="default",
                group_size=2,
                sampling=Sampling(max_tokens=16),
                verifier='{"answer": "5"}',
                reward_sources=(RewardSource(name="exact"),),
                messages=(Message(role="user", content="What is 2 + 3? Only the number."),),
            )
            assert abs(asked.created_at - record.timestamp_ms) < 60_000
            with Producer(settings) as producer:
                producer.send(reward(response(task_id="another")))
                for slot, value in ((0, 1.0), (1, 0.25)):
                    producer.send(reward(response(task_id=task_id, slot=slot, group_size=2), value=value))
            said, _ = client.communicate(timeout=120)
            assert (client.returncode, said) == (0, "reward 0 1.0\nreward 1 0.25\n"), (folder / "stderr").read_text()
        finally:
            client.kill()
            client.wait()
