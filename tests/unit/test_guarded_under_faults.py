"""Mode `guarded` over an in-memory log: killed anywhere, and read again, the same versions are asked, judged, promoted.

The line and the results of the suite are two tables with a changelog each; a crash may keep the one and lose the other.
"""

from __future__ import annotations

import random

from hypothesis import given, settings, strategies as st

from schemas.events import AdapterEvent, Task
from schemas.serde import decode, encode
from streams.evaluation.suite import Suite
from streams.settings.model import Guard
from streams.stages.rollouts import rollout_stage as rollouts
from streams.stages.rollouts.state import RolloutRule
from streams.stages.tasks.suites import generated
from tests.support.factories import evaluated, state_after, trained
from tests.support.thoroughness import examples

SUITE = Suite(name="sums@1", questions=generated("sums", count=2, seed=0).questions, thresholds={})
RULE = RolloutRule("guarded", Guard(min_tasks=20), SUITE)
QUALITY = {0: 0.2, 1: 0.5, 2: 0.1, 3: 0.9}


class Stage:
    """The rollouts stage over a log that it writes to itself; what it asks is answered some time after."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.log: list[AdapterEvent] = []
        self.asked: list[Task] = []
        self.lines: list[bytes] = []
        self.results: list[tuple[int, bytes]] = []
        self.safe = (0, 0)
        self.committed = self.position = 0

    def read(self, *, killed_after: int = 9) -> None:
        one = self.log[self.position]
        if one.kind == "evaluated" and one.version not in dict(self.results):
            self.results.append((one.version, encode(one)))
        rows = dict(self.results)

        def result(version: int) -> AdapterEvent | None:
            found = decode(rows[version], AdapterEvent) if version in rows else None
            return found if isinstance(found, AdapterEvent) else None

        line = rollouts.load(self.lines[-1] if self.lines else None)
        line, made = rollouts.reduce(line, one, RULE, result)
        for effect in made[:killed_after]:
            if isinstance(effect, Task):
                self.asked.append(effect)
            else:
                self.log.append(effect)
        if killed_after < 9:
            self.crash()
            return
        self.lines.append(rollouts.dump(line))
        self.position += 1

    def commit(self) -> None:
        self.committed, self.safe = self.position, (len(self.lines), len(self.results))

    def crash(self) -> None:
        for rows, safe in zip((self.lines, self.results), self.safe, strict=True):
            del rows[self.draw.randint(safe, len(rows)) :]  # type: ignore[attr-defined]
        self.position = self.committed


def followed(seed: int, *, kills: int) -> Stage:
    """Train three versions, answer what is asked, sometimes twice; return the stage when all is read."""
    draw = random.Random(seed)
    stage, to_come, answered = Stage(draw), [trained(version) for version in (1, 2, 3)], set[int]()
    while True:
        whole = {one for one in QUALITY if len({t.task_id for t in stage.asked if t.adapter_version == one}) == 2}
        what = draw.random()
        if to_come and what < 0.2:
            stage.log.append(to_come.pop(0))
        elif what < 0.4 and whole - answered:
            version = draw.choice(sorted(whole - answered))
            answered.add(version)
            stage.log += [evaluated(version, QUALITY[version], suite=SUITE.name)] * draw.choice((1, 1, 2))
        elif what < 0.5:
            stage.commit()
        elif stage.position < len(stage.log):
            if kills and what < 0.65:
                kills -= 1
                stage.read(killed_after=draw.randint(0, 3))
            else:
                stage.read()
        elif not to_come and whole <= answered:
            return stage


@settings(max_examples=examples(60))
@given(st.integers(0, 2**16))
def test_after_any_crashes_what_was_good_is_primary_and_nothing_was_said_in_two_ways(seed: int) -> None:
    stage = followed(seed, kills=6)
    state = state_after(stage.log, "default")
    assert state.primary == 3
    assert {task.adapter_version for task in stage.asked} == set(QUALITY)
    assert len({encode(task) for task in stage.asked}) == len({task.task_id for task in stage.asked})
    said = [one for one in stage.log if one.actor == "rollouts"]
    assert len({encode(one) for one in said}) == len({one.event_id for one in said})
    assert rollouts.load(stage.lines[-1]).serving == state.serving
