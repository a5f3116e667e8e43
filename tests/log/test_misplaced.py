"""Nobody speaks of what is in another partition: a record there is skipped by every fold, and named by the audit."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from plugins.people.access import keys, users
from plugins.people.access.access_log import AccessLog
from plugins.people.access.keys import AccessKey, NewSecret
from plugins.people.logins import passwords
from schemas.events import AgentEvent, ExperimentEvent
from streams.adapters.decisions import read_history
from streams.adapters.versions import known_policies, read_state, read_states
from streams.kafka import admin, times
from streams.settings.model import Settings
from streams.stages.agents.runs.registration import register, registrations
from streams.tools.replay import experiments
from tests.support.commands import invoke
from tests.support.factories import T0, one_of_each, trained
from tests.support.log.unchecked import write_unchecked
from tests.support.processes import write

pytestmark = pytest.mark.kafka
TIMES = 4
"""How often each record is forged: partitions are read in no order."""


@pytest.fixture
def made(settings: Settings) -> Settings:
    topics = settings.topics.model_copy(update={"policy_partitions": 2})
    settings = settings.model_copy(update={"topics": topics})
    admin.apply_topics(settings)
    return settings


def test_no_user_and_no_key_is_replaced_from_another_partition(made: Settings) -> None:
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


def misplaced(settings: Settings) -> list[str]:
    """Return the coordinates of what the audit names so."""
    result = invoke(settings, "audit", "--settled", "--output", "json")
    return [finding["at"] for finding in json.loads(result.stdout)["misplaced"]]


def test_agents_experiments_and_versions_are_those_of_their_own_partitions(made: Settings) -> None:
    helper, experiment = (
        next(event for event in one_of_each() if isinstance(event, kind)) for kind in (AgentEvent, ExperimentEvent)
    )
    assert isinstance(helper, AgentEvent) and isinstance(experiment, ExperimentEvent)
    agent = register(made, helper)
    policy = made.policy.name
    write(made, experiment, trained(1, policy=policy))
    for forged in (
        replace(agent, event_id="forged", name="forged"),
        replace(experiment, reason="forged", policy="forged"),
        trained(2, policy=policy),
        trained(1, policy="forged"),
    ):
        write_unchecked(made, forged, misplaced=True)
    assert registrations(made) == {agent.agent_id: [agent]}
    assert {found.policy for found in experiments.read(made).values()} == {experiment.policy}
    assert read_state(made, policy).newest == read_history(made, policy).state.newest == 1
    assert read_states(made)[policy].newest == 1
    assert known_policies(made) == {policy}
    assert len(misplaced(made)) == 4
