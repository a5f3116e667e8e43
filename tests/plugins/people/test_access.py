"""Keys: what is kept of a secret, what its events make of a key, and whose rights it has."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from itertools import product
from typing import Any

import pytest

from plugins.people.access import keys, users
from schemas.events import AccessRole, derive_id, problems
from streams.access.roles import ROLES, decide, every_action
from tests.support import callers
from tests.support.factories import T0

SECRET = keys.NewSecret("00112233445566ff", "s" * 43)


def key(role: AccessRole = "admin", **given: Any) -> keys.AccessKey:
    found = keys.fold(None, keys.creation_event(SECRET, keys.KeyGrant(role=role, **given), actor="ann", now_ms=T0))
    assert found is not None
    return found


def person(role: AccessRole = "admin", **given: Any) -> users.User:
    found = users.fold(
        None,
        users.creation_event(
            users.NewUser(user_id="ann", roles=[role], issuer="https://i", **given), actor="bob", now_ms=T0
        ),
    )
    assert found is not None
    return found


@pytest.mark.parametrize("role", ROLES)
def test_a_key_and_a_person_have_the_rights_of_their_role_tenant_and_agent(role: AccessRole) -> None:
    for real, caller in (
        (key(role, tenant="red", agent_id="calc"), callers.key(role, tenant="red", agent_id="calc")),
        (person(role, tenant="red"), callers.person(role, tenant="red")),
    ):
        for action, tenant in product(every_action(), (None, "red", "blue")):
            found = decide(real, action, tenant=tenant, agent_id="calc")
            assert found == decide(caller, action, tenant=tenant, agent_id="calc")


def test_a_key_is_found_by_what_was_made_and_by_nothing_else() -> None:
    known = {SECRET.key_id: key()}
    assert keys.find(known, SECRET.text, T0) == known[SECRET.key_id]
    for sent in ("", "sk-abc", SECRET.text + "x", SECRET.text[:-1] + "t", SECRET.text.replace("ff_", "fe_")):
        why = keys.find(known, sent, T0)
        assert isinstance(why, str) and (not sent or sent not in why)
    unknown, wrong = keys.find({}, SECRET.text, T0), keys.find(known, SECRET.text[:-1] + "t", T0)
    assert unknown == wrong, "who guesses learns which ids exist"


def test_new_secrets_differ_and_can_be_found() -> None:
    one, other = keys.new_secret(), keys.new_secret()
    assert one.key_id != other.key_id and one.secret != other.secret
    made = keys.fold(None, keys.creation_event(one, keys.KeyGrant(role="viewer"), actor="ann", now_ms=T0))
    assert made is not None
    assert keys.find({one.key_id: made}, one.text, T0) == made


def test_an_expired_or_revoked_key_opens_nothing() -> None:
    known = key(expires_at=T0 + 10)
    assert keys.find({known.key_id: known}, SECRET.text, T0 + 9) == known
    assert keys.find({known.key_id: known}, SECRET.text, T0 + 10) == f"key {known.key_id} has expired"
    ended = keys.fold(known, keys.revocation_event(known.key_id, actor="bob", reason="lost", now_ms=T0 + 5))
    assert ended is not None and ended.revoked_at == T0 + 5
    assert keys.find({known.key_id: ended}, SECRET.text, T0 + 6) == f"key {known.key_id} was revoked"


def test_no_later_event_gives_a_key_another_secret_or_makes_it_valid_again() -> None:
    known = key("viewer")
    again = keys.creation_event(
        keys.NewSecret(SECRET.key_id, "t" * 43), keys.KeyGrant(role="admin"), actor="eve", now_ms=T0 + 1
    )
    assert keys.fold(known, again) == known
    first = keys.revocation_event(SECRET.key_id, actor="bob", reason="lost", now_ms=T0 + 2)
    ended = keys.fold(known, first)
    assert keys.fold(ended, again) == ended
    assert keys.fold(ended, replace(first, created_at=T0 + 9)) == ended
    assert keys.fold(None, first) is None


def test_a_secret_is_in_no_event_and_in_no_repr() -> None:
    event = keys.creation_event(SECRET, keys.KeyGrant(role="viewer"), actor="ann", now_ms=T0)
    assert SECRET.secret not in json.dumps(asdict(event))
    assert SECRET.secret not in repr((SECRET, event, key()))
    assert keys.digest(SECRET.secret) not in repr(key())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"event_id": derive_id("other")}, "event_id"),
        ({"role": None}, "key_created without role"),
        ({"secret_sha256": None}, "key_created without secret_sha256"),
        ({"secret_sha256": "s" * 43}, "no SHA-256"),
        (
            {"kind": "key_revoked", "event_id": derive_id(SECRET.key_id, "key_revoked")},
            "key_revoked with role, secret_sha256",
        ),
    ],
)
def test_an_event_that_breaks_a_rule_is_named(changes: dict[str, Any], said: str) -> None:
    whole = keys.creation_event(SECRET, keys.KeyGrant(role="viewer"), actor="ann", now_ms=T0)
    assert list(problems(whole)) == []
    assert any(said in problem for problem in problems(replace(whole, **changes)))


def test_a_revocation_has_nothing_of_the_key() -> None:
    whole = keys.revocation_event(SECRET.key_id, actor="ann", reason="lost", now_ms=T0)
    assert list(problems(whole)) == []
    assert any("with tenant" in problem for problem in problems(replace(whole, tenant="red")))


@pytest.mark.parametrize("tenant", ["red.blue", "", "../red"])
def test_a_key_of_a_tenant_that_could_be_anothers_prefix_opens_nothing(tenant: str) -> None:
    assert "make another key" in str(keys.find({SECRET.key_id: key(tenant=tenant)}, SECRET.text, T0))
