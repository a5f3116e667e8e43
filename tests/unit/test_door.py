"""The door: which action a route needs, and what a request with, without and with the wrong key is told."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from gateway.http.application import Application
from gateway.http.door import UNLISTED, Door
from gateway.http.limits import KeyLimits
from gateway.http.principal import OF_ALL_TENANTS
from gateway.http.route import Interface, May, RouteTable, routes_of
from gateway.rooms.routes import ROOMS, ROUTES, TABLE, OwnPermissions
from schemas.events import ANONYMOUS, AccessRole, problems
from streams.access.roles import ROLES, allowed_to
from streams.settings.model import Serve, Settings
from tests.support.callers import AGENTS_MAY, BEARER, KEY, KEY_ID, PERSON, SECRET, Known, Written
from tests.support.rooms import every_room


def reached() -> Starlette:
    """Return an application that answers every path with it."""

    async def answer(request: Request) -> JSONResponse:
        return JSONResponse({"reached": request.path_params["path"]})

    return Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST", "PUT", "PATCH", "DELETE"])])


def client(known: Known, table: RouteTable = TABLE) -> TestClient:
    return TestClient(Door(reached(), table, known, KeyLimits(Serve())))


def application() -> Application:
    return Application(every_room(Settings()), version="0", max_body_bytes=1, keys=True)


def paths(routes: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield method and path of every route, those of a mounted application too."""
    for route in routes:
        if isinstance(route, Mount):
            yield from paths(route.routes, prefix + route.path)
        else:
            path = re.sub(r":\w+(?=})", "", prefix + route.path)
            yield from ((method, path) for method in route.methods)


def test_a_slash_too_many_leads_nowhere_and_least_of_all_to_the_host_that_the_request_names() -> None:
    app = Door(application(), TABLE, Known("admin"), KeyLimits(Serve(auth="keys", key_per_s=0)))
    http = TestClient(app, base_url="http://evil.example", follow_redirects=False, headers=BEARER)
    paths = {(route.method, path.format_map(Names())) for route in ROUTES for path in route.paths}
    for method, path in sorted(paths):
        for slashes in ("/", "//"):
            answer = http.request(method, path + slashes)
            assert answer.status_code == 404 and "evil.example" not in f"{answer.headers} {answer.text}", path


class Names(dict[str, str]):
    """A name for every parameter of a path."""

    def __missing__(self, name: str) -> str:
        return "x"


def actions(app: Starlette) -> dict[tuple[str, str], May]:
    """Return the right that each method and path of an application needs."""
    every = set(paths(app.routes))
    matches = {one: TABLE.find(one[0], re.sub("[{}]", "", one[1])) for one in every}
    assert [one for one, match in matches.items() if match is None] == []
    return {one: match.route.may for one, match in matches.items() if match is not None}


def test_every_route_names_its_action() -> None:
    app = application()
    needs = actions(app)
    assert {path for _, path in needs} >= set(app.openapi()["paths"])
    of_core = {path for room in ROOMS for route in routes_of(room) for path in route.paths}
    assert [one for one, action in needs.items() if action == UNLISTED and one[1] in of_core] == []
    assert {route.may for route in ROUTES if not route.is_open} <= {*needs.values()}


LOCKED = [(path, route) for route in TABLE.routes if not route.is_open for path in route.paths]
PLACES = {
    route.may: (route.method, re.sub("{.*?}", "x", path.replace("{agent_id}", "calc")))
    for path, route in sorted(LOCKED, key=lambda each: "{agent_id}" in each[0])
}
PLACES["feedback.give"] = ("POST", "/v1/feedback")
"""Of each action that a route has, one place; except for feedback, it names the agent, where one of its routes does."""


@pytest.mark.parametrize("who", ["key", "person"])
@pytest.mark.parametrize("role", ROLES)
def test_a_key_and_a_person_of_a_role_get_what_the_role_allows_and_403_for_the_rest(role: AccessRole, who: str) -> None:
    http, headers = client(Known(role)), BEARER if who == "key" else PERSON
    got = {action: http.request(*place, headers=headers).status_code for action, place in PLACES.items()}
    assert got == {action: 200 if action in allowed_to(role) else 403 for action in PLACES}


