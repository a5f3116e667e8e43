"""What runs leave in the agents' store, and summaries of threads, as users meet them: a real log, and kill -9."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.rooms.routes import TABLE
from plugins.threads.log.thread_settings import Threads
from schemas.events import CurationEvent, Event, MemoryEvent, ThreadEvent, Turn
from streams.kafka import admin
from streams.kafka.producer import Producer
from streams.settings.model import Settings
from tests.plugins.threads.thread_server import Client
from tests.support.agent_server import ServeProcess, audited, serving, settings_of
from tests.support.factories import curation_event
from tests.support.processes import read

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.skipif(TABLE.find("POST", "/prompts/templates") is None, reason="the plugin prompts is not loaded"),
]
NOTES = f"{__name__}:note_sum"
SCRIPT: dict[str, Any] = {
    "replies": [
        {"when": "1 + 7 =", "reply": "8"},
        {"when": "and twice that?", "reply": "16"},
        {"when": '"verdict": null}', "reply": '{"key": "last sum", "value": {"answer": "8"}}'},
        {"when": '"content": "8"}]', "reply": "They added 1 and 7."},
    ]
}


def note_sum(run: dict[str, Any]) -> dict[str, Any] | None:
    """Return the answer of a run as an item."""
    if run["messages"][0]["content"] == "fail":
        raise LookupError("no sum in it")
    if run["messages"][0]["content"] == "nothing":
        return None
    verdict = None if run["verdict"] is None else run["verdict"]["rationale"]
    return {"key": run["run"], "value": {"answer": run["messages"][-1]["content"], "verdict": verdict}}


def settings_with_functions(bootstrap: str, folder: Path, **script: Any) -> Settings:
    settings = settings_of(bootstrap, folder, SCRIPT | script)
    return settings.model_copy(update={"threads": Threads(functions=NOTES)})


@pytest.fixture(scope="module")
def server(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Settings, Client]]:
    settings = settings_with_functions(kafka_bootstrap, tmp_path_factory.mktemp("memory"))
    with audited(settings) as url:
        client = Client(url, {})
        make_prompts(client)
        yield settings, client


def make_prompts(client: Client) -> None:
    for name, template in (("notes", "Answer with the item to remember."), ("summary", "Summarize.")):
        made = client.ask("POST", "/prompts/templates", {"name": name, "template": template})
        assert made.status_code == 201, made.text


def register(client: Client, agent_id: str, **memory: Any) -> None:
    agent = {"agent_id": agent_id, "model_id": "sums", "memory_config": memory}
    registered = client.ask("POST", "/rl/agents", agent)
    assert registered.status_code == 201, registered.text


def written(settings: Settings, event_type: type[Event], count: int, **fields: Any) -> list[Any]:
    """Return the events with these fields, once there are so many."""
    deadline = time.monotonic() + 300
    while True:
        events = [event for _, event in read(settings, event_type)]
        fitting = [event for event in events if all(getattr(event, name) == value for name, value in fields.items())]
        if len(fitting) >= count:
            return fitting
        assert time.monotonic() < deadline, events
        time.sleep(0.2)


def test_a_run_leaves_the_item_that_a_prompt_answers_with_its_evidence(server: tuple[Settings, Client]) -> None:
    settings, client = server
    register(client, "noter", namespace=["sums"], remember={"prompt": "notes@1"})
    run = client.run(client.thread(), agent_id="noter")["run"]["run_id"]
    [item] = written(settings, MemoryEvent, 1, run_id=run)
    assert (item.kind, item.namespace, item.key, item.value) == ("put", "sums", "last sum", '{"answer": "8"}')
    turns = {turn.turn_id: turn for _, turn in read(settings, Turn)}
    asked, answer = turns[item.item_turn], turns[item.answer_turn]
    assert (asked.agent_id, asked.protocol, asked.prompt_version) == ("noter", "memory", "notes@1")
    assert (answer.trajectory_id, item.rule, item.actor) == (run, "prompt notes@1", "serve")
    assert client.send("GET", "/store/items?key=last sum&namespace=sums")["value"] == {"answer": "8"}


def test_a_function_is_called_and_its_failure_is_recorded_by_name(server: tuple[Settings, Client]) -> None:
    settings, client = server
    register(client, "counter", namespace=["counts"], remember={"function": NOTES})
    run = client.run(client.thread(), agent_id="counter")["run"]["run_id"]
    [item] = written(settings, MemoryEvent, 1, run_id=run)
    assert (item.key, item.rule.rpartition(" ")[0]) == (run, f"function {NOTES}")
    failing = client.run(client.thread(), "fail", agent_id="counter")["run"]["run_id"]
    [failed] = written(settings, MemoryEvent, 1, run_id=failing)
    assert (failed.kind, failed.error) == ("failed", "LookupError: no sum in it")
    client.run(client.thread(), "nothing", agent_id="counter")
    assert written(settings, MemoryEvent, 1, kind="skipped")[0].value is None
    register(client, "stranger", namespace=["counts"], remember={"function": "os:getcwd"})
    refused = client.ask("POST", "/acp/runs", {"agent_id": "stranger", "input": "1 + 7 ="})
    assert refused.status_code == 409 and "threads.functions" in refused.text


def test_a_verdict_leaves_an_item_once(kafka_bootstrap: str, tmp_path: Path) -> None:
    pytest.importorskip("plugins.improve")
    settings = settings_with_functions(kafka_bootstrap, tmp_path)
    with serving(settings) as url:
        _leaves_one_item(settings, Client(url, {}))


def _leaves_one_item(settings: Settings, client: Client) -> None:
    register(client, "judged", remember={"on": "verdict", "function": NOTES, "namespace": ["judged"]})
    run = client.run(client.thread(), agent_id="judged")["run"]["run_id"]
    verdict = curation_event(answer_id=run, task_id=run, policy="sums", rationale="it is right")
    with Producer(settings) as producer:
        for event in (verdict, verdict, replace(verdict, event_id="undecided", verdict="needs_human")):
            producer.send(event)
    [item] = written(settings, MemoryEvent, 1, run_id=run)
    assert (item.verdict_id, item.value) == (verdict.event_id, '{"answer": "8", "verdict": "it is right"}')
    assert len(read(settings, CurationEvent)) == 3


def test_a_thread_that_outgrows_its_bound_is_read_with_a_summary_of_its_beginning(
    server: tuple[Settings, Client],
) -> None:
    settings, client = server
    register(client, "brief", compaction={"over_tokens": 60, "turns": 1, "prompt": "summary@1"})
    thread = client.thread()
    for _ in range(2):
        client.run(thread, agent_id="brief")
    [compacted] = written(settings, ThreadEvent, 1, kind="compacted", thread_id=thread)
    assert (compacted.stands_for, compacted.rule) == (2, "last-turns/1 summary@1")
    run = client.run(thread, "and twice that?", agent_id="brief")["run"]["run_id"]
    [turn] = [turn for _, turn in read(settings, Turn) if turn.trajectory_id == run]
    said = ["Summarize our conversation so far.", "They added 1 and 7.", "1 + 7 =", "8", "and twice that?"]
    assert [message.content for message in turn.messages] == said
    assert len(client.send("GET", f"/threads/{thread}")["messages"]) == 6


def test_an_agent_with_a_prompt_reads_the_items_of_the_store_after_it(server: tuple[Settings, Client]) -> None:
    settings, client = server
    memory = {"namespace": ["advice"], "items": 1}
    agent = {"agent_id": "adviser", "model_id": "sums", "prompt": "notes@1", "memory_config": memory}
    assert client.ask("POST", "/rl/agents", agent).status_code == 201
    for key in ("ann", "ben"):
        client.send("POST", "/store", {"namespace": ["advice"], "key": key, "value": {"likes": "sums"}})
    run = client.run(client.thread(), agent_id="adviser")["run"]
    assert run["status"] == "success"
    [turn] = [turn for _, turn in read(settings, Turn) if turn.trajectory_id == run["run_id"]]
    assert [message.role for message in turn.messages] == ["system", "user"]
    assert turn.messages[0].content.startswith("Answer with the item to remember.\n\nThe JSON that follows")
    assert '"advice/ann"' in turn.messages[0].content and "ben" not in turn.messages[0].content


def test_a_rule_that_cannot_take_effect_is_refused_by_name(server: tuple[Settings, Client]) -> None:
    _, client = server
    for memory, says in (
        ({"remember": {"prompt": "nowhere"}, "namespace": ["a"]}, "memory_config.remember.prompt"),
        ({"remember": {"prompt": "notes@1"}}, "memory_config.remember needs a namespace"),
        ({"remember": {"prompt": "notes@1", "function": NOTES}, "namespace": ["a"]}, "one of prompt and function"),
        ({"turns": 1, "compaction": {"over_tokens": 9, "turns": 1, "prompt": "summary@1"}}, "use one of them"),
    ):
        refused = client.ask("POST", "/rl/agents", {"agent_id": "no", "model_id": "sums", "memory_config": memory})
        assert refused.status_code in (400, 404) and says in refused.text, refused.text


@pytest.mark.kills
def test_after_kill_9_the_next_server_remembers_what_the_runs_have_left_and_nothing_twice(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    settings = settings_with_functions(kafka_bootstrap, tmp_path, latency_ms=1500)
    admin.apply_topics(settings)
    server = ServeProcess(settings, tmp_path)
    client = Client(server.url, {})
    make_prompts(client)
    memory = {"namespace": ["sums"], "remember": {"prompt": "notes@1"}}
    register(client, "noter", **memory, compaction={"over_tokens": 1, "turns": 1, "prompt": "summary@1"})
    thread = client.thread()
    runs = [client.run(thread, agent_id="noter")["run"]["run_id"] for _ in range(3)]
    server.kill()
    server.start()
    client.send("GET", "/threads/" + thread)
    items = written(settings, MemoryEvent, 3)
    written(settings, ThreadEvent, 1, kind="compacted")
    assert sorted(item.run_id for item in items) == sorted(runs)
    server.stop()
