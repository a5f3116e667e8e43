"""The plugin's part of a server: which plugin knows its callers, where people log in, and what is hidden in the log."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from gateway.http.application import Application
from gateway.http.route import routes_of
from gateway.log.query_body import QueryBody
from gateway.log.sql_rows import LogOverHttp, run_query
from plugins.people.access import keys
from plugins.people.rooms.people_part import PeoplePart, login_rooms
from plugins.people.settings import People
from streams.errors import CallError, RefusedError
from streams.plugins.installed import load_plugins
from streams.settings.model import Archive, Settings
from streams.tools.query import formats
from tests.support.documented import differences
from tests.support.factories import T0, task
from tests.support.log.archive_of import archived


def test_logins_and_public_keys_alone_need_no_key() -> None:
    routes = [route for room in PeoplePart.ROOMS for route in routes_of(room)]
    assert {f"{route.method} {route.path}" for route in routes if route.is_open} == {
        *("POST /auth/login", "POST /auth/tokens/refresh", "POST /auth/logout", "GET /.well-known/jwks.json"),
        *("GET /auth/oidc/login", "GET /auth/oidc/callback"),
    }


WITHOUT_PEOPLE = """
from gateway.rooms.routes import check_authentication
from streams.settings.load import build
from streams.tools.audit.recount import subject_recounts
assert len([*subject_recounts()]) > 1
check_authentication(build({"serve": {"auth": "keys"}}))
"""


def test_the_other_plugins_are_loaded_without_people_and_a_server_then_refuses_to_ask_for_keys() -> None:
    others = [plugin.name for plugin, _, _ in load_plugins() if "people" not in (plugin.name, *plugin.requires)]
    env = os.environ | {"STREAMWARD_PLUGINS__LOAD": ",".join(others)}
    done = subprocess.run([sys.executable, "-c", WITHOUT_PEOPLE], env=env, capture_output=True, text=True)
    assert done.returncode == 1 and "SettingsError: serve.auth=keys, and no plugin that knows keys" in done.stderr


def test_every_room_of_logins_is_served_where_there_is_an_issuer() -> None:
    rule = People(
        signing_key=Path("signing.pem"),
        public_url="https://here.example",
        oidc_issuer="https://there.example",
        oidc_client_id="streamward",
        oidc_roles="lab=trainer",
    )
    assert [type(room) for room in login_rooms(rule, Any)] == [*PeoplePart.ROOMS]


@pytest.mark.parametrize("path", ["/auth/oidc/login", "/auth/oidc/callback"])
def test_routes_of_an_issuer_that_there_is_not_are_described_as_not_found(path: str) -> None:
    rooms = login_rooms(People(), Any)
    answer = TestClient(Application(rooms, version="1", max_body_bytes=1_000, keys=True)).get(path)
    assert answer.status_code == 404
    assert [*differences(answer)] == []


def test_the_archived_files_of_a_hidden_topic_cannot_be_opened_either(tmp_path: Path) -> None:
    settings = Settings(archive=Archive(store=str(tmp_path / "archive")))
    events = [keys.creation_event(keys.new_secret(), keys.KeyGrant(role="admin"), actor="ann", now_ms=T0)]
    archived(settings, {"access": events, "tasks": [task()]}, count(T0, 1000))
    with contextlib.closing(LogOverHttp(settings, "archive")) as view:
        files = sorted((tmp_path / "archive").rglob("*.parquet"))
        hidden, seen = (f"SELECT count(*) FROM read_parquet('{file}')" for file in files)  # noqa: S608 - a path
        for sql in (hidden, seen):
            with pytest.raises(CallError, match=r"read_parquet\(\) is refused"):
                run_query(view, QueryBody(sql=sql))
        with view.session() as session:  # and if the parser were passed
            assert list(formats.rows(session.run(seen))) == [[1]]
            with pytest.raises(RefusedError, match="disabled by configuration"):
                list(formats.rows(session.run(hidden)))
