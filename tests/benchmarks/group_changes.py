"""Partitions that move, and for how long nobody owns them, when members of a group come and go: both protocols.

    MEMBERS members over PARTITIONS partitions of two topics ──► one leaves, one comes, five are replaced

Members are threads of this process that read nothing, so what is measured is the assignment alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from streams.kafka import admin
from streams.kafka.consumer import GroupConsumer, OnAssignment
from streams.kafka.record import TopicPartition
from streams.kafka.retry import BrokerOutage
from streams.settings.model import Settings
from tests.benchmarks.loop import node

MEMBERS, PARTITIONS, REPLACED = 20, 100, 5
BOTH = ("rewards", "responses")
CASES = (("classic", BOTH), ("consumer", BOTH), ("consumer", BOTH[:1]))
QUIET_S = 4.0
"""Without a change after which the assignment is final."""


@dataclass
class Board:
    """Who owns each partition, and since when nobody does."""

    partitions: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    owners: dict[TopicPartition, int] = field(default_factory=dict)
    before: dict[TopicPartition, int] = field(default_factory=dict)
    free_since: dict[TopicPartition, float] = field(default_factory=dict)
    still_s: float = 0.0
    changed_at: float = 0.0

    def gain(self, member: int, tps: list[TopicPartition]) -> None:
        with self.lock:
            self.changed_at = time.monotonic()
            for tp in tps:
                self.owners[tp] = member
                self.still_s = max(self.still_s, self.changed_at - self.free_since.pop(tp, self.changed_at))

    def lose(self, tps: list[TopicPartition]) -> None:
        with self.lock:
            self.changed_at = time.monotonic()
            for tp in tps:
                if self.owners.pop(tp, None) is not None:
                    self.free_since[tp] = self.changed_at

    def settle(self) -> None:
        """Wait until all is owned and nothing changes any more."""
        while len(self.owners) < self.partitions or time.monotonic() < self.changed_at + QUIET_S:
            time.sleep(0.1)


class Member(threading.Thread):
    """A member in a thread of its own."""

    def __init__(self, settings: Settings, board: Board, number: int, labels: tuple[str, ...]) -> None:
        super().__init__()
        self.ends, self.board, self.number, self.settings, self.labels = (
            threading.Event(),
            board,
            number,
            settings,
            labels,
        )
        self.start()

    def run(self) -> None:
        def gained(tps: list[TopicPartition]) -> None:
            self.board.gain(self.number, tps)

        on = OnAssignment(gained, self.board.lose, self.board.lose)
        outage = BrokerOutage(self.settings.kafka, self.ends)
        with GroupConsumer(self.settings, "scoring", self.labels, outage, on) as consumer:
            while not self.ends.is_set():
                consumer.poll(timeout_s=0.1)

    def leave(self) -> None:
        """Leave the group."""
        self.ends.set()
        self.join()


def run() -> Iterator[dict[str, Any]]:
    """Yield a line for each protocol and change."""
    with node() as usual:
        for protocol, labels in CASES:
            kafka = usual.kafka.model_copy(update={"group_protocol": protocol})
            topics = usual.topics.model_copy(update={"prefix": f"{protocol}-{len(labels)}.", "partitions": PARTITIONS})
            settings = usual.model_copy(update={"kafka": kafka, "topics": topics})
            admin.apply_topics(settings)
            yield from _changes(settings, labels)


def _changes(settings: Settings, labels: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    board = Board(len(labels) * PARTITIONS)
    members = [Member(settings, board, number, labels) for number in range(MEMBERS)]
    board.settle()

    def replace() -> None:
        for number in range(REPLACED):
            members.pop(0).leave()
            members.append(Member(settings, board, MEMBERS + 1 + number, labels))
            board.settle()

    changes = {
        "one leaves": lambda: members.pop().leave(),
        "one comes": lambda: members.append(Member(settings, board, MEMBERS, labels)),
        f"{REPLACED} are replaced, one by one": replace,
    }
    for name, change in changes.items():
        before, board.still_s = dict(board.owners), 0.0
        change()
        time.sleep(1.0)
        board.settle()
        moved = sum(owner != before[tp] for tp, owner in board.owners.items()) // len(labels)
        owners = list(board.owners.values())
        counts = sorted(owners.count(member) // len(labels) for member in set(owners))
        yield {
            "benchmark": "group_changes",
            "case": f"{settings.kafka.group_protocol}, topics {len(labels)}: {name}",
            "members": len(counts),
            "moved": moved,
            "still_s": round(board.still_s, 2),
            "shares": [counts[0], counts[-1]],
        }
    for member in members:
        member.ends.set()
    for member in members:
        member.join()
