"""No body and no message of one client keeps the server from answering the others.

A server of its own process is sent the worst bodies of each route and each socket, and asked for /healthz meanwhile.
How late that answer is, is counted in CPU time of the server, so a busy machine does not make it later.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from gateway.http.mcp_paths import MCP_PATHS
from gateway.http.route import Route
from gateway.rooms.routes import SOCKETS
from streams.kafka import admin
from streams.settings.model import Settings
from tests.support.agent_server import settings_of
from tests.support.log.keys import open_keys
from tests.support.processes import running, until
from tests.support.worst_bodies import BOMBS, TAKING, WorstBody, sent_to

MOST_S = 1.0
"""CPU seconds of the server from a request for /healthz to its answer."""
MOST_GROWTH_KB = 700_000
"""Of the server's memory, over all bodies."""
TICKS_S = os.sysconf("SC_CLK_TCK")


class Attacked(NamedTuple):
    """A server in a process of its own."""

    settings: Settings
    key: str
    pid: int
    file_id: str
    """Of an uploaded file, to put in the place of the one in an example."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.settings.serve.port}"

    @property
    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_S

    @property
    def peak_kb(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0])

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    def is_up(self) -> bool:
        """Return whether it answers requests of its key."""
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/v1/models", headers=self.headers, timeout=300).status_code == 200
        return False

    def send(self, method: str, path: str, body: WorstBody) -> None:
        """Send a body; what is answered does not matter here."""
        raw = re.sub(rb"file-[0-9a-f]{64}", self.file_id.encode(), body.raw)
        with contextlib.suppress(httpx.TransportError):
            httpx.request(method, self.url + path, content=raw, headers=self.headers | dict(body.headers), timeout=300)

    def lateness(self, attack: Callable[[], None]) -> float:
        """Return the CPU seconds that the latest answer of /healthz took during an attack: the better of two."""
        first_s = self._lateness(attack)
        if first_s <= MOST_S:
            return first_s
        until(self.is_up, "the server to answer again: one that was frozen looks first whether it is alone")
        return min(first_s, self._lateness(attack))

    def _lateness(self, attack: Callable[[], None]) -> float:
        thread, latest_s = threading.Thread(target=attack), 0.0
        client = http.client.HTTPConnection("127.0.0.1", self.settings.serve.port, timeout=300)
        thread.start()
        while True:
            is_last = not thread.is_alive()
            began_s = self.cpu_s
            try:
                client.request("GET", "/healthz")
                client.getresponse().read()
                latest_s = max(latest_s, self.cpu_s - began_s)
            except (OSError, http.client.HTTPException):  # it kept the connection waiting until it was cut
                latest_s = math.inf
                client.close()
            if is_last:
                client.close()
                return latest_s
            thread.join(0.03)


@pytest.fixture(scope="module")
def attacked(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    folder = tmp_path_factory.mktemp("attacked")
    settings = settings_of(kafka_bootstrap, folder, auth="keys", key_per_s=0, key_at_once=0)
    admin.apply_topics(settings)
    with open_keys(settings) as person:
        key = person.create(role="admin", actor="ann").text
    with running(settings, folder, "serve") as processes:
        server = Attacked(settings, key, processes["serve"].pid, "")
        until(server.is_up, "the server to answer", folder=folder)
        upload = {
            "file": ("questions.jsonl", b'{"messages": [{"role": "user", "content": "4 + 7 ="}], "answer": "11"}')
        }
        answer = httpx.post(
            f"{server.url}/v1/files", files=upload, data={"purpose": "fine-tune"}, headers=server.headers, timeout=300
        )
        yield server._replace(file_id=answer.json()["id"])


def late(server: Attacked, sent: list[tuple[str, Callable[[], None]]]) -> dict[str, float]:
    measured = {about: server.lateness(attack) for about, attack in sent}
    return {about: late_s for about, late_s in measured.items() if late_s > MOST_S}


@pytest.mark.parametrize("route", TAKING, ids=lambda route: route.name)
def test_no_body_that_a_route_reads_keeps_others_waiting(attacked: Attacked, route: Route) -> None:
    path, before_kb = re.sub(r"{\w+}", "x", route.paths[0]), attacked.peak_kb

    def sends(body: WorstBody) -> Callable[[], None]:
        return lambda: attacked.send(route.method, path, body)

    assert late(attacked, [(body.about, sends(body)) for body in sent_to(route)]) == {}
    assert attacked.peak_kb - before_kb < MOST_GROWTH_KB


def call(arguments: Any) -> bytes:
    params = {"name": "show_group", "arguments": arguments}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()


MANY: list[Any] = [{"a": [{}] * 9_000}, {f"k{number}": number for number in range(9_000)}, {"a": "{{" * 100_000}]


@pytest.mark.parametrize("path", MCP_PATHS)
def test_no_call_of_mcp_keeps_others_waiting(attacked: Attacked, path: str) -> None:
    head = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    bodies = [WorstBody(f"arguments {n}", call(arguments), head) for n, arguments in enumerate(MANY)]
    bodies += [body._replace(headers=head | dict(body.headers)) for body in BOMBS]

    def sends(body: WorstBody) -> Callable[[], None]:
        return lambda: attacked.send("POST", path, body)

    assert late(attacked, [(body.about, sends(body)) for body in bodies]) == {}


@pytest.mark.parametrize("path", SOCKETS)
def test_no_messages_of_a_websocket_keep_others_waiting(attacked: Attacked, path: str) -> None:
    messages = [json.dumps({"id": "1", "tool": "x", "arguments": arguments}) for arguments in MANY]
    messages += ["{" + ",".join(f'"k{number}":1' for number in range(count)) + "}" for count in (80_000, 320_000)]
    messages += ["{" * 1_000_000, '{"a":' * 150_000]
    messages += ['{"a":[' + "{}," * 340_000 + "{}]}", " " * 4_000_000]

    def sends(message: str) -> Callable[[], None]:
        def attack() -> None:
            with contextlib.suppress(ConnectionClosed, TimeoutError):
                address = f"ws{attacked.url.removeprefix('http')}{path}"
                with connect(address, additional_headers=attacked.headers) as socket:
                    for _ in range(30):
                        socket.send(message)
                    for _ in range(30):
                        socket.recv(timeout=300)

        return attack

    assert late(attacked, [(message[:20], sends(message)) for message in messages]) == {}
