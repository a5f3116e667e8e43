"""Which plugin knows the callers of a server, and that its door stands before everything that plugins serve."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from gateway.http.authentication import Authentication
from gateway.log.server_part import ServerBase, ServerPart
from gateway.mcp.mcp_mount import McpMount
from gateway.rooms import routes
from gateway.server import Server, build_application
from streams.errors import SettingsError
from streams.settings.model import Serve, Settings
from tests.support.callers import BEARER, Known, Written
from tests.support.rooms import base_without_log

KEYS = Settings(serve=Serve(auth="keys"))


class Keeper(ServerPart):
    """Knows one key, and writes what is asked."""

    def __init__(self, base: ServerBase) -> None:
        self.written = Written()

    def authentication(self) -> Authentication:
        return Authentication(principals=Known("admin"), requests=self.written)


class Mounting(ServerPart):
    """Serves paths that no route declares."""

    def add_to(self, app: Starlette) -> None:
        app.mount("/mounted", PlainTextResponse("reached"))


def serving(settings: Settings, *kinds: type[ServerPart]) -> tuple[TestClient, list[ServerPart]]:
    """Return a client of a server with these parts, and the parts."""
    base = base_without_log(settings)
    base.parts.extend(kind(base) for kind in kinds)
    place = SimpleNamespace(is_held=True, others_at=None)
    app = build_application(Server(base=base, mcp=McpMount(), place=cast(Any, place)))
    return TestClient(app, base_url="http://127.0.0.1"), base.parts


@pytest.mark.parametrize("kinds", [(Keeper, Mounting), (Mounting, Keeper)])
def test_the_door_stands_before_the_mounts_of_every_part_whichever_comes_first(kinds: Any) -> None:
    http, parts = serving(KEYS, *kinds)
    assert [http.get(path).status_code for path in ("/mounted/x", "/mcp", "/v1/models")] == [401] * 3
    assert http.get("/mounted/x", headers=BEARER).text == "reached"
    assert http.get("/auth/permissions", headers=BEARER).json()["roles"] == ["admin"]
    [keeper] = [part for part in parts if isinstance(part, Keeper)]
    assert [event.status for event in keeper.written.events] == [401, 401, 401, 200, 200]


def test_without_keys_a_server_answers_its_own_machine_and_knows_nobody() -> None:
    http, _ = serving(Settings(), Mounting)
    assert http.get("/mounted/x").text == "reached"
    assert http.get("/mounted/x", headers={"host": "elsewhere.example"}).status_code == 421
    assert http.get("/auth/permissions").status_code == 404


def test_keys_that_no_plugin_knows_are_refused_before_anything_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "_PARTS", {"mounting": Mounting})
    with pytest.raises(SettingsError, match=r"serve.auth=keys.*add people to plugins.load"):
        routes.check_authentication(KEYS)
    routes.check_authentication(Settings())
    with pytest.raises(SettingsError, match="no part of this server knows keys"):
        serving(KEYS, Mounting)


def test_two_plugins_that_know_the_callers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "_PARTS", {"mounting": Mounting, "badges": Keeper, "people": Keeper})
    with pytest.raises(SettingsError, match="plugins badges and people know a server's callers"):
        routes.check_authentication(KEYS)
