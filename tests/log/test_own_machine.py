"""A server without keys: every path is for this machine's names and pages alone, whatever a browser is made to send."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import httpx
import pytest

from gateway.http.route import Route
from gateway.rooms.routes import TABLE
from schemas.events import Task
from streams.settings.model import Settings
from tests.support.agent_server import serving, settings_of
from tests.support.processes import read
from tests.support.rooms import entrances

pytestmark = pytest.mark.kafka
JSON = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
FOREIGN_HOSTS = (
    "evil.example",
    "evil.example:8790",
    "127.0.0.1.evil.example",  # a name that its owner points here
    "localhost.evil.example:8790",
    "evil.localhost",
    "127.0.0.1:8790:8790",
    "127.0.0.2",
    "[::2]:8790",
    "0.0.0.0",  # noqa: S104 - browsers lead it here, too
    "",
)
FOREIGN_ORIGINS = (
    "https://evil.example",
    "http://127.0.0.1.evil.example:8790",
    "http://localhost@evil.example",
    "null",  # of a frame without an origin, and of a file
    "file://",
    "ftp://localhost",
    "http://[::1",
)


class Local(NamedTuple):
    """A server without keys."""

    settings: Settings
    url: str
    http: httpx.Client

    def send(self, method: str, path: str, **headers: str) -> httpx.Response:
        """Send an empty object to a path of the server, where the method takes a body."""
        content = b"{}" if method in ("POST", "PUT", "PATCH") else None
        return self.http.request(method, self.url + path, content=content, headers=JSON | headers)


@pytest.fixture(scope="module")
def local(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    settings = settings_of(kafka_bootstrap, tmp_path_factory.mktemp("local"))
    with serving(settings) as url, httpx.Client(timeout=300) as http:
        yield Local(settings, url, http)


def filled(route: Route) -> list[str]:
    return [re.sub("{.*?}", "x", path) for path in route.paths]


def test_no_path_answers_under_a_foreign_name_or_to_a_page_of_another_site(local: Local) -> None:
    reached = []
    for route in TABLE.routes:
        for path in filled(route):
            by_host = local.send(route.method, path, Host="evil.example")
            by_origin = local.send(route.method, path, Origin="https://evil.example")
            if (by_host.status_code, by_origin.status_code) != (421, 403):
                reached.append((route.method, path, by_host.status_code, by_origin.status_code))
    assert reached == []


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
@pytest.mark.parametrize("path", entrances())
def test_what_is_none_of_this_machine_s_names_is_refused_whatever_else_is_sent(
    local: Local, path: str, host: str
) -> None:
    refused = local.send("POST", path, Host=host, **{"X-Forwarded-Host": "127.0.0.1", "Origin": local.url})
    assert refused.status_code in ((400, 421) if ":8790:" in host else (421,))
    assert "is not one of 127.0.0.1, localhost, [::1]: a server without keys" in refused.text or ":8790:" in host


@pytest.mark.parametrize("origin", FOREIGN_ORIGINS)
def test_a_page_that_is_not_of_this_machine_submits_nothing(local: Local, origin: str) -> None:
    before = len(read(local.settings, Task))
    body = '{"task_id": "forged", "input": "4 + 7 =", "answer": 11}'
    for content_type in ("application/json", "text/plain", "application/x-www-form-urlencoded"):
        headers = {"Origin": origin, "Content-Type": content_type}
        assert local.http.post(f"{local.url}/tasks", content=body, headers=headers).status_code == 403
    assert len(read(local.settings, Task)) == before


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8790", "localhost", "LocalHost:1", "[::1]", "[::1]:8790"])
@pytest.mark.parametrize("origin", [None, "http://localhost:3000", "https://127.0.0.1", "http://[::1]:8790"])
def test_this_machine_is_answered_by_any_of_its_names_and_from_its_own_pages(
    local: Local, host: str, origin: str | None
) -> None:
    headers = {"Host": host, "X-Forwarded-Host": "evil.example"} | ({} if origin is None else {"Origin": origin})
    assert local.send("GET", "/v1/models", **headers).status_code == 200


def test_a_refusal_is_in_the_words_of_each_protocol(local: Local) -> None:
    bodies = {
        path: local.send("POST", path, Host="evil.example").json()
        for path in ("/query", "/jsonrpc", "/v1/messages", "/mcp")
    }
    assert bodies["/query"]["error"]["code"] == bodies["/mcp"]["error"]["code"] == "misdirected_request"
    assert bodies["/jsonrpc"]["error"]["code"] == -32421 and bodies["/v1/messages"]["type"] == "error"
