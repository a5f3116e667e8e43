"""Keys and roles: what is kept of a secret, what its events make of a key, and what each role may do."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from schemas.events import AccessRole, derive_id, problems
from streams.access import keys, users
from streams.access.roles import ACTIONS, ALLOWED, ROLES, decide
from tests.lint.test_routes import CELLS
from tests.support.factories import T0

SECRET = keys.NewSecret("00112233445566ff", "s" * 43)
AGENTS_MAY = {"models.read", "groups.read", "chat.call", "feedback.give", "runs.write"}
"""Of what its role may, all that a key of an agent may."""


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


@pytest.mark.parametrize("who", [key, person])
@pytest.mark.parametrize(("action", "role", "allowed"), CELLS)
def test_a_role_may(action: Any, role: Any, allowed: bool, who: Any) -> None:
    asks = who(role)
    found = decide(asks, action)
    assert found.allowed is allowed
    assert asks.who in found.why and action in found.why and role in found.why


def test_a_person_with_two_roles_may_what_either_allows_and_no_more() -> None:
    both = replace(person(), roles=("trainer", "promoter"))
    assert {action for action in ACTIONS if decide(both, action).allowed} == ALLOWED["trainer"] | ALLOWED["promoter"]
    assert "user ann has roles trainer, promoter, and code.run is for: admin" in decide(both, "code.run").why


def test_a_person_of_a_tenant_reaches_only_what_is_the_tenants() -> None:
    assert decide(person(tenant="red"), "jobs.read", tenant="red").allowed
    assert not decide(person(tenant="red"), "jobs.read", tenant="blue").allowed


def test_a_key_of_a_tenant_reaches_only_what_is_the_tenants() -> None:
    mine = key(tenant="red")
    assert decide(mine, "jobs.read", tenant="red").allowed
    assert decide(mine, "jobs.read").allowed
    assert not decide(mine, "jobs.read", tenant="blue").allowed
    assert decide(key(), "jobs.read", tenant="blue").allowed


def test_a_key_of_an_agent_acts_as_no_other() -> None:
    mine = key(agent_id="calc")
    assert decide(mine, "chat.call", agent_id="calc").allowed
    assert not decide(mine, "chat.call", agent_id="other").allowed


@pytest.mark.parametrize("tenant", [None, "red"])
@pytest.mark.parametrize("role", ROLES)
def test_a_key_of_an_agent_does_what_its_role_and_agents_may_and_nothing_else(role: AccessRole, tenant: Any) -> None:
    mine = key(role, agent_id="calc", tenant=tenant)
    may = {action for action, named, allowed in CELLS if named == role and allowed} & AGENTS_MAY
    assert {action for action in ACTIONS if decide(mine, action, agent_id="calc").allowed} == may
    assert {action for action in ACTIONS if decide(mine, action).allowed} == may
    assert not any(decide(mine, action, agent_id="other").allowed for action in ACTIONS)


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
