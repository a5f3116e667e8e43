"""A person logs in by way of an issuer at one gateway, and is the same at another: our double, and one of others."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from starlette.responses import HTMLResponse, Response
from starlette.testclient import TestClient

from gateway.http.application import Application
from gateway.http.door import Door
from gateway.http.limits import KeyLimits
from gateway.rooms.routes import TABLE, OwnPermissions
from plugins.people.access.access_log import AccessLog
from plugins.people.access.tokens import new_private_key
from plugins.people.logins.logins import KeyFile, Logins, TokenPair, disable, enable, set_password
from plugins.people.logins.oidc import Issuer
from plugins.people.rooms.oidc_logins import OidcLogins
from plugins.people.rooms.password_logins import PasswordLogins
from plugins.people.settings import People
from streams.errors import LoginRefused, RefusedError
from streams.settings.model import Serve, Settings
from tests import skips
from tests.support.documented import HOOKS
from tests.support.doubles.issuer import CLIENT, URL, OwnIssuer
from tests.support.log.shared_node import own_topics
from tests.support.oidc_provider import provider

pytestmark = pytest.mark.kafka
HERE = "https://streamward.example"


@pytest.fixture(scope="module")
def made(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    key = tmp_path_factory.mktemp("keys") / "signing.pem"
    key.write_bytes(new_private_key())
    return own_topics(kafka_bootstrap).model_copy(
        update={"people": rule(key, URL, oidc_client_secret=SecretStr("it's a secret"))}
    )


def rule(key: Path, issuer: str, **given: Any) -> People:
    roles = "lab=trainer, leads=promoter"
    return People(
        signing_key=key, public_url=HERE, oidc_issuer=issuer, oidc_client_id=CLIENT, oidc_roles=roles, **given
    )


class Hall:
    """A part of the server where logins of browsers end."""

    def welcome(self, pair: TokenPair) -> Response:
        return HTMLResponse(f"welcome, {pair.user.name}")

    def refuse(self, error: LoginRefused) -> Response:
        return HTMLResponse(f"go away: {error}", 401)


def browser(log: AccessLog, rule: People, **given: Any) -> TestClient:
    """A browser at the door."""
    assert rule.signing_key is not None
    logins = Logins(log, rule, KeyFile(rule.signing_key), issuer=HERE)
    oidc = OidcLogins(Issuer(rule, **given), logins, over_tls=True, landings={"hall": Hall()})
    app = Application([oidc, OwnPermissions(), PasswordLogins(logins)], version="0", max_body_bytes=100_000)
    found = TestClient(Door(app, TABLE, log, KeyLimits(Serve())), base_url=HERE, follow_redirects=False)
    found.event_hooks = HOOKS
    return found


def permissions(at: TestClient, pair: dict[str, Any]) -> httpx.Response:
    return at.get("/auth/permissions", headers={"Authorization": f"Bearer {pair['access_token']}"})


def test_a_person_of_an_issuer_has_the_roles_of_its_newest_claims_until_they_are_disabled(made: Settings) -> None:
    own = OwnIssuer()
    with AccessLog(made) as log:
        at = browser(log, made.of_plugin(People), transport=own.transport)

        def logged_in() -> httpx.Response:
            own.used.clear()
            begun = at.get("/auth/oidc/login")
            assert begun.status_code == 302 and begun.headers["location"].startswith(URL)
            cookie = begun.headers["set-cookie"]
            assert all(word in cookie for word in ("Secure", "HttpOnly", "SameSite=lax", "Path=/auth/oidc"))
            return at.get("/auth/oidc/callback", params=own.let_in(begun.headers["location"]))

        first = logged_in()
        assert first.status_code == 200 and 'streamward-oidc=""' in first.headers["set-cookie"]
        said = permissions(at, first.json()).json()
        assert said["roles"] == ["trainer"] and said["who"].startswith("user oidc-")
        own.claims["roles"] = ["leads"]
        assert permissions(at, logged_in().json()).json()["roles"] == ["promoter"]
        assert permissions(at, first.json()).json()["roles"] == ["promoter"], "of one person, not of one login"

        [user_id] = log.users
        assert (log.user(user_id).name, log.user(user_id).issuer) == ("ann", URL)
        with pytest.raises(RefusedError, match="vouches for this person"):
            set_password(log, user_id, "a password of mine", actor="bob", reason="r")
        own.claims["roles"] = []
        none = logged_in()
        assert none.status_code == 401 and "gives this person no role" in none.text
        own.claims["roles"] = ["lab"]
        disable(log, user_id, actor="bob", reason="left")
        assert permissions(at, first.json()).status_code == 401
        assert logged_in().status_code == 401

        own.used.clear()
        begun = at.get("/auth/oidc/login?to=hall")
        refused = at.get("/auth/oidc/callback", params=own.let_in(begun.headers["location"]))
        assert refused.status_code == 401 and refused.text.startswith("go away: ") and "is disabled" in refused.text
        enable(log, user_id, actor="bob", reason="is back")
        own.used.clear()
        begun = at.get("/auth/oidc/login?to=hall")
        let_in = at.get("/auth/oidc/callback", params=own.let_in(begun.headers["location"]))
        assert (let_in.status_code, let_in.text) == (200, "welcome, ann")

        without = at.get("/auth/oidc/callback", params={"code": "a code", "state": "x"})
        assert without.status_code == 401 and "not begun by this browser" in without.text


def test_a_provider_that_others_wrote_lets_a_person_in_at_every_gateway(made: Settings, tmp_path: Path) -> None:
    if importlib.util.find_spec("oidc_provider_mock") is None:
        pytest.skip(skips.OIDC)
    key = made.of_plugin(People).signing_key
    assert key is not None
    with (
        provider(tmp_path, {"sub": "dora@lab", "preferred_username": "dora", "roles": ["lab"]}) as url,
        AccessLog(made) as log,
        AccessLog(made) as there,
    ):
        of_theirs = rule(key, url, oidc_client_secret=SecretStr("any is good there"))
        at = browser(log, of_theirs)
        page = at.get("/auth/oidc/login").headers["location"]
        assert httpx.get(page, timeout=300).status_code == 200
        back = httpx.post(page, data={"sub": "dora@lab"}, timeout=300).headers["location"]
        assert back.startswith(HERE + "/auth/oidc/callback?")
        answer = at.get(back)
        assert answer.status_code == 200, answer.text
        assert there.wait_until(lambda: any(user.name == "dora" for user in there.users.values()), 30)
        said = permissions(at, answer.json()).json()
        assert (said["roles"], "jobs.command" in said["actions"]) == (["trainer"], True)
        assert there.wait_until(lambda: not isinstance(there.find(answer.json()["access_token"]), str), 30)
        assert at.get(back).status_code == 401, "neither cookie nor code is good twice"
