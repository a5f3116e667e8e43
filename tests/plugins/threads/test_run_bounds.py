"""What bounds a run ends it, or a call of it, by its name: limits of threads, of tools, of the log, of the context."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.rooms.routes import TABLE
from plugins.threads.acp.run_execution import ThreadRuns
from plugins.threads.log.thread_log import ThreadLog
from plugins.threads.log.thread_settings import Threads
from schemas.events import ThreadEvent, Turn
from streams.errors import CallError
from streams.kafka import times
from streams.settings.model import Prices, Settings
from tests.plugins.threads.test_acting_runs import client_of, roles
from tests.plugins.threads.test_run_memory import written
from tests.plugins.threads.thread_server import Client
from tests.plugins.threads.tool_server import SCRIPT, ToolServer, added, register_all, tool_call, with_tools
from tests.support.agent_server import audited
from tests.support.processes import read, until

pytestmark = pytest.mark.kafka
LONG = 90_000
"""Characters of a result that a record of the log does not take, though the limit of results does."""
FUNCTIONS = f'''
import time

def hang() -> str:
    """Take for ever."""
    time.sleep(3600)

def long() -> str:
    """Say a lot."""
    return "x" * {LONG}
'''
TOOLS = ("hang", "long")
CALLS = [*SCRIPT["replies"], *({"when": f"{name}, please", "reply": tool_call(name)} for name in TOOLS)]
REPLIES: dict[str, Any] = {
    "replies": [
        *CALLS,
        {"when": "tool: ", "reply": "It gave nothing."},
        {"when": '"role": "tool"', "reply": "They asked for the weather."},
    ]
}


def with_limits(tools: ToolServer, timeout_s: float = 60.0, **limits: Any) -> ToolServer:
    (tools.calls.parent / "functions_of_bounds.py").write_text(FUNCTIONS)
    environments = tools.settings.environments.model_copy(
        update={"modules": "functions_of_runs, functions_of_bounds, .", "timeout_s": timeout_s}
    )
    changed = {
        "environments": environments,
        "threads": Threads(**limits),
        "prices": Prices(prompt_usd=1000.0, completion_usd=1000.0),
    }
    return tools._replace(settings=tools.settings.model_copy(update=changed))


def register(client: Client) -> None:
    register_all(client)
    for name in TOOLS:
        added(client.ask("POST", "/mcp/tools", {"tool_id": name, "endpoint": f"functions_of_bounds:{name}"}))
    added(client.ask("POST", "/rl/agents", {"agent_id": "bound", "model_id": "sums", "tool_ids": ["weather", *TOOLS]}))


@pytest.fixture(scope="module")
def server(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ToolServer, Client]]:
    with with_tools(kafka_bootstrap, tmp_path_factory.mktemp("bounds"), REPLIES) as plain:
        tools = with_limits(plain, 1.0)
        topics = tools.settings.topics.model_copy(update={"max_record_bytes": 64 * 1024})
        tools = tools._replace(settings=tools.settings.model_copy(update={"topics": topics}))
        with audited(tools.settings):
            register(client_of(tools))
            yield tools, client_of(tools)


@pytest.mark.parametrize(("tool", "error"), [("hang", "timeout"), ("long", "too_large")])
def test_a_call_without_a_usable_result_ends_by_name_and_the_model_reads_it(
    server: tuple[ToolServer, Client], tool: str, error: str
) -> None:
    tools, client = server
    run = client.run(client.thread(), f"{tool}, please", agent_id="bound")
    [ended] = [event.call for event in tools.events(run["run"]["run_id"]) if event.kind == "call_ended"]
    assert ended is not None and ended.error == error, ended
    assert roles(run)[-1] == ("assistant", "It gave nothing."), roles(run)


@pytest.mark.parametrize(
    ("limits", "text", "ending", "named"),
    [
        ({"max_tokens": 100}, "for ever", "max_tokens", "threads.max_tokens"),
        ({"budget_usd": 0.5}, "for ever", "budget", "threads.budget_usd"),
        ({"run_s": 1.0}, "hang, please", "timeout", "threads.run_s"),
    ],
)
def test_a_run_ends_by_the_limit_that_it_reaches(
    kafka_bootstrap: str, tmp_path: Path, limits: dict[str, float], text: str, ending: str, named: str
) -> None:
    with with_tools(kafka_bootstrap, tmp_path, {"replies": CALLS}) as plain:
        tools = with_limits(plain, **limits)
        with audited(tools.settings):
            client = client_of(tools)
            register(client)
            run = client.run(client.thread(), text, agent_id="bound")["run"]
            assert named in run["error"]
            assert tools.events(run["run_id"])[-1].ending == ending


@pytest.mark.skipif(TABLE.find("POST", "/prompts/templates") is None, reason="the plugin prompts is not loaded")
def test_a_summary_stands_for_calls_with_their_results_and_never_for_half_of_them(
    server: tuple[ToolServer, Client],
) -> None:
    tools, client = server
    made = client.ask("POST", "/prompts/templates", {"name": "summary", "template": "Summarize."})
    assert made.status_code == 201, made.text
    memory = {"compaction": {"over_tokens": 60, "turns": 1, "prompt": "summary@1"}}
    agent = {"agent_id": "brief", "model_id": "sums", "tool_ids": ["weather"], "memory_config": memory}
    added(client.ask("POST", "/rl/agents", agent))
    thread = client.thread()
    for _ in range(2):
        client.run(thread, "weather in Ulm?", agent_id="brief")
    [compacted] = written(tools.settings, ThreadEvent, 1, kind="compacted", thread_id=thread)
    assert (compacted.error, compacted.stands_for) == (None, 4), "the question, its call, the result and the answer"
    run = client.run(thread, "weather in Ulm?", agent_id="brief")
    assert roles(run)[-1] == ("assistant", "Hot.")
    first, second = (turn for _, turn in read(tools.settings, Turn) if turn.trajectory_id == run["run"]["run_id"])
    said = [message.content for message in first.messages]
    assert said[:3] == ["Summarize our conversation so far.", "They asked for the weather.", "weather in Ulm?"]
    assert [message.role for message in first.messages[3:]] == ["assistant", "tool", "assistant", "user"]
    assert second.parent_id == first.turn_id, "the steps of a run continue what it read with the summary"


def test_a_run_that_waited_for_a_person_continues_after_a_restart_with_the_items_that_it_had_read(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    with with_tools(kafka_bootstrap, tmp_path, longest_s=0.5) as tools:
        with audited(tools.settings):
            client = client_of(tools)
            register_all(client, memory_config={"namespace": ["guests"]})
            put(client, "Ann")
            run = client.run(client.thread(), "book the Lamb", agent_id="host")["run"]
            assert run["status"] == "interrupted"
        requested_at = tools.events(run["run_id"])[0].created_at
        until(lambda: times.now_ms() > requested_at + 500, "the run is older than serve.longest_s")
        with audited(tools.settings):
            put(client, "Ben")
            client.send("POST", f"/runs/{run['run_id']}/resume", {"resume": "yes"})
            ended = client.send("GET", f"/runs/{run['run_id']}/wait")
            assert roles(ended)[-1] == ("assistant", "You sleep at the Lamb."), ended
    first, second = (turn for _, turn in read(tools.settings, Turn) if turn.trajectory_id == run["run_id"])
    assert "Ann" in first.messages[0].content
    assert second.parent_id == first.turn_id, "its trajectory is one chain"


def test_a_run_counts_as_open_until_the_log_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [CallError("busy", "the broker does not answer"), CallError("not_found", "there is no topic threads")]
    known = list[bool]()

    async def fail() -> ThreadLog:
        known.append(runs.is_open("a run"))
        raise failures.pop(0)

    runs = ThreadRuns(Settings(), None, None, None, None)  # type: ignore[arg-type]
    monkeypatch.setattr(runs, "open", fail)
    asyncio.run(runs.resume())
    assert (known, failures) == ([True, True], []), "what cannot be read is tried again"
    assert not runs.is_open("a run"), "a log without the topic has no runs"


def put(client: Client, name: str) -> None:
    client.send("PUT", "/store/items", {"namespace": ["guests"], "key": "guest", "value": {"name": name}}, 204)
