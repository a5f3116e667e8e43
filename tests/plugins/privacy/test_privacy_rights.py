"""The roles that may use each route of privacy; how it is denied: tests/unit/test_denied_everywhere.py."""

from __future__ import annotations

import pytest

from gateway.http.route import routes_of
from plugins.privacy import PLUGIN
from plugins.privacy.rooms import ROOMS
from schemas.events import AccessRole
from streams.access.roles import ROLES, decide
from tests.support.callers import key

MAY = {
    "privacy.read": {"admin"},
    "privacy.erase": {"admin"},
}
ROUTES = [route for room in ROOMS for route in routes_of(room)]


@pytest.mark.parametrize("role", ROLES)
def test_each_route_is_for_the_roles_of_its_right_and_no_key_of_an_agent(role: AccessRole) -> None:
    assert {str(route.may) for route in ROUTES} == MAY.keys() == PLUGIN.actions.keys()
    for route in ROUTES:
        assert route.may is not None
        assert decide(key(role), route.may).allowed == (role in MAY[route.may]), route
        assert not decide(key(role, agent_id="calc"), route.may, agent_id="calc").allowed
