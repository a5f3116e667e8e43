"""Fault 18: what learns from served runs is killed: the curator, the builder of data sets, the retraining's controller.

    tasks of purpose serve ──► groups ──► curate follow ──► datasets follow ──► retrain follow

Each answer gets one verdict, each crossing one job, and each data set is built again to the same bytes.

Not covered: a judge that is a model; it is asked before the verdict is written, and may be asked twice.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import fields
from typing import Any

from plugins.improve.datasets import dataset_rebuild
from schemas.events import CurationEvent, DatasetEvent, Event, JobEvent, Response, TriggerEvent
from schemas.serde import Poison
from streams.kafka import admin
from streams.kafka.topics import topic_of
from streams.tools.archive import history
from tests.chaos.load import Load
from tests.chaos.matrix import fault
from tests.chaos.world import TEND_EVERY_S, World

DATASET = RULE = "good"
NEW = 100
"""Newly promoted runs that make a data set, and a reason to retrain."""
KILLS = 6
AFTER_START_S = (2.0, 10.0)
"""How long after each start it is killed; the first seconds are those in which it joins its group."""
START_S = 120.0
"""What a start may take."""
HOW = "SIGKILL 2 to 10 s after each of six starts"
RETRAIN = f"""\
name = "{RULE}"
policy = "default"
actions = ["tune"]
budget_usd = 1.0

[when]
promotable = {NEW}

[tune]
method = "sft"
"""
SETTINGS = {
    "improve": {"gates": "min_completed=1, min_score=1", "promote_by_gates": "*"},
    "prices": {"prompt_usd": 0.0, "completion_usd": 0.0},
    "jobs": {"trainer_hour_usd": 1.0},
}
SERVED: dict[str, Any] = {
    "settings": SETTINGS,
    "tasks": lambda number: {"purpose": "serve"},
    "rate": 4,
    "most": 400,
}


class ImproveWorld(World):
    """A World in which served runs are judged, collected and learnt from."""

    def improve(self) -> None:
        """Start the three processes."""
        rule = self.folder / "retrain.toml"
        rule.write_text(RETRAIN)
        self.start("improve-curate", "curate", "follow")
        self.start("improve-datasets", "datasets", "follow", DATASET, "--new", str(NEW))
        self.start("improve-retrain", "retrain", "follow", "--rule", str(rule))

    def await_start(self, name: str, number: int) -> None:
        """Return once a process has begun to read for the `number`-th time. Raises TimeoutError."""
        deadline = time.monotonic() + START_S
        while self.said(f"improve-{name}").count(f"{name} starts, reads") < number:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} did not start for the {number}. time within {START_S:g} s")
            time.sleep(TEND_EVERY_S)

    def lag(self) -> int | None:
        """Return what waits: records, answers without a verdict, and the first data set and crossing."""
        waiting = super().lag()
        if waiting is None or waiting:
            return waiting
        return len(self._unjudged()) + (not self._events(DatasetEvent)) + (not self._events(TriggerEvent))

    def findings(self) -> list[str]:
        """Return which answers were judged not once, which crossings have not one job, and which sets differ."""
        complaints = [f"response {answer_id} has no verdict" for answer_id in sorted(self._unjudged())[:5]]
        verdicts = Counter(event.answer_id for event in self._events(CurationEvent))
        complaints += [f"run {answer_id} has {count} verdicts" for answer_id, count in verdicts.items() if count > 1]
        crossings = {event.job_id for event in self._events(TriggerEvent) if event.kind == "crossed"}
        ordered = Counter(event.job_id for event in self._events(JobEvent) if event.kind == "created")
        if not crossings or crossings != ordered.keys() or ordered.total() != len(crossings):
            complaints.append(f"the jobs {sorted(ordered)} were ordered by crossings {sorted(map(str, crossings))}")
        builds = self._events(DatasetEvent)
        complaints += filter(None, map(self._difference, builds))
        self.notes.append(f"{len(verdicts)} runs judged, {len(builds)} data sets, {len(crossings)} crossings")
        return complaints if builds else [*complaints, "no data set was built"]

    def _unjudged(self) -> set[str]:
        answered = {event.response_id for event in self._events(Response)}
        return answered - {event.answer_id for event in self._events(CurationEvent)}

    def _difference(self, build: DatasetEvent) -> str | None:
        again = dataset_rebuild.rebuild(self.direct, build, history.of(self.direct))
        return dataset_rebuild.difference(build, again.event)

    def _events(self, kind: type[Event]) -> list[Any]:
        """Return the events of a topic; a record that was written again counts once."""
        records = admin.read_topic(self.direct, topic_of(kind, self.direct.topics).label)
        event_id, events = fields(kind)[0].name, [record.decode(kind) for record in records]
        return list({getattr(event, event_id): event for event in events if not isinstance(event, Poison)}.values())


def _kill(world: World, load: Load, draw: random.Random, name: str) -> None:
    """Kill a process a while after each of its starts: one that is killed while it imports has done nothing."""
    assert isinstance(world, ImproveWorld)
    world.improve()
    for start in range(1, KILLS + 1):
        world.await_start(name, start)
        time.sleep(draw.uniform(*AFTER_START_S))
        world.kill(f"improve-{name}")
    world.await_start(name, KILLS + 1)  # a process that is told to end has to have begun


@fault(18, "the curator is killed", HOW, place=ImproveWorld, **SERVED)
def kill_curator(world: World, load: Load, draw: random.Random) -> None:
    _kill(world, load, draw, "curate")


@fault(18, "the builder of data sets is killed", HOW, place=ImproveWorld, **SERVED)
def kill_dataset_builder(world: World, load: Load, draw: random.Random) -> None:
    _kill(world, load, draw, "datasets")


@fault(18, "the controller of retraining is killed", HOW, place=ImproveWorld, **SERVED)
def kill_retrain(world: World, load: Load, draw: random.Random) -> None:
    _kill(world, load, draw, "retrain")
