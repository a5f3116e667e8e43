"""People on a real log: made by commands, logged in at two gateways that follow it, and shut out of both."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from joserfc import jwt as authlib_jwt
from joserfc.jwk import KeySet
from starlette.testclient import TestClient

from gateway.http.application import Application
from gateway.http.door import Door
from gateway.http.limits import KeyLimits
from gateway.rooms.routes import TABLE, OwnPermissions
from plugins.people.access import tokens, users
from plugins.people.access.access_log import AccessLog
from plugins.people.access.tokens import AUDIENCE
from plugins.people.logins import passwords
from plugins.people.logins.attempts import A_NAME_THERE
from plugins.people.logins.logins import KeyFile, Logins
from plugins.people.request_log import RequestLog
from plugins.people.rooms.password_logins import PasswordLogins
from plugins.people.settings import People
from streams.errors import SettingsError
from streams.kafka import times
from streams.kafka.admin import read_topic
from streams.settings.model import Policy, Serve, Settings
from tests.support.commands import invoke
from tests.support.documented import HOOKS
from tests.support.log.secured_node import free_ports
from tests.support.log.shared_node import own_topics
from tests.support.log.unchecked import write_unchecked
from tests.support.processes import running, until

pytestmark = pytest.mark.kafka
WITHIN_S = 30.0
HERE = "https://streamward.example"
HERE_TOO = "testclient"
"""The address of a TestClient."""
PASSWORD, ANOTHER = "correct horse battery", "another horse battery"


@pytest.fixture(scope="module")
def made(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    settings = own_topics(kafka_bootstrap).model_copy(
        update={"people": People(signing_key=tmp_path_factory.mktemp("keys") / "signing.pem", public_url=HERE)}
    )
    assert invoke(settings, "admin", "access", "signing-key", "rotate").exit_code == 0
    return settings


class Gateway(TestClient):
    """The door, and what logs people in, over a log of its own."""

    def __init__(self, log: AccessLog, settings: Settings, requests: RequestLog | None = None) -> None:
        rule = settings.of_plugin(People)
        assert rule.signing_key is not None
        self.logins = Logins(log, rule, KeyFile(rule.signing_key), issuer=HERE)
        app = Application([OwnPermissions(), PasswordLogins(self.logins)], version="0", max_body_bytes=100_000)
        super().__init__(Door(app, TABLE, log, KeyLimits(Serve()), requests))
        self.event_hooks = HOOKS
        self.log = log

    def log_in(self, name: str, password: str = PASSWORD) -> dict[str, Any]:
        answer = self.post("/auth/login", json={"username": name, "password": password})
        assert answer.status_code == 200 and answer.headers["cache-control"] == "no-store", answer.text
        found: dict[str, Any] = answer.json()
        return found

    def refresh(self, pair: dict[str, Any]) -> Any:
        return self.post("/auth/tokens/refresh", json={"refresh_token": pair["refresh_token"]})

    def permissions(self, pair: dict[str, Any]) -> Any:
        return self.get("/auth/permissions", headers={"Authorization": f"Bearer {pair['access_token']}"})

    def hears(self, is_so: Callable[[], bool]) -> None:
        assert self.log.wait_until(is_so, WITHIN_S)

    def hears_of(self, pair: dict[str, Any]) -> str:
        sid = str(jwt.decode(pair["access_token"], options={"verify_signature": False})["sid"])
        self.hears(lambda: self.log.session(sid) is not None)
        return sid


@contextmanager
def two_gateways(settings: Settings) -> Iterator[tuple[Gateway, Gateway]]:
    with AccessLog(settings) as here, AccessLog(settings) as there:
        yield Gateway(here, settings), Gateway(there, settings)


def user(settings: Settings, name: str) -> None:
    made = invoke(settings, "admin", "access", "users", "create", name, "--role", "trainer", input=PASSWORD + "\n")
    assert made.exit_code == 0, made.output


def test_a_login_holds_at_every_gateway_and_a_refresh_token_used_twice_ends_it_at_all(made: Settings) -> None:
    user(made, "ann")
    with two_gateways(made) as (here, there):
        first = here.log_in("ann")
        sid = there.hears_of(first)
        said = there.permissions(first).json()
        assert (said["who"], said["roles"], "jobs.command" in said["actions"]) == ("user ann", ["trainer"], True)

        second = there.refresh(first).json()
        here.hears(lambda: len(here.log._sessions[sid].digests) == 2)
        assert here.permissions(second).status_code == 200
        reused = here.refresh(first)
        assert reused.status_code == 401 and "used before" in reused.text
        there.hears(lambda: there.log._sessions[sid].ended_at is not None)
        for gateway in (here, there):
            assert gateway.permissions(second).status_code == 401
            assert gateway.refresh(second).status_code == 401

        third = here.log_in("ann")
        sid = there.hears_of(third)
        assert here.post("/auth/logout", json={"refresh_token": third["refresh_token"]}).status_code == 204
        there.hears(lambda: there.log._sessions[sid].ended_at is not None)
        assert there.permissions(third).status_code == 401
        assert here.post("/auth/logout", json={"refresh_token": third["refresh_token"]}).status_code == 204


def test_what_becomes_of_a_user_is_so_at_every_gateway(made: Settings) -> None:
    user(made, "bob")
    with two_gateways(made) as (here, there):
        pair = here.log_in("bob")
        there.hears_of(pair)
        assert invoke(made, "admin", "access", "users", "set-roles", "bob", "--role", "viewer").exit_code == 0
        there.hears(lambda: there.log.user("bob").roles == ("viewer",))
        assert there.permissions(pair).json()["roles"] == ["viewer"]
        checked = invoke(made, "admin", "access", "check", "bob", "jobs.command")
        assert checked.exit_code == 4 and "user bob has role viewer" in checked.output

        assert invoke(made, "admin", "access", "users", "set-password", "bob", input=ANOTHER).exit_code == 0
        there.hears(lambda: there.log.user("bob").epoch == 1)
        assert there.permissions(pair).status_code == 401
        pair = there.log_in("bob", ANOTHER)

        assert invoke(made, "admin", "access", "users", "disable", "bob").exit_code == 0
        for gateway in (here, there):
            gateway.hears(lambda gateway=gateway: gateway.log.user("bob").disabled_at is not None)
            assert gateway.permissions(pair).status_code == gateway.refresh(pair).status_code == 401
        assert "user bob is disabled" in invoke(made, "admin", "access", "check", "bob", "jobs.read").output
        shut_out = here.post("/auth/login", json={"username": "bob", "password": ANOTHER})
        unknown = here.post("/auth/login", json={"username": "nobody", "password": ANOTHER})
        assert shut_out.status_code == 401 and shut_out.json() == unknown.json()

        assert invoke(made, "admin", "access", "users", "enable", "bob").exit_code == 0
        there.hears(lambda: there.log.user("bob").disabled_at is None)
        assert there.permissions(pair).status_code == 401, "what was void stays void"
        [row] = [
            json.loads(line)
            for line in invoke(made, "admin", "access", "users", "list", "--output", "jsonl").output.splitlines()
            if "bob" in line
        ]
        assert (row["roles"], row["status"]) == ("viewer", "enabled")


def test_others_verify_our_tokens_with_the_published_keys_also_after_a_rotation(made: Settings) -> None:
    user(made, "dora")
    with two_gateways(made) as (here, there):
        before = here.log_in("dora")["access_token"]
        assert invoke(made, "admin", "access", "signing-key", "rotate").exit_code == 0
        here.hears(lambda: len(here.log.public_keys) > 1)
        after = here.log_in("dora")["access_token"]
        there.hears(lambda: len(there.log.public_keys) == len(here.log.public_keys))
        published = there.get("/.well-known/jwks.json").json()
        kids = [jwt.get_unverified_header(token)["kid"] for token in (before, after)]
        assert kids[0] != kids[1] and {key["kid"] for key in published["keys"]} >= set(kids)
        for token, kid in zip((before, after), kids, strict=True):
            key = jwt.PyJWKSet.from_dict(published)[kid]
            known = jwt.decode(token, key, algorithms=["ES256"], audience=AUDIENCE, issuer=HERE)
            assert (known["sub"], known["roles"]) == ("dora", ["trainer"])
            assert authlib_jwt.decode(token, KeySet.import_key_set(published)).claims == known

        assert invoke(made, "admin", "access", "signing-key", "rotate", "--revoke").exit_code == 0
        there.hears(lambda: sum(key.revoked_at is None for key in there.log.public_keys) == 1)
        assert there.permissions({"access_token": after}).status_code == 401
        path = made.of_plugin(People).signing_key
        assert path is not None and path.stat().st_mode & 0o777 == 0o600


def test_a_gateway_that_starts_makes_its_key_known_and_one_with_an_old_key_does_not_start(
    made: Settings, tmp_path: Path
) -> None:
    own = tmp_path / "own.pem"
    own.write_bytes(tokens.new_private_key())
    with AccessLog(made) as log:
        Logins(log, made.of_plugin(People), KeyFile(own), issuer=HERE)
        assert log.public_keys[-1].kid == KeyFile(own).key().kid
        assert invoke(made, "admin", "access", "signing-key", "rotate", "--revoke").exit_code == 0
        log.wait_until(lambda: log.public_keys[-2].revoked_at is not None, WITHIN_S)
        with pytest.raises(SettingsError, match="was revoked; give this gateway the file"):
            Logins(log, made.of_plugin(People), KeyFile(own), issuer=HERE)


def test_who_guesses_waits(made: Settings) -> None:
    with AccessLog(made) as log:
        gateway = Gateway(log, made)
        later = times.now_ms() + 3_600_000  # a bucket that is empty until then, however slow the test is
        while gateway.logins._attempts.wait_ms("carl", HERE_TOO, later) == 0:
            pass
        answer = gateway.post("/auth/login", json={"username": "carl", "password": PASSWORD})
    assert answer.status_code == 429 and int(answer.headers["retry-after"]) == A_NAME_THERE.every_ms // 1000


def test_wrong_logins_keep_nobody_else_out_behind_the_same_address(made: Settings) -> None:
    user(made, "gus")
    user(made, "gwen")
    with AccessLog(made) as log:
        gateway = Gateway(log, made)

        def status(name: str) -> Any:
            return gateway.post("/auth/login", json={"username": name, "password": ANOTHER}).status_code

        assert {status(f"nobody{number}") for number in range(3 * A_NAME_THERE.size)} == {401}
        assert [status("gus") for _ in range(A_NAME_THERE.size)] == [401] * A_NAME_THERE.size
        until(lambda: status("gus") == 429, "a name to be guessed no further")
        gateway.log_in("gwen")


def write_dear_hash(settings: Settings) -> None:
    """Write a user `bomb` whose password takes days to check."""
    cheap = "$argon2id$v=19$m=65536,t=1,p=1$c2FsdHNhbHQ$aGFzaGhhc2hoYXNoaGFzaA"
    new_user = users.NewUser(user_id="bomb", roles=["viewer"], password_hash=cheap)
    event = users.creation_event(new_user, actor="eve", now_ms=times.now_ms())
    write_unchecked(settings, event, password_hash=cheap.replace("t=1", "t=4294967295"))


def test_a_hash_in_the_log_that_would_hold_the_server_is_skipped_and_others_log_in(made: Settings) -> None:
    user(made, "hugo")
    write_dear_hash(made)
    with AccessLog(made) as log:
        gateway = Gateway(log, made)
        for _ in range(passwords.HASHING):
            answer = gateway.post("/auth/login", json={"username": "bomb", "password": ANOTHER})
            assert answer.status_code == 401
        gateway.log_in("hugo")


def test_a_server_whose_log_has_such_a_hash_ends_when_it_is_told_to(made: Settings, tmp_path: Path) -> None:
    write_dear_hash(made)
    (port,) = free_ports(1)
    policy = Policy(engine="scripted", script="{}")
    settings = made.model_copy(update={"serve": Serve(port=port, auth="keys", requests="off"), "policy": policy})
    url = f"http://127.0.0.1:{port}"
    with running(settings, tmp_path, "serve"):
        until(lambda: is_up(url), "the server answers", folder=tmp_path)
        for _ in range(passwords.HASHING):
            body = {"username": "bomb", "password": ANOTHER}
            assert httpx.post(f"{url}/auth/login", json=body, timeout=300).status_code == 401


def is_up(url: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"{url}/healthz", timeout=300).is_success
    return False


def test_who_logs_in_or_does_not_is_in_the_log_without_what_was_typed(made: Settings) -> None:
    user(made, "fay")
    typed = "my password where my name belongs"
    with AccessLog(made) as log, RequestLog(made) as requests:
        gateway = Gateway(log, made, requests)
        first = gateway.log_in("fay")
        second = gateway.refresh(first).json()
        for name in ("fay", typed, typed):
            assert gateway.post("/auth/login", json={"username": name, "password": ANOTHER}).status_code == 401
        gateway.refresh(first)
        gateway.post("/auth/logout", json={"refresh_token": second["refresh_token"]})
        third = gateway.log_in("fay")
        gateway.post("/auth/logout", json={"refresh_token": third["refresh_token"]})
        gateway.post("/auth/login", json=[typed])
        while gateway.logins._attempts.wait_ms("fay", HERE_TOO, times.now_ms() + 3_600_000) == 0:
            pass
        assert gateway.post("/auth/login", json={"username": "fay", "password": PASSWORD}).status_code == 429
    printed = invoke(made, "admin", "access", "audit", "--output", "jsonl")
    found = [json.loads(line)["event"] for line in printed.stdout.splitlines()]
    logins = [one for one in found if one["action"].startswith("auth.")]
    assert Counter((one["subject_id"], one["action"], one["status"], one["allowed"]) for one in logins) == {
        ("user fay", "auth.login", 200, True): 2,
        ("user fay", "auth.refresh", 200, True): 1,
        ("user fay", "auth.logout", 204, True): 1,
        ("anonymous", "auth.logout", 204, True): 1,
        ("anonymous", "auth.login", 401, False): 3,
        ("anonymous", "auth.refresh", 401, False): 1,
        ("anonymous", "auth.login", 400, False): 1,
        ("anonymous", "auth.login", 429, False): 1,
    }
    whys = [one["reason"] for one in logins if not one["allowed"]]
    assert len([why for why in whys if why.startswith("user fay: ")]) == 3, "a wrong password, a copy, and too many"
    [unknown, again] = [why for why in whys if why.startswith("no user (")]
    assert unknown == again
    records = b"".join((record.payload or b"") for record in read_topic(made, "requests"))
    secrets = [pair[name] for pair in (first, second, third) for name in ("access_token", "refresh_token")]
    assert records and [secret for secret in (typed, PASSWORD, ANOTHER, *secrets) if secret.encode() in records] == []


def test_no_secret_of_a_person_is_in_the_log_in_output_or_in_an_error(
    made: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    planted = ["planted password of eve", "planted and too short"[:10], "planted password " + "x" * 300]
    said: list[str] = []
    with caplog.at_level(logging.DEBUG):
        for password in planted:
            said.append(
                invoke(made, "admin", "access", "users", "create", "eve", "--role", "viewer", input=password).output
            )
        said.append(
            invoke(made, "admin", "access", "users", "create", "eve", "--role", "viewer", input=planted[0]).output
        )
        with AccessLog(made) as log:
            gateway = Gateway(log, made)
            pair = gateway.log_in("eve", planted[0])
            pairs = [pair, gateway.refresh(pair).json()]
            for body in (
                *({"username": "eve", "password": password} for password in (*planted[1:], [planted[0]])),
                {"username": planted[0], "password": 7},
                [planted[0]],
                {"username": "eve", "password": "none", "more": planted[0]},
            ):
                said.append(gateway.post("/auth/login", json=body).text)
            secrets = [pair[name] for pair in pairs for name in ("access_token", "refresh_token")]
            for secret in secrets:
                for other in (secret + "x", secret[:-1] + "~", secret):
                    said.append(gateway.permissions({"access_token": other}).text)
                    said.append(gateway.refresh({"refresh_token": other}).text)
                    said.append(gateway.refresh({"refresh_token": [other]}).text)
                said.append(gateway.get("/auth/permissions", headers={"x-api-key": secret}).text)
                said.append(invoke(made, "admin", "access", "check", secret, "jobs.read").output)
                said.append(invoke(made, "admin", "access", "keys", "revoke", secret).output)
            said += [invoke(made, "admin", "access", "users", "list").output, invoke(made, "config", "show").output]
    path = made.of_plugin(People).signing_key
    assert path is not None
    pem = path.read_text().splitlines()[1]
    looked_for = [*planted, pem, *(secret[-30:-4] for secret in secrets)]
    text = "\n".join(said) + caplog.text + "".join(map(str, (record.__dict__ for record in caplog.records)))
    assert [secret for secret in looked_for if secret in text] == []
    records = b"".join((record.payload or b"") + (record.key or b"") for record in read_topic(made, "access"))
    assert b"eve" in records and [secret for secret in looked_for if secret.encode() in records] == []
