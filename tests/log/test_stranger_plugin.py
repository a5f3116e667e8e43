"""A stranger's plugin (docs/examples/plugin-thumbs) against a real broker: its topic, route, view and recount."""

from __future__ import annotations

import contextlib
import json
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from streams.kafka import admin
from streams.kafka.producer import Producer
from streams.settings.model import Metrics, Serve, Settings
from streams.tools import doctor
from tests.support.factories import response, task
from tests.support.log.secured_node import free_ports
from tests.support.processes import command, until
from tests.support.stranger_plugin import environment_with, install_thumbs, run_with

MCP_CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
ACCEPT = {"accept": "application/json, text/event-stream"}


@pytest.fixture(scope="module")
def thumbs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_thumbs(tmp_path_factory.mktemp("thumbs"))


def test_a_plugin_of_a_stranger_writes_queries_and_recounts_its_topic(thumbs: Path, settings: Settings) -> None:
    def run(*args: str, exit_code: int = 0) -> list[dict[str, Any]]:
        done = run_with(thumbs, *args, settings=settings)
        assert done.returncode == exit_code, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    assert "thumbs" in {row["topic"].removeprefix(settings.topics.prefix) for row in run("admin", "topics", "apply")}
    answers = [response(slot=slot, group_size=2) for slot in range(2)]
    with Producer(settings) as producer:
        for event in (task(group_size=2), *answers):
            producer.send(event)
    good, bad = (answer.response_id for answer in answers)
    for answer, thumb in ((good, "--up"), (good, "--up"), (bad, "--no-up")):
        run("rate", answers[0].task_id, answer, thumb)

    (row,) = run("query", "SELECT text, up FROM answer_thumbs WHERE up > 0")
    assert row == {"text": answers[0].text, "up": 2}
    (report,) = run("audit")
    assert (report["thumbs"], report["sums"]["thumbs"]) == (3, "3 = 2 up + 1 down")

    run("rate", answers[0].task_id, "of-nobody", "--up")
    (report,) = run("audit", exit_code=1)
    assert [found["what"] for found in report["phantom"]] == ["it is about answer of-nobody, which is not in the log"]


def test_doctor_names_a_topic_that_no_plugin_reads(thumbs: Path, settings: Settings) -> None:
    admin.apply_topics(settings)
    assert run_with(thumbs, "admin", "topics", "apply", settings=settings).returncode == 0
    (found,) = (one for one in doctor.examine(lambda: (settings, {})) if one.check == "topics" and one.state != "ok")
    assert found.what == f"{settings.topics.prefix}thumbs: no plugin that is loaded reads this"


def answers(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{url}/healthz", timeout=300).is_success
    return False


def test_the_server_answers_the_route_of_a_stranger(thumbs: Path, settings: Settings, tmp_path: Path) -> None:
    port, scraped = free_ports(2)
    settings = settings.model_copy(update={"serve": Serve(port=port), "metrics": Metrics(port=scraped)})
    assert run_with(thumbs, "admin", "topics", "apply", settings=settings).returncode == 0
    with Producer(settings) as producer:
        for event in (task(group_size=1), answer := response(group_size=1)):
            producer.send(event)
    server = subprocess.Popen(command("serve"), env=environment_with(thumbs, settings), cwd=tmp_path)
    try:
        until(lambda: answers(settings.serve.url), "the server answers")
        body = {"task_id": answer.task_id, "answer_id": answer.response_id, "up": True}
        done = httpx.post(f"{settings.serve.url}/thumbs", json=body, timeout=300)
        assert done.status_code == 200, done.text
        missing = httpx.post(f"{settings.serve.url}/thumbs", json=body | {"task_id": "none"}, timeout=300)
        assert missing.status_code == 404
        tool = {"name": "rate", "arguments": body | {"task_id": "none"}}
        called = httpx.post(f"{settings.serve.url}/mcp", json=MCP_CALL | {"params": tool}, timeout=300, headers=ACCEPT)
        result = called.json()["result"]
        assert result["isError"] and missing.json()["error"]["message"] in result["content"][-1]["text"]
        typed = run_with(thumbs, "rate", "none", answer.response_id, "--no-up", settings=settings)
        assert (typed.returncode, typed.stderr) == (3, f"Error: {missing.json()['error']['message']}\n")
        counted = httpx.get(f"http://127.0.0.1:{scraped}/metrics", timeout=300).text
        assert 'streamward_thumbs_total{thumb="up"} 1.0' in counted
    finally:
        server.kill()
        server.wait()
    (row,) = map(json.loads, run_with(thumbs, "query", "FROM answer_thumbs", settings=settings).stdout.splitlines())
    assert (row["answer_id"], row["up"]) == (answer.response_id, 1)
