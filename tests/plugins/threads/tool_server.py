"""A server whose agents have registered tools: functions that note each call, and a script that calls them.

functions ──► registry ──► agents ──► ToolServer ──► runs         CALLS: a file with a line for each call that was made
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from schemas.events import ThreadEvent
from streams.settings.model import Settings
from tests.plugins.threads.thread_server import Client
from tests.support.agent_server import settings_of
from tests.support.processes import read

FUNCTIONS = '''
import os
import time

def _note(line):
    with open(os.environ["CALLS"], "a") as file:
        file.write(line + "\\n")

def weather(city: str) -> str:
    """Return the weather in a city."""
    _note(f"weather {city}")
    return f"31 degrees in {city}"

def book(hotel: str) -> str:
    """Book a hotel."""
    _note(f"book {hotel}")
    return f"booked {hotel}"

def wait(name: str) -> str:
    """Take a while."""
    _note(f"begun {name}")
    time.sleep(1.5)
    _note(f"ended {name}")
    return f"waited {name}"

def again(name: str) -> str:
    """Take a while, and do no harm twice."""
    return wait(name)

def after(name: str, other: str) -> str:
    """Take until another call has ended, or five minutes."""
    _note(f"begun {name}")
    limit = time.monotonic() + 300
    while f"ended {other}\\n" not in open(os.environ["CALLS"]).read():
        if time.monotonic() > limit:
            return f"{other} has not ended"
        time.sleep(0.05)
    return f"{name} was after {other}"

def broken() -> str:
    """Fail."""
    raise RuntimeError("no")
'''


def tool_call(tool: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': tool, 'arguments': arguments})}</tool_call>"


SCRIPT: dict[str, Any] = {
    "replies": [
        {"when": "weather in Ulm?", "reply": "Let me look. " + tool_call("weather", city="Ulm")},
        {"when": "tool: 31 degrees in Ulm", "reply": "Hot."},
        {"when": "book the Lamb", "reply": tool_call("weather", city="Ulm") + tool_call("book", hotel="Lamb")},
        {"when": "tool: booked Lamb", "reply": "You sleep at the Lamb."},
        {"when": "tool: a person refused this call", "reply": "Then not."},
        {"when": "wait for A", "reply": tool_call("wait", name="A")},
        {"when": "tool: waited A", "reply": "A is done."},
        {"when": "again for A", "reply": tool_call("again", name="A")},
        {"when": "tool: it was done", "reply": "So it was."},
        {"when": "both", "reply": tool_call("after", name="A", other="B") + tool_call("wait", name="B")},
        {"when": "tool: waited B", "reply": "B was last."},
        {"when": "play", "reply": tool_call("mark", square="5")},
        {"when": "tool: O 2 3", "reply": tool_call("mark", square="5")},
        {"when": "tool: error: free are", "reply": "It is taken."},
        {"when": "for ever", "reply": tool_call("weather", city="Bonn")},
        {"when": "break it", "reply": tool_call("broken")},
        {"when": "RuntimeError", "reply": "It is broken."},
        {"when": "there is no tool", "reply": "I may not."},
        {"when": "was revoked", "reply": "I may not."},
        {"when": "which size?", "reply": tool_call("ask_user", question="size?")},
        {"when": "tool: large", "reply": "Large it is."},
    ]
}
ASK_USER = {"name": "ask_user", "description": "Ask.", "parameters": {"type": "object", "properties": {}}}
ENTRIES: dict[str, dict[str, Any]] = {
    "weather": {},
    "book": {"needs_consent": True},
    "wait": {},
    "again": {"idempotent": True},
    "after": {},
    "broken": {},
}


class ToolServer(NamedTuple):
    """Settings of a server with tools, and the file in which its functions note their calls."""

    settings: Settings
    calls: Path

    def made(self) -> list[str]:
        """Return the calls that were made, in order."""
        return self.calls.read_text().splitlines() if self.calls.exists() else []

    def events(self, run_id: str) -> list[ThreadEvent]:
        """Return what the log has of a run."""
        return [event for _, event in read(self.settings, ThreadEvent) if event.run_id == run_id]


@contextmanager
def with_tools(bootstrap: str, folder: Path, script: dict[str, Any] = SCRIPT, **serve: Any) -> Iterator[ToolServer]:
    """Yield the settings of a server; its environment variables are set while the block runs. Skipped without tools."""
    pytest.importorskip("plugins.tools")
    from plugins.environments.settings import Environments

    (folder / "functions_of_runs.py").write_text(FUNCTIONS)
    plain = settings_of(bootstrap, folder, script, **serve)
    limits = Environments(modules="functions_of_runs, .", timeout_s=60, variables="CALLS")
    before = {name: os.environ.get(name, "") for name in ("PYTHONPATH", "CALLS")}
    os.environ |= {"PYTHONPATH": f"{folder}{os.pathsep}{before['PYTHONPATH']}", "CALLS": str(folder / "calls.txt")}
    try:
        yield ToolServer(plain.model_copy(update={"environments": limits}), folder / "calls.txt")
    finally:
        os.environ |= before


def register_all(client: Client, **agent: Any) -> None:
    """Register the functions, and the agent `host`, which has all of them and a tool of its client's."""
    for name, fields in ENTRIES.items():
        body = {"tool_id": name, "endpoint": f"functions_of_runs:{name}", **fields}
        added(client.ask("POST", "/mcp/tools", body))
    body = {"agent_id": "host", "model_id": "sums", "tools": [ASK_USER], "tool_ids": list(ENTRIES), **agent}
    added(client.ask("POST", "/rl/agents", body))


