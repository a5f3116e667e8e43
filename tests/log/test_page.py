"""`streamward page` over a real log: what is in it, what is written meanwhile, and a broker that is unreachable."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from schemas.events import Event
from streams.kafka.producer import Producer
from streams.settings.model import Kafka, Page, Settings
from tests.support.factories import task
from tests.support.log import page_log
from tests.support.processes import command, environment, until

pytestmark = pytest.mark.kafka


@pytest.fixture
def address(made: Settings, tmp_path: Path) -> Iterator[str]:
    """Where a page answers that another process serves."""
    own = made.model_copy(update={"page": Page(port=0)})
    said = tmp_path / "page.log"
    with said.open("w") as log, subprocess.Popen(command("page"), env=environment(own), stderr=log) as process:
        try:
            until(lambda: "the page is at" in said.read_text(), "an address", folder=tmp_path)
            yield re.findall(r"http://\S+\d", said.read_text())[0]
        finally:
            process.terminate()
            assert process.wait(60) == 0


def test_a_log_is_shown_as_it_is_now_and_followed_as_it_is_written(made: Settings, address: str) -> None:
    with httpx.Client(base_url=address, timeout=60) as browser, Producer(made) as producer:
        assert "There are no train tasks yet" in browser.get("/").text
        assert "nobody: start `streamward streams`" in browser.get("/").text.replace("&#39;", "'")
        with browser.stream("GET", "/live/events") as following:
            lines = following.iter_lines()
            assert next(lines) == ": follows"
            log = page_log.small_log()
            for label in ("tasks", "responses", "rewards", "groups", "batches", "adapters"):
                for event in log[label]:
                    assert isinstance(event, Event)
                    producer.send(event)
            producer.flush()
            found = json.loads(next(line for line in lines if line.startswith("data: ")).removeprefix("data: "))
            assert set(found) == {"topic", "partition", "offset", "time", "key", "what"}
        until(lambda: browser.get("/tasks/taught").status_code == 200, "the task is shown")
        assert "2 of 4 answers were better than the mean of 0.5" in browser.get("/tasks/taught").text
        producer.send(task(task_id="new", policy="another"))
        producer.flush()
        until(lambda: "another" in browser.get("/").text, "what was written since is shown")


def test_a_broker_that_is_away_is_said_and_the_page_stays_up(tmp_path: Path) -> None:
    away = Settings(kafka=Kafka(bootstrap="127.0.0.1:1", request_timeout_s=0.5), page=Page(port=0))
    said = tmp_path / "page.log"
    with said.open("w") as log, subprocess.Popen(command("page"), env=environment(away), stderr=log) as process:
        try:
            until(lambda: "the page is at" in said.read_text(), "an address", folder=tmp_path)
            with httpx.Client(base_url=re.findall(r"http://\S+\d", said.read_text())[0], timeout=60) as browser:
                for _ in range(2):
                    answer = browser.get("/")
                    assert answer.status_code == 503
                    assert "127.0.0.1:1" in answer.text
        finally:
            process.terminate()
            assert process.wait(60) == 0