def test_who_asks_is_told_what_they_may_do() -> None:
    app = Application([OwnPermissions()], version="0", max_body_bytes=1)
    http = TestClient(Door(app, TABLE, Known("promoter", tenant="red"), KeyLimits(Serve())))
    said = {
        who: http.get("/auth/permissions", headers=headers).json() for who, headers in (("k", BEARER), ("p", PERSON))
    }
    assert (said["k"].pop("who"), said["p"].pop("who")) == (f"key {KEY_ID}", "user ann")
    assert said["k"] == said["p"]
    assert (said["p"]["roles"], said["p"]["tenant"]) == (["promoter"], "red")
    assert set(said["p"]["actions"]) == allowed_to("promoter") - OF_ALL_TENANTS, "the door refuses those to a tenant"
    assert http.get("/auth/permissions").status_code == 401
    assert http.post("/auth/login", json={}).status_code == 404, "nobody logs in without a signing key"


@pytest.mark.parametrize("headers", [BEARER, {"x-api-key": KEY}, {"Authorization": f"bearer {KEY}"}])
def test_a_key_opens_as_every_client_sends_it(headers: dict[str, str]) -> None:
    assert client(Known("submitter")).post("/v1/chat/completions", headers=headers).status_code == 200


def test_a_key_may_have_the_prefix_that_an_interface_declares_and_no_other() -> None:
    table = RouteTable([*TABLE.routes, Interface(key_prefix="its-").get("/own", may="models.read")])
    http = client(Known("viewer"), table)
    sent = [f"its-{KEY}", KEY, f"other-{KEY}", f"its-its-{KEY}"]
    got = [http.get("/own", headers={"x-api-key": key}).status_code for key in sent]
    assert got == [200, 200, 401, 401]


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Basic abc"}, {"x-api-key": KEY[:-1] + "t"}])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/rl/agents", "/nowhere"])
def test_without_a_key_nothing_is_reached_and_each_protocol_says_so(path: str, headers: dict[str, str]) -> None:
    answer = client(Known("admin")).post(path, headers=headers)
    assert answer.status_code == 401 and answer.headers["www-authenticate"].startswith("Bearer")
    assert "s" * 42 not in answer.text
    body = answer.json()
    assert (body.get("type") == "error") == (path == "/v1/messages")
    assert ("timestamp" in body["error"]) == (path == "/rl/agents")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/rl/environments"),
        ("POST", "/adapters/sums/promote"),
        ("POST", "/adapters/sums/promote"),
        ("GET", "/nowhere"),
    ],
)
def test_a_role_that_may_not_is_told_who_may(method: str, path: str) -> None:
    answer = client(Known("submitter")).request(method, path, headers=BEARER)
    assert answer.status_code == 403 and "is for: " in answer.text
    assert client(Known("admin")).request(method, path, headers=BEARER).status_code == 200


def test_a_key_of_an_agent_acts_as_that_agent_by_path_and_by_header_only() -> None:
    http = client(Known("submitter", agent_id="calc"))
    assert http.post("/agents/calc/v1/chat/completions", headers=BEARER).status_code == 200
    assert http.post("/v1/chat/completions", headers=BEARER | {"X-Agent-ID": "calc"}).status_code == 200
    assert http.post("/v1/chat/completions", headers=BEARER).status_code == 403
    assert http.post("/agents/other/v1/chat/completions", headers=BEARER | {"X-Agent-ID": "calc"}).status_code == 403
    assert http.post("/agents/other/trajectories/t/end", headers=BEARER).status_code == 403


@pytest.mark.parametrize("tenant", [None, "red"])
@pytest.mark.parametrize("role", ROLES)
def test_a_key_of_an_agent_gets_403_for_what_is_no_agents_whoever_it_says_it_is(role: AccessRole, tenant: Any) -> None:
    http = client(Known(role, agent_id="calc", tenant=tenant))
    may = allowed_to(role) & AGENTS_MAY - (OF_ALL_TENANTS if tenant else set())
    for header, allowed in (
        ({}, may - {"feedback.give"}),  # in the name of the agent `default`, as no other is in the path
        ({"X-Agent-ID": "calc"}, may),
        ({"X-Agent-ID": "other"}, {action for action in may if "/calc" in PLACES[action][1]}),
    ):
        answers = {action: http.request(*place, headers=BEARER | header) for action, place in PLACES.items()}
        assert {action for action, answer in answers.items() if answer.status_code == 200} == allowed, header
        assert {answer.status_code for answer in answers.values()} <= {200, 403}


@pytest.mark.parametrize("headers", [BEARER, PERSON])
def test_who_is_of_a_tenant_reaches_nothing_that_tenants_share(headers: dict[str, str]) -> None:
    http = client(Known("admin", tenant="red"))
    for path in ("/v1/chat/completions", "/v1/files", "/tasks", "/rewards", "/score"):
        assert http.post(path, headers=headers).status_code == 200
    for path in ("/agents/calc/trajectories/t/begin", "/rl/agents", "/rl/environments", "/query", "/nowhere"):
        assert http.post(path, headers=headers).status_code == 403


