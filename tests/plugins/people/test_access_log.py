"""Keys on a real log: made, followed by a server, listed, checked and revoked by commands."""

from __future__ import annotations

from typing import Any

import pytest

from plugins.people.access import keys, users
from plugins.people.access.access_log import AccessLog
from plugins.people.access.keys import AccessKey, NewSecret
from plugins.people.logins import passwords
from schemas.events import AccessEvent
from streams.kafka import admin, times
from streams.kafka.admin import read_topic
from streams.settings.model import Settings
from tests.log.test_misplaced import misplaced, on_two_partitions
from tests.support.commands import invoke, rows_of
from tests.support.factories import T0
from tests.support.log.shared_node import own_topics
from tests.support.log.unchecked import write_unchecked

pytestmark = pytest.mark.kafka
WITHIN_S = 30.0
TIMES = 4
"""How often each record is forged: partitions are read in no order."""


@pytest.fixture(scope="module")
def made(kafka_bootstrap: str) -> Settings:
    return own_topics(kafka_bootstrap)


def test_a_key_opens_until_a_server_that_follows_reads_that_it_was_revoked(made: Settings) -> None:
    with AccessLog(made) as person:
        secret = person.create(role="trainer", actor="ann", tenant="red")
    with AccessLog(made) as server, AccessLog(made) as person:
        found = server.find(secret.text)
        assert isinstance(found, AccessKey) and (found.role, found.tenant) == ("trainer", "red")
        person.revoke(secret.key_id, actor="bob", reason="lost")
        assert server.wait_until(lambda: server.get(secret.key_id).revoked_at is not None, WITHIN_S)
        assert server.find(secret.text) == f"key {secret.key_id} was revoked"


def test_a_key_is_made_listed_checked_and_revoked_by_commands_and_the_log_has_no_secret(made: Settings) -> None:
    result = invoke(
        made, "admin", "access", "keys", "create", "--role", "viewer", "--name", "notebook", "--expires", "30d"
    )
    assert result.exit_code == 0, result.output
    text = result.stdout.strip()
    key_id, secret = text.split("_", 2)[1:]
    assert secret not in result.stderr

    listed = rows_of(invoke(made, "admin", "access", "keys", "list"))
    [row] = [row for row in listed if row["key_id"] == key_id]
    assert (row["name"], row["role"], row["status"]) == ("notebook", "viewer", "valid")

    assert invoke(made, "admin", "access", "check", key_id, "jobs.read").exit_code == 0
    denied = invoke(made, "admin", "access", "check", key_id, "code.run")
    assert denied.exit_code == 4 and "code.run is for: admin" in denied.output

    assert invoke(made, "admin", "access", "keys", "revoke", key_id).exit_code == 0
    assert "was revoked" in invoke(made, "admin", "access", "check", key_id, "jobs.read").output

    given_whole = invoke(made, "admin", "access", "keys", "revoke", text)
    assert given_whole.exit_code == 3 and secret not in given_whole.output
    records: list[Any] = list(read_topic(made, "access"))
    assert any(isinstance(record.decode(AccessEvent), AccessEvent) for record in records)
    assert not any(secret.encode() in (record.payload or b"") + (record.key or b"") for record in records)


def test_no_user_and_no_key_is_replaced_from_another_partition(settings: Settings) -> None:
    admin.apply_topics(made := on_two_partitions(settings))
    right, wrong = "correct horse battery", "another horse battery"
    names = [f"user{number}" for number in range(TIMES)]
    with AccessLog(made) as log:
        secrets = [log.create(role="viewer", actor="ann") for _ in names]
        for name in names:
            log.write(new_user(name, right))
    for name, secret in zip(names, secrets, strict=True):
        write_unchecked(made, new_user(name, wrong), misplaced=True)
        write_unchecked(made, new_key(NewSecret(secret.key_id, "f" * 43)), misplaced=True)
    write_unchecked(made, new_user("nobody", wrong), misplaced=True)
    with AccessLog(made) as log:
        assert sorted(log.users) == names and len(log.keys) == TIMES
        for name, secret in zip(names, secrets, strict=True):
            assert log.user(name).roles == ("viewer",)
            assert passwords.matches(right, log.user(name).password_hash)
            found = log.find(secret.text)
            assert isinstance(found, AccessKey) and found.role == "viewer"
    assert len(misplaced(made)) == 2 * TIMES + 1


def new_user(name: str, password: str) -> users.AccessEvent:
    roles = ["viewer" if password.startswith("correct") else "admin"]
    hashed = users.NewUser(user_id=name, roles=roles, password_hash=passwords.hash_password(password))  # type: ignore[arg-type]
    return users.creation_event(hashed, actor="ann", now_ms=times.now_ms())


def new_key(secret: NewSecret) -> users.AccessEvent:
    return keys.creation_event(secret, keys.KeyGrant(role="admin"), actor="eve", now_ms=T0)
