"""The roles that may use each route of guardrails; how it is denied: tests/unit/test_denied_everywhere.py."""

from __future__ import annotations

import pytest

from gateway.http.route import routes_of
from plugins.guardrails import PLUGIN
from plugins.guardrails.bias_routes import ROOMS
from plugins.guardrails.guardrail_part import GuardrailPart
from schemas.events import AccessRole
from streams.access.roles import ROLES, decide
from tests.support.callers import key

MAY = {
    "guardrails.check": {"submitter", "trainer", "admin"},
    "guardrails.consent": {"promoter", "admin"},
}
ROUTES = [route for room in (*ROOMS, *GuardrailPart.ROOMS) for route in routes_of(room)]


@pytest.mark.parametrize("role", ROLES)
def test_each_route_is_for_the_roles_of_its_right_and_no_key_of_an_agent(role: AccessRole) -> None:
    assert {str(route.may) for route in ROUTES} == MAY.keys() == PLUGIN.actions.keys()
    for route in ROUTES:
        assert route.may is not None
        assert decide(key(role), route.may).allowed == (role in MAY[route.may]), route
        assert not decide(key(role, agent_id="calc"), route.may, agent_id="calc").allowed
