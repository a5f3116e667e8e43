"""A server of threads for tests: somebody who calls it, and keys of every kind.

settings ──► topics, keys of each role, tenants red and blue, agent calc ──► Served ──► Client
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx

from streams.access.roles import ROLES
from streams.kafka import admin
from streams.settings.model import Settings
from tests.support.agent_server import audited
from tests.support.log.keys import open_keys

SCRIPT: dict[str, Any] = {
    "replies": [{"when": "1 + 7 =", "reply": "8"}, {"when": "and twice that?", "reply": "16"}],
}
SLOW = {**SCRIPT, "latency_ms": 1500}
"""Long enough to do something to a thread while it is busy."""


class Client(NamedTuple):
    """Somebody who calls."""

    url: str
    headers: dict[str, str]

    def ask(self, method: str, path: str, body: Any = None) -> httpx.Response:
        return httpx.request(method, self.url + path, json=body, headers=self.headers, timeout=300)

    def send(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        response = self.ask(method, f"/acp{path}", body)
        assert response.status_code == status, response.text
        return response.json() if response.content else None

    def thread(self, **body: Any) -> str:
        return str(self.send("POST", "/threads", body)["thread_id"])

    def run(self, thread: str, text: str = "1 + 7 =", **body: Any) -> Any:
        return self.send("POST", "/runs/wait", {"thread_id": thread, "input": text, **body})

    def stream(self, method: str, path: str, body: Any = None, after: str | None = None) -> Iterator[dict[str, str]]:
        headers = {} if after is None else {"Last-Event-ID": after}
        headers |= self.headers
        with httpx.stream(method, f"{self.url}/acp{path}", json=body, headers=headers, timeout=300) as response:
            assert response.status_code == 200, response.read()
            fields: dict[str, str] = {}
            for line in response.iter_lines():
                name, _, value = line.partition(": ")
                if line:
                    fields[name] = value
                else:
                    yield fields
                    fields = {}


class Served(NamedTuple):
    """A server with keys."""

    settings: Settings
    url: str
    keys: dict[str, str]

    def client(self, key: str) -> Client:
        agent = {"x-agent-id": "calc"} if key == "calc" else {}
        return Client(self.url, {"x-api-key": self.keys[key], **agent})


@contextlib.contextmanager
def served_with_keys(settings: Settings) -> Iterator[Served]:
    """Yield a server with keys, while the block runs; afterwards its log balances."""
    admin.apply_topics(settings)
    with open_keys(settings) as person:
        keys: dict[str, str] = {role: person.create(role=role, actor="ann").text for role in ROLES}
        for tenant in ("red", "blue"):
            keys[tenant] = person.create(role="submitter", tenant=tenant, actor="ann").text
        keys["calc"] = person.create(role="submitter", agent_id="calc", actor="ann").text
    with audited(settings) as url:
        yield Served(settings, url, keys)
