"""A tool call whose client leaves: what it asked is ended and recorded once, and nothing of it stays behind."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple

import httpx
import pytest

from gateway.mcp.log_toolbox import PERMISSIONS
from schemas.events import RequestEvent, Turn
from streams.kafka import admin
from streams.settings.model import Settings
from tests.support.agent_server import serving, settings_of
from tests.support.log.keys import open_keys
from tests.support.processes import read, spawn, until

pytestmark = pytest.mark.kafka
MODERN, EARLIER = "2026-07-28", "2025-11-25"
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
}
SLOW = {"latency_ms": 30_000}
"""Longer than a test waits: an answer that comes was not cancelled."""
CLIENT_LEFT = 499


class Slow(NamedTuple):
    """A server whose policy takes long to answer, and a key that may have two requests in progress: a call and its
    tool's."""

    settings: Settings
    url: str
    key: str

    @property
    def headers(self) -> dict[str, str]:
        """The header with the key."""
        return {"Authorization": f"Bearer {self.key}"}

    def is_full(self) -> bool:
        """Return whether the key has as many requests in progress as it may."""
        answer = httpx.get(f"{self.url}/v1/models", headers=self.headers, timeout=300)
        return answer.status_code == 429 and "2 requests in progress" in answer.text

    def stays_full(self) -> bool:
        """Return whether that lasts: a call asks at first which tools there are, which takes no time."""
        for _ in range(5):
            if not self.is_full():
                return False
            time.sleep(0.2)
        return True

    def turns(self, agent: str) -> list[Turn]:
        """Return what an agent's calls left in the log."""
        return [turn for _, turn in read(self.settings, Turn) if turn.agent_id == agent]

    def requests(self, agent: str) -> Counter[tuple[str, int]]:
        """Return path and status of the requests in an agent's name, and how often each is recorded; without those that
        ask which tools there are.
        """
        events = [event for _, event in read(self.settings, RequestEvent) if event.agent_id == agent]
        return Counter((event.resource, event.status) for event in events if event.resource != PERMISSIONS)


@pytest.fixture(scope="module")
def slow(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slow]:
    settings = settings_of(kafka_bootstrap, tmp_path_factory.mktemp("slow"), SLOW, auth="keys", key_at_once=2)
    admin.apply_topics(settings)
    with open_keys(settings) as person:
        key = person.create(role="submitter", actor="ann").text
    with serving(settings) as url:
        yield Slow(settings, url, key)


def call(name: str, arguments: dict[str, Any], version: str) -> dict[str, Any]:
    meta = {"_meta": META} if version == MODERN else {}
    params = {"name": name, "arguments": arguments} | meta
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


ASK = {"model": "sums", "messages": [{"role": "user", "content": "1 + 7 ="}]}


@pytest.mark.parametrize("version", [MODERN, EARLIER])
def test_a_call_whose_client_leaves_ends_is_recorded_once_and_gives_its_place_to_the_next(
    slow: Slow, version: str
) -> None:
    agent = f"shy-{version}"
    headers = {
        **slow.headers,
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
        "MCP-Protocol-Version": version,
        "Mcp-Method": "tools/call",
        "Mcp-Name": "ask",
        "X-Agent-ID": agent,
    }
    with closing(http.client.HTTPConnection("127.0.0.1", slow.settings.serve.port, timeout=300)) as leaves:
        leaves.request("POST", "/mcp/policy", json.dumps(call("ask", ASK, version)), headers)
        until(slow.stays_full, "the call and its tool's request are in progress")
    until(lambda: not slow.is_full(), "the key's places are free")
    until(lambda: len(slow.turns(agent)) == 1, "the turn is in the log")
    [turn] = slow.turns(agent)
    assert (turn.delivered, turn.finish_reason) == (False, "cancelled")
    left = {("/mcp/policy", CLIENT_LEFT): 1, ("/v1/chat/completions", CLIENT_LEFT): 1}
    until(lambda: slow.requests(agent) == left, "both requests are recorded, and each once")
    assert len(slow.turns(agent)) == 1


def test_calls_over_standard_input_end_with_the_assistant_that_made_them(slow: Slow) -> None:
    environment = {**os.environ, "STREAMWARD_KEY": slow.key, "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-m", "streamward", "mcp", "--url", slow.url, "--tools", "policy"]
    hello = {"protocolVersion": EARLIER, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    with spawn(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}) + "\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == 0
        ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        for line in (ready, call("ask", ASK, EARLIER), call("ask", ASK, EARLIER) | {"id": 2}):
            process.stdin.write(json.dumps(line) + "\n")
        process.stdin.flush()
        until(slow.stays_full, "both calls are in progress")
        process.stdin.close()
        assert process.wait(300) == 0
    until(lambda: len(slow.turns("default")) == 2, "the turns are in the log")
    assert [turn.delivered for turn in slow.turns("default")] == [False, False]
