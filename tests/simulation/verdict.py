"""Whether what the workers wrote is what the plain reducers make of the same log, byte for byte.

tasks, responses, rewards, group-control ──► the batch driver's join ──► groups, dead letters  ═ those in the log
groups                                   ──► the batch driver's cut  ──► batches               ═ those in the log
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from schemas.events import AdvantagedGroup, Batch, Coordinates, DeadLetter
from schemas.serde import decode, encode
from streams.kafka.record import Record
from streams.tools.replay import driver
from tests.simulation.world import Simulation
from tests.support.log.in_memory import NAMES, by_id, joined


class Verdict(NamedTuple):
    """What was compared."""

    expected: int
    """Groups and dead letters, by id."""
    batches: int
    lost: list[str]
    """Ids that are not in the log."""
    wrong: list[str]
    """Ids that are in the log with other bytes, or should not be there."""
    repeated: int
    """Records that are in the log once more, with the same bytes: at least once."""

    @property
    def holds(self) -> bool:
        """Whether nothing was lost, and nothing else is there."""
        return not self.lost and not self.wrong


def judge(world: Simulation) -> Verdict:
    """Compare what is in the log."""
    records = {
        (label, number): _records(world, label, number)
        for label in NAMES
        for number in range(world.settings.topics.partitions)
    }
    settings = world.settings.model_copy(update={"topics": world.settings.topics.model_copy(update={"prefix": ""})})
    expected = dict(by_id(output) for output in joined(settings, records))
    cut = dict((made.batch_id, encode(made)) for made in _batches(world) if isinstance(made, Batch))
    lost, wrong, count = [], [], 0
    written: dict[str, set[bytes]] = {}
    for label, kind in (("groups", AdvantagedGroup), ("dead-letters", DeadLetter), ("batches", Batch)):
        for number in range(world.settings.topics.policy_partitions):
            for record in _records(world, label, number):
                event = decode(record.payload, kind)
                name = event.batch_id if isinstance(event, Batch) else by_id(event)[0]
                written.setdefault(name, set()).add(record.payload or b"")
                count += 1
    every = expected | cut
    lost = sorted(every.keys() - written.keys())
    wrong = sorted(name for name, payloads in written.items() if payloads != {every.get(name)})
    return Verdict(len(expected), len(cut), lost, [name for name in wrong if name not in lost], count - len(written))


def _records(world: Simulation, label: str, number: int) -> list[Record]:
    stored = world.broker[world.named[label].name, number].records
    return [Record(Coordinates(label, number, one.offset), one.timestamp_ms, one.key, one.value) for one in stored]


def _batches(world: Simulation) -> Iterator[Batch | DeadLetter]:
    for number in range(world.settings.topics.policy_partitions):
        yield from driver.cut(world.settings, _records(world, "groups", number))
