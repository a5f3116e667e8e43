"""A route is declared once: what the door, the errors, the limits and the description know of it comes from there."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from gateway.http.application import Application
from gateway.http.body import Answer, Body, PathQuery
from gateway.http.door import Door
from gateway.http.limits import KeyLimits
from gateway.http.route import REST, Reply, RouteTable, routes_of
from gateway.rooms.routes import PARTS, PLUGIN_ROOMS, ROOMS, ROUTES
from streams.errors import NotFoundError
from streams.settings.model import Serve, Settings
from tests.support.callers import BEARER, Known
from tests.support.rooms import every_room


class EchoBody(Body):
    """A text."""

    text: str


class EchoQuery(PathQuery):
    """How often."""

    times: int = 1


class EchoAnswer(Answer):
    """The text."""

    text: str
    left_out: str | None = None


class Scratch:
    """A room that no other file knows."""

    @REST.post(
        "/echoes/{name}",
        may="tasks.submit",
        status=201,
        ids="GET /echoes lists those that there are",
        refuses=(404,),
        max_bytes=40,
        sends={"text": "a"},
        example=EchoAnswer(text="aa"),
    )
    def echo_text(self, request: Request, name: str, body: EchoBody, query: EchoQuery) -> Reply[EchoAnswer]:
        """Say a text again."""
        if name != "hall":
            raise NotFoundError(f"no echo in {name}")
        return Reply(EchoAnswer(text=body.text * query.times), {"x-method": request.method})


@pytest.fixture
def http() -> TestClient:
    return through_the_door("submitter")


def through_the_door(role: Any) -> TestClient:
    app = Application([Scratch()], version="1", max_body_bytes=1_000, keys=True)
    return TestClient(Door(app, RouteTable(routes_of(Scratch)), Known(role), KeyLimits(Serve())), headers=BEARER)


def test_the_door_lets_in_whom_the_route_says(http: TestClient) -> None:
    for prefix in REST.prefixes:
        answer = http.post(f"{prefix}/echoes/hall?times=2", json={"text": "a"})
        assert (answer.status_code, answer.json()) == (201, {"text": "aa"})
        assert answer.headers["x-method"] == "POST"
    refused = through_the_door("viewer").post("/echoes/hall", json={"text": "a"})
    assert refused.status_code == 403 and "tasks.submit is for: " in refused.text
    assert "timestamp" in refused.json()["error"]


@pytest.mark.parametrize(
    ("path", "text", "status", "says"),
    [
        ("/echoes/hall", b'{"text": 1}', 400, "text: Input should be a valid string (got 1)"),
        ("/echoes/hall", b'{"text": "a", "texs": 1}', 400, "there is no field texs; did you mean text?"),
        ("/echoes/hall?time=2", b'{"text": "a"}', 400, "there is no field time; did you mean times?"),
        (
            "/echoes/hall",
            b" " * 41,
            413,
            "the body is longer than 40 bytes (the most that this route takes); send less",
        ),
        ("/echoes/well", b'{"text": "a"}', 404, "no echo in well"),
    ],
)
def test_what_is_wrong_is_told_in_the_dialect_of_the_route(
    http: TestClient, path: str, text: bytes, status: int, says: str
) -> None:
    answer = http.post(path, content=text)
    assert (answer.status_code, answer.json()["error"]["message"]) == (status, says)
    action = answer.json()["error"]["details"]["suggested_action"]
    assert (action == "GET /echoes lists those that there are") == (status == 404)


def test_every_route_that_finds_nothing_says_where_the_names_are_listed() -> None:
    assert [route.path for route in ROUTES if route.interface is REST and 404 in route.refusals and not route.ids] == []


def test_another_method_is_told_which_there_is(http: TestClient) -> None:
    answer = through_the_door("admin").delete("/echoes/hall")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


def test_the_description_has_it_with_its_types_statuses_and_examples() -> None:
    described = Application([Scratch()], version="1", max_body_bytes=1_000, keys=True).openapi()
    operation = described["paths"]["/echoes/{name}"]["post"]
    assert (operation["operationId"], operation["summary"], operation["description"]) == (
        "echo_text",
        "Echo text",
        "Say a text again.",
    )
    assert [(parameter["name"], parameter["in"]) for parameter in operation["parameters"]] == [
        ("name", "path"),
        ("times", "query"),
    ]
    assert list(operation["responses"]) == ["201", "400", "401", "403", "404", "408", "413", "415", "429", "503", "504"]
    assert operation["responses"]["404"] == {"$ref": "#/components/responses/NotFoundRestError"}
    [sent] = operation["requestBody"]["content"].values()
    [answered] = operation["responses"]["201"]["content"].values()
    assert sent == {"schema": {"$ref": "#/components/schemas/EchoBody"}, "example": {"text": "a"}}
    assert answered == {"schema": {"$ref": "#/components/schemas/EchoAnswer"}, "example": {"text": "aa"}}
    assert {"EchoBody", "EchoAnswer", "RestErrorAnswer"} <= set(described["components"]["schemas"])


def test_every_room_is_served_and_no_operation_has_the_name_of_another() -> None:
    of_plugins = (*(room for part in PARTS for room in part.ROOMS), *PLUGIN_ROOMS)
    assert [type(room) for room in every_room(Settings())] == [*ROOMS, *of_plugins]
    assert len({route.name for route in ROUTES}) == len(ROUTES)
