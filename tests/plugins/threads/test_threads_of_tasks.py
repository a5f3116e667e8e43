"""Conversations that tasks name, over the Agent Protocol: read, continued, deleted, and by whom."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.events import Message, ThreadEvent
from streams.kafka import admin
from streams.kafka.producer import Producer
from tests.plugins.threads.thread_server import SCRIPT, Client, Served, served_with_keys
from tests.support.agent_server import ServeProcess, settings_of
from tests.support.factories import response, task
from tests.support.processes import read, until, write

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def served(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served_with_keys(settings_of(kafka_bootstrap, tmp_path_factory.mktemp("acp"), SCRIPT, auth="keys")) as server:
        yield server


@pytest.fixture
def red(served: Served) -> Client:
    return served.client("red")


def contents(answer: Any) -> list[str]:
    return [message["content"] for message in answer["messages"]]


def submit(client: Client, thread: str, text: str, **fields: Any) -> str:
    sent = client.ask("POST", "/tasks", {"input": text, "thread": thread, "task_id": str(uuid.uuid4()), **fields})
    assert sent.status_code == 201, sent.text
    return str(sent.json()["task_id"])


def answer(served: Served, task_id: str, text: str, **fields: Any) -> None:
    write(served.settings, response(task_id=task_id, text=text, sampling_id=str(uuid.uuid4()), **fields))


def listed(client: Client, **body: Any) -> list[Any]:
    threads: list[Any] = client.send("POST", "/threads/search", {"limit": 1000, **body})
    return threads


def settles(client: Client, thread: str, *texts: str) -> None:
    """Wait until a thread has these messages: an answer that an agent wrote is read a moment later."""
    until(lambda: contents(client.send("GET", f"/threads/{thread}")) == list(texts), f"thread {thread} has {texts}")


def test_a_thread_that_tasks_name_is_read_listed_and_continued_by_a_run(red: Client, served: Served) -> None:
    name = f"case {uuid.uuid4()}"
    asked = submit(red, name, "1 + 7 =")
    [thread] = listed(red, metadata={"thread": name})
    assert contents(thread) == ["1 + 7 ="]
    answer(served, asked, "8")
    settles(red, thread["thread_id"], "1 + 7 =", "8")
    run = red.run(thread["thread_id"], "and twice that?")
    assert contents(run) == ["1 + 7 =", "8", "and twice that?", "16"]
    whole = red.send("GET", f"/threads/{thread['thread_id']}")
    assert (contents(whole), whole["metadata"]) == (contents(run), {"thread": name})
    assert whole["participants"] == ["sums", "default"]
    assert listed(red, metadata={"thread": name}) == [whole]


def test_a_thread_of_both_kinds_has_what_its_tasks_say_later_too(red: Client, served: Served) -> None:
    thread = red.thread(metadata={"topic": "sums"})
    red.run(thread)
    asked = submit(red, thread.upper(), "2 + 2 =")
    answer(served, asked, "4")
    settles(red, thread, "1 + 7 =", "8", "2 + 2 =", "4")
    states = red.send("GET", f"/threads/{thread}/history")
    assert [len(state["messages"]) for state in states] == [4, 3, 2, 1, 0]
    patched = red.send("PATCH", f"/threads/{thread}", {"checkpoint": states[2]["checkpoint"]})
    assert (contents(patched), patched["metadata"]) == (["1 + 7 =", "8"], {"topic": "sums"})
    settles(red, thread, "1 + 7 =", "8")
    copy = red.send("POST", f"/threads/{thread}/copy")
    assert contents(copy) == ["1 + 7 =", "8"]


def test_a_thread_that_tasks_name_exists_already(red: Client) -> None:
    thread = str(uuid.uuid4())
    submit(red, thread, "1 + 7 =")
    red.send("POST", "/threads", {"thread_id": thread}, 409)
    same = red.send("POST", "/threads", {"thread_id": thread, "if_exists": "do_nothing"})
    assert contents(same) == ["1 + 7 ="]


def test_a_deleted_thread_stays_deleted_until_a_later_task_names_it(red: Client, served: Served) -> None:
    thread = str(uuid.uuid4())
    asked = submit(red, thread, "a secret")
    red.send("DELETE", f"/threads/{thread}", status=204)
    answer(served, asked, "8")
    red.send("GET", f"/threads/{thread}", status=404)
    assert thread not in [each["thread_id"] for each in listed(red)]
    red.send("POST", "/runs", {"thread_id": thread, "input": "1 + 7 ="}, 404)
    submit(red, thread, "2 + 2 =")
    assert contents(red.send("GET", f"/threads/{thread}")) == ["2 + 2 ="]
    written = [event for _, event in read(served.settings, ThreadEvent) if event.thread_id == f"red.{thread}"]
    assert all("a secret" not in repr(event) for event in written), "to be deleted it need not be copied"


@pytest.mark.parametrize("name", ["a/b?c=d", "..", "日本語 \N{SNOWMAN}", "green.blue", " ", "x" * 3000])
def test_a_thread_of_any_name_can_be_used(red: Client, name: str) -> None:
    submit(red, name, "1 + 7 =")
    [thread] = listed(red, metadata={"thread": name})
    assert contents(red.send("GET", f"/threads/{thread['thread_id']}")) == ["1 + 7 ="]
    assert contents(red.run(thread["thread_id"], "and twice that?"))[-1] == "16"
    red.send("DELETE", f"/threads/{thread['thread_id']}", status=204)


def test_a_tenant_knows_nothing_of_what_the_tasks_of_another_say(red: Client, served: Served) -> None:
    blue, name, thread = served.client("blue"), f"case {uuid.uuid4()}", str(uuid.uuid4())
    for each in (name, thread):
        submit(red, each, "a secret")
    assert listed(blue, metadata={"thread": name}) == []
    [of_red] = listed(red, metadata={"thread": name})
    for thread_id in (of_red["thread_id"], thread):
        blue.send("GET", f"/threads/{thread_id}", status=404)
        blue.send("DELETE", f"/threads/{thread_id}", status=404)
        blue.send("POST", "/runs", {"thread_id": thread_id, "input": "1 + 7 ="}, 404)
    submit(blue, name, "1 + 7 =")
    [of_blue] = listed(blue, metadata={"thread": name})
    assert contents(of_blue) == ["1 + 7 ="]
    assert contents(red.send("GET", f"/threads/{of_red['thread_id']}")) == ["a secret"]


def test_a_key_of_an_agent_sees_the_tasks_of_that_agent_alone(served: Served) -> None:
    calc, submitter, thread = served.client("calc"), served.client("submitter"), str(uuid.uuid4())
    question = Message(role="user", content="1 + 7 =")
    with Producer(served.settings) as producer:
        for agent, each in (("calc", thread), ("clerk", thread), ("clerk", str(uuid.uuid4()))):
            made = task(task_id=str(uuid.uuid4()), agent=agent, thread=each, tenant=None, messages=(question,))
            producer.send(made)
    until(lambda: contents(submitter.send("GET", f"/threads/{thread}")) == ["1 + 7 ="] * 2, "both tasks")
    assert [each["thread_id"] for each in listed(calc) if each["participants"] != ["calc"]] == []
    assert contents(calc.send("GET", f"/threads/{thread}")) == ["1 + 7 ="]


def test_a_run_that_may_make_its_thread_does_not_get_into_one_that_its_key_must_not_know_of(served: Served) -> None:
    admin_client, calc, submitter = (served.client(key) for key in ("admin", "calc", "submitter"))
    agent = {"agent_id": "calc", "model_id": "sums"}
    assert admin_client.ask("POST", "/rl/agents", agent).status_code in (200, 201)
    thread = submitter.thread()
    submitter.run(thread)
    body = {"thread_id": thread, "input": "and twice that?", "if_not_exists": "create"}
    calc.send("POST", "/runs/wait", body, 404)
    assert contents(submitter.send("GET", f"/threads/{thread}")) == ["1 + 7 =", "8"]


@pytest.mark.kills
def test_after_kill_9_a_thread_that_tasks_name_is_as_it_was(kafka_bootstrap: str, tmp_path: Path) -> None:
    settings = settings_of(kafka_bootstrap, tmp_path, SCRIPT)
    admin.apply_topics(settings)
    server = ServeProcess(settings, tmp_path)
    client, served = Client(server.url, {}), Served(settings, server.url, {})
    kept, untouched, gone = (str(uuid.uuid4()) for _ in range(3))
    for thread in (kept, untouched, gone):
        answer(served, submit(client, thread, "1 + 7 ="), "8")
        settles(client, thread, "1 + 7 =", "8")
    client.run(kept, "and twice that?")
    client.send("DELETE", f"/threads/{gone}", status=204)
    before = {thread: client.send("GET", f"/threads/{thread}") for thread in (kept, untouched)}
    server.kill()
    server.start()
    assert {thread: client.send("GET", f"/threads/{thread}") for thread in (kept, untouched)} == before
    client.send("GET", f"/threads/{gone}", status=404)
    server.stop()
