"""The simulated group against a real one: the same happenings, the same members and shares."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.kafka import admin
from streams.settings.model import Settings
from tests.simulation.beside import RealWorkers, SimulatedWorkers, Told, play, shares
from tests.simulation.group import in_ranges
from tests.simulation.process import Costs
from tests.simulation.world import Simulation

pytestmark = pytest.mark.kafka

PARTITIONS, SESSION_S = 12, 2.0


def with_few_partitions(settings: Settings) -> Settings:
    tree = settings.model_dump()
    tree["topics"] |= {"partitions": PARTITIONS, "policy_partitions": 2}
    tree["kafka"]["session_timeout_s"], tree["worker"]["driver"] = SESSION_S, "loop"
    return Settings.model_validate(tree)


def assert_shares_are_ranges(told: list[Told]) -> None:
    whole = 0
    for members in shares(told).values():
        if sum(map(len, members.values())) == PARTITIONS:
            expected = in_ranges(members, {"tasks": PARTITIONS})
            assert members == {name: {number for _, number in tps} for name, tps in expected.items()}
            whole += 1
    assert whole >= 6


def test_real_workers_share_and_replace_each_other_as_simulated_ones(settings: Settings, tmp_path: Path) -> None:
    """Also: while one who was killed still counts as a member, nobody gets anything, so no generation has both."""
    settings = with_few_partitions(settings)
    with Simulation(settings, costs=Costs(start_s=0.2)) as world:
        simulated = SimulatedWorkers(world)
        expected = play(simulated, PARTITIONS, SESSION_S)
    assert_shares_are_ranges(simulated.told)
    admin.apply_topics(settings)
    with RealWorkers(settings, tmp_path) as real:
        seen = play(real, PARTITIONS, SESSION_S)
        assert_shares_are_ranges(real.told)
    assert [(one.what, one.members[-1]) for one in seen] == [(one.what, one.members[-1]) for one in expected]
