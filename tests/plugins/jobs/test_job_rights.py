"""The rights that jobs need, who has them, and that JSON-RPC and its tool deny what the routes deny."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from gateway.http.application import Application
from gateway.http.door import Door
from gateway.http.jsonrpc import METHOD_NOT_FOUND
from gateway.http.limits import KeyLimits
from gateway.http.principal import decide_at_door
from gateway.mcp.tools import TOOLS
from gateway.rooms.routes import TABLE
from plugins.jobs.api import job_rights, rpc
from schemas.events import AccessRole
from streams.access.roles import ROLES, PluginAction, decide
from streams.settings.model import Serve, Settings
from tests.support.callers import BEARER, Known, Written, key
from tests.unit.test_denied_everywhere import (
    EVERY_ROOM,
    Principal,
    arguments_of,
    by_mcp,
    by_rest,
    check_rights,
    denial,
    each_principal,
    using,
)

NOTHING: Any = None
ROOM = rpc.JsonRpc(Settings(), NOTHING)

ALLOWED: dict[PluginAction, set[AccessRole]] = {
    job_rights.READ: {"viewer", "submitter", "trainer", "promoter", "admin"},
    job_rights.ORDER: {"submitter", "trainer", "admin"},
    job_rights.COMMAND: {"trainer", "admin"},
}


@pytest.mark.parametrize("action", ALLOWED)
@pytest.mark.parametrize("role", ROLES)
def test_a_role_may(action: PluginAction, role: AccessRole) -> None:
    assert decide(key(role), action).allowed == (role in ALLOWED[action])
    assert not decide(key(role, agent_id="calc"), action, agent_id="calc").allowed


def test_a_route_that_starts_a_job_asks_for_the_right_to_order() -> None:
    check_rights(EVERY_ROOM, {"jobs.start": (job_rights.ORDER,)})


# --- JSON-RPC ---------------------------------------------------------------------------------------------------------


def test_without_a_key_no_method_is_reached_and_json_rpc_says_so() -> None:
    app = Application([ROOM], version="0", max_body_bytes=1)
    answer = TestClient(Door(app, TABLE, Known("admin"), KeyLimits(Serve()))).post("/jsonrpc")
    assert answer.status_code == 401 and "jsonrpc" in answer.json()


def test_a_key_of_an_agent_calls_no_method_of_jobs() -> None:
    app = Application([ROOM], version="0", max_body_bytes=10_000)
    http = TestClient(Door(app, TABLE, Known("admin", agent_id="calc"), KeyLimits(Serve())))
    calls = [{"jsonrpc": "2.0", "method": name, "params": {}, "id": name} for name in rpc.ACTIONS]
    answers = http.post("/jsonrpc", headers=BEARER | {"X-Agent-ID": "calc"}, json=calls).json()
    assert [answer["error"]["code"] for answer in answers] == [rpc.FORBIDDEN] * len(calls)


def test_json_rpc_is_decided_call_by_call_and_in_a_batch_too() -> None:
    app = Application([ROOM], version="0", max_body_bytes=10_000)
    calls = [{"jsonrpc": "2.0", "method": name, "params": {}, "id": name} for name in (*rpc.ACTIONS, "training.no")]
    for role in ROLES:
        http = TestClient(Door(app, TABLE, Known(role), KeyLimits(Serve())))
        found = {one["id"]: one.get("error", {}) for one in http.post("/jsonrpc", headers=BEARER, json=calls).json()}
        for name, action in rpc.ACTIONS.items():
            may = decide(Known(role).key, action).allowed
            assert (found[name].get("code") != rpc.FORBIDDEN) == may, (role, name)
            assert may or "is for: " in found[name]["data"]["message"]
        assert found["training.no"]["code"] == METHOD_NOT_FOUND
    assert set(rpc.ACTIONS) == set(rpc.JobsOverHttp(Settings(), NOTHING, None).methods(None))


def test_each_call_of_a_batch_leaves_an_event_of_its_own() -> None:
    written, app = Written(), Application([ROOM], version="0", max_body_bytes=10_000)
    calls = [
        {"jsonrpc": "2.0", "method": f"training.{name}", "params": {"job_id": "j1"}, "id": 1}
        for name in ("list_jobs", "pause")
    ]
    TestClient(Door(app, TABLE, Known("viewer"), KeyLimits(Serve()), written)).post(
        "/jsonrpc", headers=BEARER, json=calls
    )
    assert [(one.method, one.action, one.resource, one.allowed) for one in written.events] == [
        ("training.list_jobs", "jobs.read", "/jsonrpc j1", True),
        ("training.pause", "jobs.command", "/jsonrpc j1", False),
    ]


RPC_TWINS = {
    "training.start_grpo": "POST /finetune/jobs",
    "training.get_status": "GET /finetune/jobs/{job_id}/status",
    "training.list_jobs": "GET /fine_tuning/jobs",
    "training.cancel": "POST /fine_tuning/jobs/{job_id}/cancel",
    "training.pause": "POST /fine_tuning/jobs/{job_id}/pause",
    "training.resume": "POST /fine_tuning/jobs/{job_id}/resume",
    "training.evaluate": "jobs.command",
    "training.export_trajectories": "jobs.read",
}
"""The route that does the same; where there is none, the action."""


def test_a_method_of_json_rpc_needs_what_the_route_needs_that_does_the_same() -> None:
    routes = {f"{route.method} {route.path}": route for route in TABLE.routes}
    needs = {name: twin if "." in twin else routes[twin].may for name, twin in RPC_TWINS.items()}
    assert needs == rpc.ACTIONS


@each_principal
def test_a_method_of_json_rpc_is_denied_where_its_route_is(principal: Principal) -> None:
    key = principal.known.key

    async def compare(http: httpx.AsyncClient) -> None:
        for method, action in rpc.ACTIONS.items():
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {}}
            answer = (await http.post("/jsonrpc", json=body)).json()
            decision = decide_at_door(key, action, principal.agent_id)
            assert (denial(answer) is None) == decision.allowed, (method, answer)

    using(principal, compare, ROOM)


@each_principal
def test_the_tool_that_is_a_method_is_denied_in_its_words_and_not_listed_then(principal: Principal) -> None:
    [tool] = [tool for tool in TOOLS if tool.name == "evaluate"]

    async def compare(http: httpx.AsyncClient) -> None:
        listed = {each["name"] for each in (await by_mcp(http, "/mcp", "tools/list", {}))["result"]["tools"]}
        call = {"name": tool.name, "arguments": arguments_of(tool)}
        result = (await by_mcp(http, "/mcp", "tools/call", call))["result"]
        refusal, text = await by_rest(http, tool), result["content"][-1]["text"]
        assert (tool.name in listed) == (refusal is None) == (denial(json.loads(text)) is None)
        assert refusal is None or (result["isError"] and refusal in text)

    using(principal, compare, ROOM)
