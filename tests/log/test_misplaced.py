"""Nobody speaks of what is in another partition: a record there is skipped by every fold, and named by the audit."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from schemas.events import ExperimentEvent
from streams.adapters.decisions import read_history
from streams.adapters.versions import known_policies, read_state, read_states
from streams.kafka import admin
from streams.settings.model import Settings
from streams.tools.replay import experiments
from tests.support.commands import invoke
from tests.support.factories import one_of_each, trained
from tests.support.log.unchecked import write_unchecked
from tests.support.processes import write

pytestmark = pytest.mark.kafka


def on_two_partitions(settings: Settings) -> Settings:
    topics = settings.topics.model_copy(update={"policy_partitions": 2})
    return settings.model_copy(update={"topics": topics})


@pytest.fixture
def made(settings: Settings) -> Settings:
    settings = on_two_partitions(settings)
    admin.apply_topics(settings)
    return settings


def misplaced(settings: Settings) -> list[str]:
    """Return the coordinates of what the audit names so."""
    result = invoke(settings, "audit", "--settled", "--output", "json")
    return [finding["at"] for finding in json.loads(result.stdout)["misplaced"]]


def test_experiments_and_versions_are_those_of_their_own_partitions(made: Settings) -> None:
    experiment = next(event for event in one_of_each() if isinstance(event, ExperimentEvent))
    policy = made.policy.name
    write(made, experiment, trained(1, policy=policy))
    for forged in (
        replace(experiment, reason="forged", policy="forged"),
        trained(2, policy=policy),
        trained(1, policy="forged"),
    ):
        write_unchecked(made, forged, misplaced=True)
    assert {found.policy for found in experiments.read(made).values()} == {experiment.policy}
    assert read_state(made, policy).newest == read_history(made, policy).state.newest == 1
    assert read_states(made)[policy].newest == 1
    assert known_policies(made) == {policy}
    assert len(misplaced(made)) == 3
