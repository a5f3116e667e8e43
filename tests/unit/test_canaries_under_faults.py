"""Canaries over an in-memory log: the stage is killed anywhere and reads again, agents follow late, groups come twice.

The stage reads two topics, as the live one does: `adapters` into the line, `groups` into the evidence, a group only
once `adapters` is read up to its time. It writes first what an event asks for, then the rows, each table into a
changelog of its own; so a crash may keep the one and lose the other. Offsets are committed some time after.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from hypothesis import given, settings, strategies as st

from schemas.events import AdapterEvent, AdvantagedGroup
from schemas.serde import encode
from streams.adapters.serving import answers
from streams.adapters.versions import empty, fold
from streams.settings.model import Canary
from streams.stages.rollouts import canary, rollout_stage as rollouts
from streams.stages.rollouts.state import RolloutRule
from tests.support.factories import T0, group, state_after, trained
from tests.support.thoroughness import examples

RULE = RolloutRule("canary", canary=Canary(steps="0.3,0.6,1", step_groups=10, max_groups=400))
QUALITY = {0: 0.3, 1: 0.6, 2: 0.1, 3: 0.9}
TABLES = ("line", "evidence", "counted")


class Deployment:
    """A log of two topics, the agents that follow it, and the stage."""

    def __init__(self, draw: random.Random) -> None:
        self.draw, self.now = draw, T0
        self.topics: dict[str, list[tuple[int, Any]]] = {"adapters": [], "groups": []}
        self.written: dict[str, list[tuple[str, bytes]]] = {name: [] for name in TABLES}
        self.safe = dict.fromkeys(TABLES, 0)
        self.committed = dict.fromkeys(self.topics, 0)
        self.seen, self.state = 0, empty("default")
        """What the agents have read of `adapters`."""
        self.tasks = 0
        self.start()

    def start(self) -> None:
        self.tables = {name: dict(rows) for name, rows in self.written.items()}
        self.position = dict(self.committed)

    def append(self, topic: str, event: Any) -> None:
        self.now += 1
        self.topics[topic].append((self.now, event))

    def answer(self) -> None:
        """Let the agents read some more of `adapters`, and answer a task."""
        for _, event in self.topics["adapters"][self.seen :][: self.draw.randint(0, 3)]:
            self.seen, self.state = self.seen + 1, fold(self.state, event)
        self.tasks += 1
        version = answers(self.state.serving, f"t{self.tasks}")
        value = QUALITY[version] + self.draw.uniform(-0.2, 0.2)
        one = replace(group().responses[0], reward=value, components={"exact": value})
        made = group(
            task_id=f"t{self.tasks}",
            created_at=self.now + 1,
            adapter_version=version,
            reward_mean=value,
            responses=(one, replace(one, slot=1)),
        )
        for _ in range(self.draw.choice((1, 1, 1, 2))):
            self.append("groups", made)

    def may_read(self, topic: str) -> bool:
        position, records = self.position[topic], self.topics[topic]
        if position >= len(records) or topic == "adapters":
            return position < len(records)
        return all(at > records[position][0] for at, _ in self.topics["adapters"][self.position["adapters"] :])

    def read(self, topic: str, *, killed_after: int = 9) -> None:
        """Read the next record; of what is to be written, in its order, only so much is."""
        at_ms, event = self.topics[topic][self.position[topic]]
        line = rollouts.load(self.tables["line"].get("default"))
        effects: list[tuple[str, Any]] = []
        if topic == "adapters":
            line, made = rollouts.reduce(line, event, RULE, at_ms=at_ms)
            effects = [("", one) for one in made]
            effects.append(("line", ("default", rollouts.dump(line))))
        elif line.canary is not None:
            effects = self._weigh(line.canary, event, self.position[topic])
        for table, what in effects[:killed_after]:
            if not table:
                self.append("adapters", what)
                continue
            self.written[table].append(what)
            self.tables[table][what[0]] = what[1]
        if killed_after < 9:
            self.crash()
        else:
            self.position[topic] += 1

    def _weigh(self, trial: canary.CanaryTrial, event: AdvantagedGroup, offset: int) -> list[tuple[str, Any]]:
        row = str(offset).encode()
        counted, evidence = self.tables["counted"], self.tables["evidence"]
        if canary.arm_of(event, trial) is None or counted.get(event.group_id) not in (None, row):
            return []
        found = canary.count(canary.load(evidence.get("default")), trial, event, offset)
        found, made = canary.decide(found, trial, RULE.canary, policy="default", at_ms=event.created_at)
        rows = [("evidence", ("default", canary.dump(found))), ("counted", (event.group_id, row))]
        return [*([] if made is None else [("", made)]), *rows]

    def commit(self) -> None:
        self.committed = dict(self.position)
        self.safe = {name: len(rows) for name, rows in self.written.items()}

    def crash(self) -> None:
        for name, rows in self.written.items():
            del rows[self.draw.randint(self.safe[name], len(rows)) :]
        self.start()

    def advance(self, *, kills: int) -> int:
        """Do something; return the kills that are left."""
        ready = [topic for topic in self.topics if self.may_read(topic)]
        what = self.draw.random()
        if what < 0.3 or not ready:
            self.answer()
        elif what < 0.35:
            self.commit()
        elif kills and what < 0.37:
            self.read(self.draw.choice(ready), killed_after=self.draw.randint(0, 2))
            return kills - 1
        else:
            self.read(self.draw.choice(ready))
        return kills


def rolled_out(seed: int, *, kills: int, person: AdapterEvent | None = None) -> Deployment:
    """Train three versions while tasks are answered; return the deployment once no canary is left and all is read."""
    draw = random.Random(seed)
    world = Deployment(draw)
    to_come = [trained(version) for version in (1, 2, 3)]
    if person is not None:
        to_come.insert(draw.randint(1, 3), person)
    for _ in range(20_000):
        if to_come and draw.random() < 0.01:
            world.append("adapters", to_come.pop(0))
        kills = world.advance(kills=kills)
        line = rollouts.load(world.tables["line"].get("default"))
        if not to_come and line.canary is None and not any(map(world.may_read, world.topics)):
            return world
    raise AssertionError(f"no end: {line}")


@settings(max_examples=examples(25))
@given(st.integers(0, 2**16))
def test_the_best_version_is_primary_in_the_end_however_often_the_stage_is_killed(seed: int) -> None:
    world = rolled_out(seed, kills=8)
    events = [event for _, event in world.topics["adapters"]]
    state = state_after(events, "default")
    assert (state.primary, state.versions[2].status in ("rejected", "trained")) == (3, True)
    assert rollouts.load(world.tables["line"]["default"]).serving == state.serving
    written = [event for event in events if event.actor == "rollouts"]
    assert len({encode(event) for event in written}) == len({event.event_id for event in written})


@settings(max_examples=examples(25))
@given(st.integers(0, 2**16), st.sampled_from(["promoted", "rejected", "rolled_back"]), st.integers(0, 3))
def test_a_person_who_decides_meanwhile_and_copies_of_what_was_written_change_no_ones_mind(
    seed: int, kind: Any, version: int
) -> None:
    person = replace(trained(version), event_id="x", kind=kind, actor="ann", expected_version=seed % 3)
    world = rolled_out(seed, kills=4, person=person)
    events = [event for _, event in world.topics["adapters"]]
    once = list({event.event_id: event for event in reversed(events)}.values())[::-1]
    assert state_after(events, "default").serving == state_after(sorted(once, key=events.index), "default").serving
    assert rollouts.load(world.tables["line"]["default"]).serving == state_after(events, "default").serving
