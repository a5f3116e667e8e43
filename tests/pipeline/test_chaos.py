"""The quick tier of the fault matrix: fewer tasks, and fewer a second; the same faults and the same verdict.

`make chaos` runs the whole matrix (docs/reliability.md). Here is what a change is likeliest to break.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import tests.chaos.faults  # noqa: F401 - fills FAULTS
from streams.kafka.producer import Producer
from streams.settings.model import Settings
from tests.chaos.disks import NotShown
from tests.chaos.faults.processes import kill_at_points
from tests.chaos.matrix import FAULTS, run
from tests.chaos.verdict import judge
from tests.support.factories import group
from tests.support.thoroughness import FULL

pytestmark = pytest.mark.kafka

QUICK = (
    "kill-at-points",
    *(("broker-kill", "poison", "zombie", "sigterm", "doubles", "hostile") if FULL else ()),
)
GROUPS = 250 if FULL else 75
LIGHTER = {
    "rate": 6.0,  # each task is 17 records, and they come for as long as the fault lasts
    "settings": {"topics": {"partitions": 3, "policy_partitions": 2}},
}
SHORTER = {
    "kill-at-points": partial(
        kill_at_points, most={"after poll": 40, "after produce": 20, "before commit": 2, "after commit": 2}
    ),
}
"""What is done later in the life of a process in the whole matrix."""


@pytest.mark.parametrize("name", QUICK)
def test_nothing_is_lost_and_nothing_doubled_under(name: str, tmp_path: Path) -> None:
    try:
        row = FAULTS[name]
        if not FULL:
            row = replace(row, **LIGHTER, inject=SHORTER.get(name, row.inject))
        line = run(row, seed=7, groups=GROUPS, folder=tmp_path / "run", limit_s=math.inf)  # a test asks no time
    except NotShown as why:
        pytest.skip(f"{name} CANNOT BE SHOWN HERE: {why}")
    assert line["passed"], line["complaints"]


# --- the verdict itself -----------------------------------------------------------------------------------------------


def test_an_acknowledged_task_without_a_group_is_lost(made: Settings) -> None:
    verdict = judge(made, {"t1": "acknowledged", "t2": "unknown", "t3": "failed"}, cut=False)
    assert (verdict.lost, verdict.phantom) == (1, 0)
    assert verdict.complaints == ("1 acknowledged tasks without a group: t1",)


def test_a_group_that_nobody_asked_for_is_a_phantom_and_is_not_recomputed(made: Settings) -> None:
    with Producer(made) as producer:
        producer.send(group())
    verdict = judge(made, {}, cut=False)
    assert verdict.phantom == 1
    assert "1 groups of tasks that nobody sent: t1" in verdict.complaints
    assert any("group that only the log has" in complaint for complaint in verdict.complaints)
