"""No answer names what another tenant has, or the operator: each route, tool and socket is asked for what nobody has.

    one of each kind with a word that nobody sends ──► TABLE × fields of body and query × a name that nobody has
    ──► no answer has the word

The requests are generated from the routes, so a route or a field that is added is asked, too.
"""

from __future__ import annotations

import json
import re
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Union, get_args, get_origin

import httpx
import pytest
from pydantic import BaseModel
from websockets.sync.client import connect

from gateway.http.mcp_paths import MCP_PATHS
from gateway.http.route import Route
from gateway.mcp.tools import TOOLS
from gateway.rooms.routes import SOCKETS, TABLE
from plugins.jobs.orders.request import JobConfig
from plugins.people.access.access_log import AccessLog
from tests.support.agent_server import serving, settings_of
from tests.support.planted_log import plant
from tests.support.processes import until

pytestmark = pytest.mark.kafka
NOBODYS = "zzyzx"
"""What is asked for."""
ANOTHERS, OPERATORS = "azure", "opal"
"""Words in everything that another tenant and the operator have; agents and policies of the operator are for all."""
ORDERS = "/finetune/jobs"


class Served(NamedTuple):
    """A server on whose log everything was planted, and a key of it."""

    url: str
    key: str

    def ask(self, method: str, path: str, body: Any = None, **how: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.key}", **how.pop("headers", {})}
        return httpx.request(method, self.url + path, headers=headers, json=body, timeout=300, **how)


@pytest.fixture(scope="module")
def served(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server, with a key of tenant red, who has nothing."""
    script = {"replies": [{"when": "?", "reply": "fine"}]}
    settings = settings_of(
        kafka_bootstrap, tmp_path_factory.mktemp("names"), script, auth="keys", key_per_s=0, key_at_once=0
    )
    with serving(settings) as url:
        with AccessLog(settings) as person:
            operator, blue, red = (
                Served(url, person.create(role="admin", actor="ann", tenant=tenant).text)
                for tenant in (None, "blue", "red")
            )
        until(lambda: red.ask("GET", "/v1/models").status_code == 200, "the server knows the keys")
        plant(settings, url, blue.key, ANOTHERS, "blue")
        plant(settings, url, operator.key, OPERATORS, None)
        agent = operator.ask("POST", "/rl/agents", {"agent_id": f"blue.{ANOTHERS}", "model_id": "sums"})
        assert agent.is_success, agent.text
        yield red


# --- what is asked ----------------------------------------------------------------------------------------------------


class Question(NamedTuple):
    """A request for something that nobody has."""

    method: str
    path: str
    body: Any

    def __str__(self) -> str:
        return f"{self.method} {self.path} {json.dumps(self.body)[:300]}"


def is_text(annotation: Any) -> bool:
    """Return whether a field may be a text, or texts."""
    if get_origin(annotation) in (Union, types.UnionType, list, tuple):
        return any(is_text(each) for each in get_args(annotation) if each is not Ellipsis)
    return (
        annotation is str or is_text(get_args(annotation)[0])
        if hasattr(annotation, "__metadata__")
        else annotation is str
    )


def filled(annotation: Any) -> Any:
    """Return the name that nobody has as a value of a field; None where it cannot be one."""
    for each in get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,):
        if isinstance(each, type) and issubclass(each, BaseModel):
            texts = {name: NOBODYS for name, field in each.model_fields.items() if is_text(field.annotation)}
            return {name: texts[name] for name in ("id", "name") if name in texts} or None
        if get_origin(each) in (list, tuple) and is_text(each):
            return [NOBODYS]
    return NOBODYS if is_text(annotation) else None


def with_each_field(model: Any, body: Any) -> Iterator[Any]:
    """Yield a body, and with each field that can be a name the name that nobody has."""
    yield body
    if not (isinstance(model, type) and issubclass(model, BaseModel) and isinstance(body, Mapping)):
        return
    for name, field in model.model_fields.items():
        if (value := filled(field.annotation)) is not None:
            yield {**body, name: value}


def questions() -> Iterator[Question]:
    for route in TABLE.routes:
        if route.is_open or not route.name:  # what is mounted: MCP's endpoint, and that of plugins
            continue
        path = re.sub("{.*?}", NOBODYS, route.paths[0])
        query = {} if route.query is None else route.query.model_fields
        for text in ("", *(f"?{field.alias or name}={NOBODYS}" for name, field in query.items())):
            yield Question(route.method, path + text, route.sends)
        for body in with_each_field(route.takes, route.sends or {}):
            yield Question(route.method, path, body)
        if route.path == ORDERS:
            yield from orders(route, path, JobConfig, {})


def orders(route: Route, path: str, config: type[BaseModel], fields: Mapping[str, Any]) -> Iterator[Question]:
    """Yield orders with each name of their config."""
    for changed in with_each_field(config, {}):
        yield Question(route.method, path, {**(route.sends or {}), **fields, "agent_id": "sums", "config": changed})


def told(text: str) -> list[str]:
    return [word for word in (ANOTHERS, OPERATORS) if word in text]


def test_no_route_names_what_others_have(served: Served) -> None:
    asked = list(questions())
    check_names(served, asked)
    assert len(asked) > 2 * len(TABLE.routes)


def check_names(served: Served, asked: Iterable[Question]) -> None:
    """Assert that no answer has a word of others."""
    wrong: list[str] = []
    for question in asked:
        answer = served.ask(question.method, question.path, question.body)
        if words := told(answer.text):
            wrong.append(f"{question}: {words} in {answer.text[:300]}")
        if answer.status_code >= 500 and answer.status_code != 503:
            wrong.append(f"{question}: {answer.status_code}")
    assert wrong == []


def test_no_tool_names_what_others_have(served: Served) -> None:
    for path, toolset in MCP_PATHS.items():
        for tool in TOOLS:
            if toolset not in tool.toolsets:
                continue
            arguments = (
                {tool.list_name: [{}]} if tool.list_name else dict.fromkeys(tool.input_schema["properties"], NOBODYS)
            )
            for given in (arguments, {name: NOBODYS for name in tool.input_schema["required"]}):
                text = json.dumps(by_mcp(served, path, "tools/call", {"name": tool.name, "arguments": given}))
                assert told(text) == [], (tool.name, text)
        for method, params in (("tools/list", {}), ("tools/call", {"name": NOBODYS, "arguments": {}})):
            text = json.dumps(by_mcp(served, path, method, params))
            assert told(text) == [], text


def by_mcp(served: Served, path: str, method: str, params: dict[str, Any]) -> Any:
    headers = {
        "accept": "application/json",
        "mcp-protocol-version": "2025-11-25",
        "Authorization": f"Bearer {served.key}",
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return httpx.post(served.url + path, json=body, headers=headers, timeout=300).json()


@pytest.mark.parametrize("path", SOCKETS)
def test_no_socket_names_what_others_have(served: Served, path: str) -> None:
    head = {"authorization": f"Bearer {served.key}"}
    with connect(f"ws{served.url.removeprefix('http')}{path}", additional_headers=head) as calls:
        calls.send(json.dumps({"id": "1", "tool": NOBODYS}))
        text = str(calls.recv(timeout=300))
    assert "there is no tool" in text and told(text) == [], text