def added(response: httpx.Response) -> None:
    assert response.status_code == 201, response.text


def asking(message: str) -> str:
    return tool_call("ask_host", message=message)


AGENTS: dict[str, Any] = {
    "replies": [
        *SCRIPT["replies"],
        {"when": "how is Ulm", "reply": asking("weather in Ulm?")},
        {"when": "tool: Hot.", "reply": "The host says: hot."},
        {"when": "a bed, please", "reply": asking("book the Lamb")},
        {"when": "tool: You sleep at the Lamb.", "reply": "A bed at the Lamb."},
        {"when": "slow, please", "reply": asking("wait for A")},
        {"when": "for long, please", "reply": asking("for ever")},
        {"when": "gave no answer", "reply": "The host did not say."},
        {"when": "in circles", "reply": tool_call("circle", message="in circles")},
        {"when": "runs deep", "reply": "Deep enough."},
        {"when": "tool: Deep enough.", "reply": "Deep enough."},
        {"when": "again, please", "reply": asking("again for A")},
        {"when": "hand me to Ulm", "reply": tool_call("to_host", message="weather in Ulm?")},
        {"when": "hand me to nowhere", "reply": tool_call("to_host", message="for ever")},
        {"when": "there is no agent", "reply": "I may not ask them."},
        {"when": "and Bonn?", "reply": "I do not know."},
        {"when": "tool: A is done.", "reply": "It was done."},
    ]
}


def register_agents(client: Client) -> None:
    """Register `host` with tools, `boss` who asks it, `desk` that hands over to it, and `circle`, which asks itself."""
    register_all(client)
    added(client.ask("POST", "/mcp/tools", {"tool_id": "to_host", "endpoint": "agent:host", "handoff": True}))
    added(client.ask("POST", "/rl/agents", {"agent_id": "desk", "model_id": "sums", "tool_ids": ["to_host"]}))
    for tool, agent, owner in (("ask_host", "host", "boss"), ("circle", "circle", "circle")):
        added(client.ask("POST", "/mcp/tools", {"tool_id": tool, "endpoint": f"agent:{agent}"}))
        added(client.ask("POST", "/rl/agents", {"agent_id": owner, "model_id": "sums", "tool_ids": [tool]}))
