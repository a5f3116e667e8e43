"""The group of stream workers, as Kafka's classic protocol and librdkafka's range assignor distribute its partitions.

    join, leave, silence ──► rebalance: every member is told with its next heartbeat, gives up all it has, and joins
                              └── all have joined, or MAX_POLL_S is over ──► generation + 1 ──► range ──► partitions

It is the eager protocol: nobody reads while somebody has not yet joined. tests/log/test_simulated_group.py holds it
against a real node with real members.

Not covered: static members, and a coordinator that moves.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from streams.kafka.record import TopicPartition
from tests.simulation.clock import VirtualClock


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTimes:
    """Seconds."""

    session_s: float = 6.0
    """kafka.session_timeout_s; a member's heart beats four times as often."""
    max_poll_s: float = 600.0
    request_s: float = 0.002
    """From a member to the broker, and back again."""
    first_s: float = 0.0
    """group.initial.rebalance.delay.ms: how long an empty group waits for more members."""

    @property
    def heartbeat_s(self) -> float:
        """Between two heartbeats of a member."""
        return self.session_s / 4


class Pulse(Protocol):
    """A client of the group."""

    @property
    def beats(self) -> bool:
        """Whether its process runs, so that its heart beats."""

    @property
    def ended(self) -> bool:
        """Whether it will never run again."""

    def told(self, what: str) -> None:
        """Take what an answer says: "rebalance", "assigned" or "lost"."""


@dataclass(eq=False, slots=True)
class SimulatedMember:
    """A member, as its coordinator knows it."""

    name: str
    client: Pulse
    heard_at: float = 0.0
    joined: bool = False
    generation: int = -1
    assigned: list[TopicPartition] = field(default_factory=list)


def in_ranges(members: Iterable[str], counts: Mapping[str, int]) -> dict[str, list[TopicPartition]]:
    """Return what each member gets of topics with so many partitions, all members reading all of them.

    >>> in_ranges(["b", "a"], {"tasks": 3})
    {'a': [('tasks', 0), ('tasks', 1)], 'b': [('tasks', 2)]}
    """
    names = sorted(members)
    shares: dict[str, list[TopicPartition]] = {name: [] for name in names}
    for topic, count in sorted(counts.items()):
        each, more = divmod(count, len(names))
        first = 0
        for place, name in enumerate(names):
            size = each + (place < more)
            shares[name] += [(topic, number) for number in range(first, first + size)]
            first += size
    return shares


class SimulatedGroup:
    """The coordinator."""

    def __init__(self, clock: VirtualClock, times: GroupTimes, counts: Mapping[str, int], draw: random.Random) -> None:
        """`counts` has the partitions of each topic that the group reads."""
        self.times, self.generation, self.rebalances = times, 0, 0
        self.committed: dict[TopicPartition, tuple[int, str]] = {}
        """Offset and note."""
        self._clock, self._counts, self._draw = clock, counts, draw
        self._members: dict[str, SimulatedMember] = {}
        self._preparing = False
        self._round = 0

    # --- what members ask ---------------------------------------------------------------------------------------------

    def new_member(self, client: Pulse) -> SimulatedMember:
        """Return a member that has asked for an id, and has yet to join."""
        return SimulatedMember(f"rdkafka-{uuid.UUID(int=self._draw.getrandbits(128), version=4)}", client)

    def join(self, member: SimulatedMember) -> None:
        """Have a member take part in the rebalance that this begins, if none is under way."""
        if not member.client.beats:
            return
        if member.name not in self._members:
            self._members[member.name] = member
            self._beat(member)
        member.heard_at, member.joined = self._clock.now, True
        self._prepare(self.times.first_s if len(self._members) == 1 and not self.generation else 0.0)

    def leave(self, member: SimulatedMember) -> None:
        """Have a member go."""
        if self._members.pop(member.name, None) is not None:
            self._prepare()

    def is_current(self, member: SimulatedMember) -> bool:
        """Return whether a member may commit."""
        return self._members.get(member.name) is member and member.generation == self.generation

    def commit(
        self, member: SimulatedMember, generation: int, offsets: Sequence[tuple[TopicPartition, int, str]]
    ) -> bool:
        """Note offsets, unless the member has lost its partitions; return whether they were noted."""
        if self._members.get(member.name) is not member or generation != self.generation:
            return False
        self.committed |= {tp: (offset, note) for tp, offset, note in offsets}
        return True

    # --- rebalances ---------------------------------------------------------------------------------------------------

    def _prepare(self, wait_s: float = 0.0) -> None:
        if not self._preparing:
            self._preparing = True
            self._round += 1
            self.rebalances += 1
            number = self._round
            self._clock.at(self._clock.now + self.times.max_poll_s, lambda: self._expel(number))
        self._clock.at(self._clock.now + wait_s, self._complete_if_all)

    def _expel(self, number: int) -> None:
        if self._preparing and self._round == number:
            self._members = {name: member for name, member in self._members.items() if member.joined}
            self._complete_if_all()

    def _complete_if_all(self) -> None:
        if not self._preparing or not all(member.joined for member in self._members.values()):
            return
        self._preparing = False
        if not self._members:
            return
        self.generation += 1
        shares = in_ranges(self._members, self._counts)
        for name, member in self._members.items():
            member.joined, member.generation, member.assigned = False, self.generation, shares[name]
            member.heard_at = self._clock.now
        generation, leader = self.generation, next(iter(self._members.values()))
        # the answer to the join; the leader's plan, and the answer to who asks for its share
        self._clock.at(self._clock.now + 2 * self.times.request_s, lambda: self._hand_out(generation, leader))

    def _hand_out(self, generation: int, leader: SimulatedMember) -> None:
        if self.generation != generation or self._preparing or not leader.client.beats:
            return  # without its plan nobody has anything, until it counts as gone
        for member in list(self._members.values()):
            if member.client.beats:
                member.client.told("assigned")

    def _beat(self, member: SimulatedMember) -> None:
        """The coordinator's and the member's side of a heartbeat."""
        now, client = self._clock.now, member.client
        due = now + self.times.heartbeat_s
        if self._members.get(member.name) is not member:
            if client.beats:
                client.told("lost")
            elif not client.ended:  # frozen: it learns of it later
                self._clock.at(due, lambda: self._beat(member))
            return
        if client.beats:
            member.heard_at = now
            if self._preparing and not member.joined:
                client.told("rebalance")
        elif not member.joined:  # while its join is unanswered nothing is expected of it
            silent_until = member.heard_at + self.times.session_s
            if now >= silent_until:
                del self._members[member.name]
                self._prepare()
            else:
                due = min(due, silent_until)
        self._clock.at(due, lambda: self._beat(member))
