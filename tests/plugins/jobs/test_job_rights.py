"""The rights that jobs need, and who has them."""

from __future__ import annotations

import pytest

from plugins.jobs.api import job_rights
from schemas.events import AccessRole
from streams.access.roles import PluginAction, decide
from tests.support.callers import key

ALLOWED: dict[PluginAction, set[AccessRole]] = {
    job_rights.READ: {"viewer", "submitter", "trainer", "promoter", "admin"},
    job_rights.ORDER: {"submitter", "trainer", "admin"},
    job_rights.COMMAND: {"trainer", "admin"},
}


@pytest.mark.parametrize("action", ALLOWED)
@pytest.mark.parametrize("role", ["viewer", "submitter", "trainer", "promoter", "admin"])
def test_a_role_may(action: PluginAction, role: AccessRole) -> None:
    assert decide(key(role), action).allowed == (role in ALLOWED[action])
    assert not decide(key(role, agent_id="calc"), action, agent_id="calc").allowed