def test_every_request_leaves_an_event_that_says_who_did_what_and_why_not() -> None:
    written, trace = Written(), f"00-{'a' * 32}-{'b' * 16}-01"
    known = Known("submitter", tenant="red")
    http = TestClient(
        Door(reached(), TABLE, known, KeyLimits(Serve(auth="keys", key_per_s=0.001, key_burst=2)), written)
    )
    http.get("/v1/models?after=planted", headers=BEARER | {"traceparent": trace, "X-Agent-ID": "calc"})
    http.post(f"/adapters/{KEY}/promote", headers=BEARER, content=b"a body")
    http.get("/v1/models", headers=BEARER)
    http.get("/v1/models", headers={"Authorization": f"Bearer {KEY}x"})
    found = [(one.subject_id, one.action, one.status, one.allowed) for one in written.events]
    assert found == [
        (KEY_ID, "models.read", 200, True),
        (KEY_ID, "adapters.promote", 403, False),
        (KEY_ID, "models.read", 429, False),
        (ANONYMOUS, "models.read", 401, False),
    ]
    first, denied, _, anonymous = written.events
    assert (first.role, first.tenant, first.agent_id, first.traceparent) == ("submitter", "red", "calc", trace)
    assert (first.method, first.resource) == ("GET", "/v1/models")
    assert "adapters.promote is for: promoter, admin" in denied.reason and anonymous.role is None
    assert not any(list(problems(one)) for one in written.events)
    for hidden in (SECRET, "planted", "a body"):
        assert hidden not in repr(written.events)
    assert len({one.event_id for one in written.events}) == 4
    for secret in (f"swr_{KEY_ID}_{SECRET}", f"eyJhbGciOiJFUzI1NiJ9.eyJz{SECRET}.abc"):
        http.get(f"/v1/models/{secret}")
        assert SECRET not in written.events[-1].resource and "_…" in written.events[-1].resource
    http.get("/v1/models", headers=PERSON)
    assert (written.events[-1].subject_id, written.events[-1].role) == ("user ann", "submitter")


def test_where_events_are_required_nothing_is_answered_while_none_can_be_written() -> None:
    written = Written()
    http = TestClient(Door(Starlette(), TABLE, Known("admin"), KeyLimits(Serve()), written))
    written.full = "the log has taken no event of a request for 20 s"
    answer = http.get("/v1/models", headers=BEARER)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1") and written.full in answer.text
    assert http.post("/auth/login", json={}).status_code == 503
    written.full = None
    assert http.get("/v1/models", headers=BEARER).status_code == 404


def test_health_needs_no_key_and_a_log_that_is_away_lets_nobody_in() -> None:
    known = Known("admin")
    http = client(known)
    known.away = True
    assert http.get("/healthz").status_code == 200
    assert http.get("/v1/models", headers=BEARER).status_code == 503


def test_another_method_of_an_open_path_needs_no_key_either() -> None:
    assert client(Known("viewer")).post("/healthz").status_code == 200
    assert client(Known("viewer")).get("/auth/login").status_code == 200
    assert client(Known("viewer")).get("/v1/chat/completions").status_code == 401


@pytest.mark.parametrize("path", ["/tasks/t1/nothing", "/api/v1/adapters/sums/nothing", "/rl/nothing"])
def test_a_path_that_is_none_is_refused_in_the_dialect_of_those_beside_it(path: str) -> None:
    refused = client(Known("viewer")).post(path).json()["error"]
    missing = TestClient(application()).post(path).json()["error"]
    assert "timestamp" in refused and "timestamp" in missing and "suggested_action" in missing["details"]


def test_a_key_that_was_created_a_moment_ago_is_looked_for_in_the_log_before_it_is_refused() -> None:
    known = Known("admin")
    http = client(known)
    known.is_unread = True
    assert http.get("/v1/models", headers=BEARER).status_code == 200
    assert http.get("/v1/models", headers=BEARER).status_code == 200 and known.readings == 1
    known.is_unread = known.is_gone = True
    assert http.get("/v1/models", headers=BEARER).status_code == 401
    read = known.readings
    for sent in ("", "sw_", "x.y.z", "sw_key"):
        assert http.get("/v1/models", headers={"Authorization": f"Bearer {sent}"}).status_code == 401
    assert known.readings == read, "what is no key at all costs no reading"
