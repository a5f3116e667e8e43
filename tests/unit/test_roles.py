"""Roles: what each may do, with a tenant or an agent too."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.events import AccessRole
from streams.access.roles import ROLES, allowed_to, decide, every_action
from tests.lint.test_routes import CELLS
from tests.support.callers import AGENTS_MAY, key, person


@pytest.mark.parametrize("who", [key, person])
@pytest.mark.parametrize(("action", "role", "allowed"), CELLS)
def test_a_role_may(action: Any, role: Any, allowed: bool, who: Any) -> None:
    asks = who(role)
    found = decide(asks, action)
    assert found.allowed is allowed
    assert asks.who in found.why and action in found.why and role in found.why


def test_a_person_with_two_roles_may_what_either_allows_and_no_more() -> None:
    both = person("trainer", "promoter")
    may = {action for action in every_action() if decide(both, action).allowed}
    assert may == allowed_to("trainer") | allowed_to("promoter")
    assert "user ann has roles trainer, promoter, and code.run is for: admin" in decide(both, "code.run").why


def test_a_person_of_a_tenant_reaches_only_what_is_the_tenants() -> None:
    assert decide(person(tenant="red"), "files.read", tenant="red").allowed
    assert not decide(person(tenant="red"), "files.read", tenant="blue").allowed


def test_a_key_of_a_tenant_reaches_only_what_is_the_tenants() -> None:
    mine = key(tenant="red")
    assert decide(mine, "files.read", tenant="red").allowed
    assert decide(mine, "files.read").allowed
    assert not decide(mine, "files.read", tenant="blue").allowed
    assert decide(key(), "files.read", tenant="blue").allowed


def test_a_key_of_an_agent_acts_as_no_other() -> None:
    mine = key(agent_id="calc")
    assert decide(mine, "chat.call", agent_id="calc").allowed
    assert not decide(mine, "chat.call", agent_id="other").allowed


@pytest.mark.parametrize("tenant", [None, "red"])
@pytest.mark.parametrize("role", ROLES)
def test_a_key_of_an_agent_does_what_its_role_and_agents_may_and_nothing_else(role: AccessRole, tenant: Any) -> None:
    mine = key(role, agent_id="calc", tenant=tenant)
    may = {action for action, named, allowed in CELLS if named == role and allowed} & AGENTS_MAY
    assert {action for action in every_action() if decide(mine, action, agent_id="calc").allowed} == may
    assert {action for action in every_action() if decide(mine, action).allowed} == may
    assert not any(decide(mine, action, agent_id="other").allowed for action in every_action())
