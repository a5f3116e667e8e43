"""Tasks that name an agent with registered tools: the server calls them within the task's run, by every door."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from plugins.agents.registry.registration import register
from plugins.agents.runs.agent_runner import AgentPlan, run as run_agent
from schemas.events import (
    ANSWERED_TASK,
    AdvantagedGroup,
    AgentEvent,
    CurationEvent,
    Message,
    Response,
    Task,
    ThreadEvent,
    TrajectoryEvent,
    derive_id,
)
from streams.kafka import admin
from streams.scorers.episode import tools
from streams.scorers.verdict import ScorerOptions
from streams.settings.model import Settings
from streams.stages.tasks.submit import submit
from tests.plugins.threads.thread_server import Client
from tests.plugins.threads.tool_server import SCRIPT, ToolServer, register_all, tool_call, with_tools
from tests.support.agent_server import ServeProcess, audited, check_audit
from tests.support.commands import invoke
from tests.support.factories import PROGRAM, group, member, task
from tests.support.processes import read, until, write

pytestmark = pytest.mark.kafka


@contextmanager
def running(settings: Settings, folder: Path, **changes: Any) -> Iterator[None]:
    """Answer the tasks of agent `host` while the block runs."""
    stop, url = threading.Event(), f"http://127.0.0.1:{settings.serve.port}"
    whole: dict[str, Any] = {"agent_id": "host", "work": None, "parallel": 8, "server": url, "folder": folder}
    thread = threading.Thread(target=partial(run_agent, settings, AgentPlan(**whole | changes), stop=stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def asked(text: str, **changes: Any) -> Task:
    whole: dict[str, Any] = {"task_id": text, "policy": "sums", "agent": "host", "purpose": "serve", "group_size": 1}
    return task(messages=(Message(role="user", content=text),), **whole | changes)


def response_to(settings: Settings, task_id: str) -> Response:
    """Return the response to a task, once there is one."""
    found: list[Response] = []

    def look() -> bool:
        found[:] = [event for _, event in read(settings, Response) if event.task_id == task_id]
        return bool(found)

    until(look, f"a response to {task_id}")
    return found[0]


def run_of_task(server: ToolServer, response: Response) -> list[ThreadEvent]:
    return server.events(response.response_id)


def test_a_task_of_each_door_is_answered_with_its_agent_s_tools_called(kafka_bootstrap: str, tmp_path: Path) -> None:
    with with_tools(kafka_bootstrap, tmp_path) as server, audited(server.settings) as url:
        settings = server.settings
        register_all(Client(url, {}))
        sent = httpx.post(f"{url}/tasks", json={"input": "weather in Ulm?", "agent": "host"}, timeout=300)
        assert sent.status_code == 201, sent.text
        submit(settings, [asked("weather in Ulm?", task_id="kafka"), asked("break it")])
        file = tmp_path / "tasks.jsonl"
        file.write_text(json.dumps({"prompt": "weather in Ulm?", "answer": "Hot.", "group_size": 2}))
        with running(settings, tmp_path):
            names = [sent.json()["task_id"], "kafka"]
            answered = {name: response_to(settings, name) for name in names}
            broken = response_to(settings, "break it")
        ran = invoke(settings, "agents", "run", "host", "--tasks", str(file), "--output", "jsonl")
        assert json.loads(ran.stdout) == {"completed": 2}, ran.output
        assert [tools(task(), one, ScorerOptions()).value for one in (broken, answered["kafka"])] == [0.0, 1.0]
        assert [(turn.tool, turn.ok) for turn in broken.turns] == [("broken", False), (None, None)]
        [group] = [task.task_id for _, task in read(settings, Task) if task.purpose == "train"]
        answered |= {f"{group} {one.slot}": one for _, one in read(settings, Response) if one.task_id == group}
    assert len(answered) == 4 and {(one.text, one.steps, one.error) for one in answered.values()} == {("Hot.", 2, None)}
    for response in answered.values():
        events = run_of_task(server, response)
        assert [event.kind for event in events][1:] == ["run_answered", "call_begun", "call_ended", "run_ended"]
        assert events[0].metadata[ANSWERED_TASK] == response.task_id
        assert [(turn.tool, turn.ok) for turn in response.turns] == [("weather", True), (None, None)]
        mask = response.loss_mask.data
        assert 0 < sum(mask) < len(mask), "the result of a tool bears no loss"
    assert server.made() == ["weather Ulm"] * 4


def group_of(settings: Settings, task_id: str) -> AdvantagedGroup:
    """Return the group that the worker would write of a served task."""
    [(at, answer)] = [(record.at, event) for record, event in read(settings, Response) if event.task_id == task_id]
    alone = member(0, response_id=answer.response_id, partition=at.partition, offset=at.offset)
    whole: dict[str, Any] = {"policy": "sums", "purpose": "serve", "group_size": 1, "sampling_id": answer.sampling_id}
    return group(task_id=task_id, group_id=derive_id(task_id), responses=(alone,), **whole)


def test_tasks_of_one_thread_are_one_run_everywhere_and_others_are_not(kafka_bootstrap: str, tmp_path: Path) -> None:
    with with_tools(kafka_bootstrap, tmp_path) as server, audited(server.settings) as url:
        settings = server.settings
        register_all(Client(url, {}))
        threads = {"a": "case 17", "b": "case 17", "c": "case 17", "other": "case 18", "alone": None}
        tasks = [asked("weather in Ulm?", task_id=name, thread=thread) for name, thread in threads.items()]
        with running(settings, tmp_path, parallel=1):
            for one in tasks:
                submit(settings, [one])
                response_to(settings, one.task_id)
        listed = [
            json.loads(line) for line in invoke(settings, "runs", "list", "--output", "jsonl").stdout.splitlines()
        ]
        over_http = httpx.get(f"{url}/runs", timeout=300).json()["data"]
    assert sorted(row["turns"] for row in listed) == sorted(row["turns"] for row in over_http) == [2, 2, 6]
    [whole] = [row for row in over_http if row["turns"] == 6]
    assert (whole["thread"], whole["tool_calls"], len(whole["run_ids"])) == ("case 17", 3, 3)
    write(settings, *(group_of(settings, name) for name in threads))
    ran = invoke(settings, "improve", "curate", "run", "--output", "jsonl")
    assert sum(json.loads(ran.stdout).values()) == 3, ran.output
    verdicts = {event.answer_id: event for _, event in read(settings, CurationEvent)}
    assert list(verdicts[whole["answer_id"]].runs) == whole["run_ids"]


def test_a_task_whose_run_waits_for_a_person_is_answered_once_one_says_yes_or_ends_by_its_time_limit(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    def waiting(client: Client, task_id: str) -> str:
        found: list[str] = []

        def look() -> bool:
            runs = client.send("POST", "/runs/search", {"status": "interrupted"})
            found[:] = [one["run_id"] for one in runs if one["requires_action"]]
            return bool(found)

        until(look, f"a run that waits, of {task_id}")
        return found[0]

    with with_tools(kafka_bootstrap, tmp_path) as server, audited(server.settings) as url:
        client = Client(url, {})
        register_all(client)
        submit(server.settings, [asked("book the Lamb")])
        with running(server.settings, tmp_path):
            client.send("POST", f"/runs/{waiting(client, 'book the Lamb')}/resume", {"resume": "yes"})
            assert response_to(server.settings, "book the Lamb").text == "You sleep at the Lamb."
        submit(server.settings, [asked("book the Lamb", task_id="late")])
        with running(server.settings, tmp_path, time_limit_s=1):
            late = response_to(server.settings, "late")
        assert late.error is not None and "book: consent" in late.error, late.error
        assert run_of_task(server, late)[-1].kind == "run_cancelled"
    assert server.made().count("book Lamb") == 1


@pytest.mark.parametrize("purpose", ["train", "serve"])
def test_a_run_that_is_at_its_limit_ends_by_its_name_and_is_learned_from_where_it_can_be(
    kafka_bootstrap: str, tmp_path: Path, purpose: Any
) -> None:
    with with_tools(kafka_bootstrap, tmp_path) as server, audited(server.settings) as url:
        register_all(Client(url, {}))
        submit(server.settings, [asked("for ever", max_turns=2, purpose=purpose)])
        with running(server.settings, tmp_path):
            response = response_to(server.settings, "for ever")
        assert run_of_task(server, response)[-1].ending == "max_turns"
        [end] = [event for _, event in read(server.settings, TrajectoryEvent) if event.kind == "ended"]
    assert "at most 2" in (end.reason or "")
    assert (response.error is None, response.steps) == (purpose == "train", 2)


@pytest.mark.parametrize(
    ("registered", "problem"), [(False, "there is no agent 'host'"), (True, "agent host has a program; run that")]
)
def test_an_agent_that_the_server_cannot_run_fails_the_task_by_name(
    kafka_bootstrap: str, tmp_path: Path, registered: bool, problem: str
) -> None:
    with with_tools(kafka_bootstrap, tmp_path) as server, audited(server.settings):
        if registered:
            agent = AgentEvent(
                event_id="", agent_id="host", created_at=0, kind="registered", name="host", type="PROMPT_BASED",
                model_id="sums", program=PROGRAM,
            )  # fmt: skip
            register(server.settings, agent)
        submit(server.settings, [asked("weather in Ulm?")])
        with running(server.settings, tmp_path):
            response = response_to(server.settings, "weather in Ulm?")
    assert problem in (response.error or ""), response.error


@pytest.mark.kills
def test_after_kill_9_of_server_and_runner_the_next_ones_continue_the_task_s_run(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    script = {**SCRIPT, "replies": [*SCRIPT["replies"], {"when": "wait twice", "reply": tool_call("again", name="A")}]}
    with with_tools(kafka_bootstrap, tmp_path, script) as tools:
        admin.apply_topics(tools.settings)
        server = ServeProcess(tools.settings, tmp_path)
        register_all(Client(server.url, {}))
        submit(tools.settings, [asked("wait twice")])
        with running(tools.settings, tmp_path, until_done=True):
            until(lambda: tools.made() != [], "a call has begun", folder=tmp_path)
            server.kill()
            server.start()
            response = response_to(tools.settings, "wait twice")
        server.stop()
        check_audit(tools.settings)
    kinds = [event.kind for event in run_of_task(tools, response)]
    assert (response.text, response.error) == ("A is done.", None)
    assert (kinds.count("run_answered"), kinds.count("call_ended"), kinds.count("run_ended")) == (1, 1, 1)
