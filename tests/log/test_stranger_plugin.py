"""A stranger's plugin (docs/examples/plugin-thumbs) against a real broker: its topic, command, view and recount."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from streams.kafka import admin
from streams.kafka.producer import Producer
from streams.settings.model import Settings
from streams.tools import doctor
from tests.support.factories import response, task
from tests.support.stranger_plugin import install_thumbs, run_with


@pytest.fixture(scope="module")
def thumbs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_thumbs(tmp_path_factory.mktemp("thumbs"))


def test_a_plugin_of_a_stranger_writes_queries_and_recounts_its_topic(thumbs: Path, settings: Settings) -> None:
    def run(*args: str, exit_code: int = 0) -> list[dict[str, Any]]:
        done = run_with(thumbs, *args, settings=settings)
        assert done.returncode == exit_code, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    assert "thumbs" in {row["topic"].removeprefix(settings.topics.prefix) for row in run("topics", "apply")}
    answers = [response(slot=slot, group_size=2) for slot in range(2)]
    with Producer(settings) as producer:
        for event in (task(group_size=2), *answers):
            producer.send(event)
    good, bad = (answer.response_id for answer in answers)
    for answer, thumb in ((good, "up"), (good, "up"), (bad, "down")):
        run("thumbs", "add", answers[0].task_id, answer, thumb)

    assert [(row["answer_id"], row["up"], row["down"]) for row in run("thumbs", "list")] == [(bad, 0, 1), (good, 2, 0)]
    (row,) = run("query", "SELECT text, up FROM answer_thumbs WHERE up > 0")
    assert row == {"text": answers[0].text, "up": 2}
    (report,) = run("audit")
    assert (report["thumbs"], report["sums"]["thumbs"]) == (3, "3 = 2 up + 1 down")

    run("thumbs", "add", answers[0].task_id, "of-nobody", "up")
    (report,) = run("audit", exit_code=1)
    assert [found["what"] for found in report["phantom"]] == ["it is about answer of-nobody, which is not in the log"]


def test_doctor_names_a_topic_that_nothing_installed_reads(thumbs: Path, settings: Settings) -> None:
    admin.apply_topics(settings)
    assert run_with(thumbs, "topics", "apply", settings=settings).returncode == 0
    (found,) = (one for one in doctor.examine(lambda: (settings, {})) if one.check == "topics" and one.state != "ok")
    assert found.what == f"{settings.topics.prefix}thumbs: nothing that is installed reads this"
